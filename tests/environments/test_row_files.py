"""Environments whose episodes are rows of files: how many there are, and which split has which."""

import json
from types import SimpleNamespace

import pytest
from runs import world_of
from scripted_model import save_scripted

from strop.cli.train_here import _split
from strop.comparison.plan import Candidate, Scoring, _check_scored
from strop.environments.base import EnvironmentSource
from strop.environments.tasks import load_task
from strop.support.errors import UserError
from strop.training.settings.sections import DataSettings

SCRIPT = "CREATE TABLE t (a);"
STEPS = [{"observation": "shop", "action": "pay"}]
# The environment, its options for a file of each split, further options, and a row of its file.
KINDS = {
    "text_to_sql": (
        ("questions", "validation", "heldout"), {},
        lambda name: {"question": name, "sql": "SELECT 1", "script": SCRIPT},
    ),
    "tool_questions": (
        ("questions", "validation", "heldout"), {"tools": ["calculator"]},
        lambda name: {"question": name, "answer": "1"},
    ),
    "strop.environments.replay:Replay": (
        ("file", "validation_file", "heldout_file"), {},
        lambda name: {"prompt": name, "steps": STEPS},
    ),
}  # fmt: skip


def options(folder, kind, train, *further):
    """The options of a kind for files with these numbers of rows, which are named train-0, ..."""
    names, own, row = KINDS[kind]
    own = dict(own)
    for name, num in zip(names, (train, *further), strict=False):
        rows = [row(f"{name}-{n}!") for n in range(num)]
        path = folder / f"{name}.jsonl"
        path.write_text("".join(json.dumps(each) + "\n" for each in rows), encoding="utf-8")
        own |= {name: str(path)} if num else {}
    return own


def named(rows):
    """The names of the rows that prompts show."""
    return [next(w for w in row.prompt.split() if w.endswith("!")).strip("!") for row in rows]


@pytest.mark.parametrize("kind", KINDS)
def test_every_row_is_one_episode_of_its_split(tmp_path, kind):
    task = load_task(kind, config=options(tmp_path, kind, 3, 2, 1))
    train, validation, heldout = KINDS[kind][0]
    assert named(task.train) == [f"{train}-{n}" for n in range(3)]
    assert named(task.validation) == [f"{validation}-{n}" for n in range(2)]
    assert named(task.heldout) == [f"{heldout}-0"]
    assert task.notes == ()


@pytest.mark.parametrize("kind", KINDS)
def test_without_further_files_validation_is_training_and_nothing_is_held_out(tmp_path, kind):
    task = load_task(kind, config=options(tmp_path, kind, 3))
    assert named(task.validation) == named(task.train)
    assert not {row.uid for row in task.validation} & {row.uid for row in task.train}
    assert task.heldout == []
    (note,) = task.notes
    assert "no episodes of its own for validation" in note


def test_a_byte_order_mark_is_no_part_of_a_file(tmp_path):
    path = tmp_path / "q.jsonl"
    path.write_text('{"question": "1+1?", "answer": "2"}\n', encoding="utf-8-sig")
    task = load_task("tool_questions", config={"questions": str(path), "tools": ["calculator"]})
    assert [row.prompt for row in task.train] == ["1+1?\n"]


def test_a_long_file_is_played_whole_and_validates_on_a_hundred_of_its_rows(tmp_path):
    task = load_task("tool_questions", config=options(tmp_path, "tool_questions", 1200))
    assert (len(task.train), len(task.validation)) == (1200, 100)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"num_train": 4}, "data.train_size=4, and the size of the train split .* is 3: ask for"),
        ({"num_validation": 3}, "data.validation_size=3, .* is 2: ask for fewer"),
        ({"num_heldout": 1}, "data.heldout_size=1, .* is 0: name a file for it in data.task_conf"),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_sizes_above_the_rows_are_refused(tmp_path, kind, sizes, message):
    config = options(tmp_path, kind, 3, 2)
    with pytest.raises(UserError, match=message):
        load_task(kind, config=config, **sizes)
    fewer = load_task(kind, config=config, num_train=2, num_validation=1)
    assert (len(fewer.train), len(fewer.validation)) == (2, 1)


def test_environments_of_a_mixture_have_their_own_numbers(tmp_path):
    mixed = "made=tool_questions + tool_questions"
    own = options(tmp_path, "tool_questions", 3, 0, 2)
    config = {"made": {"kinds": ["arithmetic"]}, "tool_questions": own}
    task = load_task(mixed, config=config, num_validation=2)
    assert [origin.end for origin in task.origins] == [1000, 1003]
    assert named(task.sets["tool_questions"]) == ["questions-0", "questions-1"]
    assert named(task.heldout[-2:]) == ["heldout-0", "heldout-1"]
    assert len(task.heldout) == 102
    assert [note.split()[0] for note in task.notes] == ["tool_questions"]
    with pytest.raises(UserError, match="train split of tool_questions is 3"):
        load_task(mixed, config=config, num_train=4)


def test_who_holds_episodes_out(tmp_path):
    kind = "tool_questions"
    none, some = options(tmp_path, kind, 1), options(tmp_path, kind, 1, 0, 1)
    block = "strop.environments.action_block:ActionBlock"
    found = [
        EnvironmentSource(name, config).holds_out
        for name, config in (
            (kind, {}), (kind, none), (kind, some),
            (block, {"environment": kind, "options": none}), ("corridor", {}),
            (f"{kind} + corridor", {kind: none}),
        )
    ]  # fmt: skip
    assert found == [True, False, True, False, True, True]


def test_scores_on_held_out_episodes_need_some(tmp_path):
    kind = "tool_questions"
    for further, split in (((), ["--split", "validation"]), ((0, 1), [])):
        data = DataSettings(task=kind, task_config=options(tmp_path, kind, 1, *further))
        task = load_task(kind, config=data.task_config, num_heldout=0)
        world = SimpleNamespace(services=SimpleNamespace(task=task))
        run = SimpleNamespace(world=world, config=SimpleNamespace(data=data))
        assert _split(run) == split  # what a run says that `strop eval` takes next

        settings = SimpleNamespace(data=data)
        _check_scored([Candidate("grpo", settings)], Scoring(by="sampled"))
        if not further:
            with pytest.raises(UserError, match="grpo: tool_questions has no held-out episodes"):
                _check_scored([Candidate("grpo", settings)], Scoring())
        else:
            _check_scored([Candidate("grpo", settings)], Scoring())


def test_a_run_says_where_validation_is_training(tmp_path):
    model, task = save_scripted(tmp_path / "model", {"1": 1.0}), "tool_questions"
    for further in ((), (1,)):
        data = {"task": task, "task_config": options(tmp_path, task, 2, *further)}
        _, world = world_of({"recipe": "grpo", "model": {"name": str(model)}, "data": data})
        world.services.close()
        notes = [note for note in world.services.notes if "own for validation" in note]
        assert len(notes) == (not further)


@pytest.mark.parametrize(
    ("own", "found"),
    [
        ("{'train': 2, 'heldout': 1}", (2, 2, 1)),
        ("{'validation': 2}", "names no episodes for train"),
        ("500", "gives 500: give a number for each split"),
        ("{'train': '5'}", "gives {'train': '5'}: give a number for each split"),
    ],
)
def test_a_class_of_the_users_own_says_how_many_it_has(tmp_path, own, found):
    file = tmp_path / f"mine{len(own)}.py"
    file.write_text(
        "from strop.environments import Environment, Observation\n\n\n"
        "class Mine(Environment):\n"
        f"    def num_episodes(self):\n        return {own}\n\n"
        "    def reset(self, seed):\n        return Observation(str(seed))\n\n"
        "    def step(self, action):\n        return Observation('', done=True)\n"
    )
    if isinstance(found, str):
        with pytest.raises(UserError, match=found):
            load_task(f"{file}:Mine")
        return
    task = load_task(f"{file}:Mine")
    assert tuple(map(len, (task.train, task.validation, task.heldout))) == found
    assert [row.prompt for row in (*task.validation, *task.heldout)] == ["0", "1", "2000000000"]
