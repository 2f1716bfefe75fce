"""Tasks by name: splits, uids, refusals."""

import json
import socket
import subprocess
import sys

import pytest
from reasoning_gym.factory import create_dataset

from strop.data.prompts import MAX_SPLIT_ROWS
from strop.environments.base import built_in
from strop.environments.reasoning_gym import from_json, score, to_json
from strop.environments.tasks import load_task
from strop.rewards.grader import Grader
from strop.support.errors import UserError

# Two digits and one operation: too few questions for large splits without overlap.
TINY = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}


def scores(task, completions):
    prompts = task.train[: len(completions)]
    columns = {name: [p.columns[name] for p in prompts] for name in prompts[0].columns}
    with Grader(task.rewards) as grader:
        grades = grader.grade(
            [p.prompt for p in prompts], completions, [[]] * len(prompts), columns
        )
    assert grades.scored_B.all()
    return grades.scores_BM[:, 0].tolist()


def test_countdown_splits_are_disjoint_and_complete():
    task = load_task("countdown")
    splits = [task.train, task.validation, task.heldout]
    prompts = [p.prompt for split in splits for p in split]
    uids = [p.uid for split in splits for p in split]
    assert len(set(prompts)) == len(prompts) == len(set(uids)) > 4000
    assert all(p.uid // MAX_SPLIT_ROWS == i for i, split in enumerate(splits) for p in split)


@pytest.mark.parametrize("name", ["countdown", "reasoning_gym:chain_sum", *built_in()])
def test_a_shipped_task_has_disjoint_splits_a_reward_and_its_range_without_a_network(
    name, monkeypatch
):
    def refuse(*_):
        raise AssertionError("a task that ships needs no network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    task = load_task(name, num_train=6, num_validation=4, num_heldout=5)
    splits = [task.train, task.validation, task.heldout]
    assert [len(split) for split in splits] == [6, 4, 5]
    uids = {p.uid for split in splits for p in split}
    rows = {json.dumps([p.prompt, dict(p.columns)], sort_keys=True, default=str)
            for split in splits for p in split}  # fmt: skip
    assert len(uids) == len(rows) == 15
    low, high = task.reward_range
    assert low < high
    assert task.rewards or task.environment is not None


def test_countdown_sizes_take_the_first_rows():
    whole = load_task("countdown")
    part = load_task("countdown", num_train=7, num_validation=0, num_heldout=2)
    assert (part.train, part.heldout) == (whole.train[:7], whole.heldout[:2])
    assert part.validation == []


def test_countdown_scores_through_the_grader():
    task = load_task("countdown", num_train=2)
    from strop.environments.countdown import solutions

    puzzle = task.train[0].columns
    right = solutions(puzzle["numbers"], puzzle["target"])[0]
    assert scores(task, [right, "1+1"]) == [1.0, 0.0]


@pytest.mark.parametrize("name", ["chain_sum", "countdown"])
def test_reasoning_gym_rows_and_scores(name):
    task = load_task(f"reasoning_gym:{name}", num_train=20, num_validation=5, num_heldout=5)
    assert [len(s) for s in (task.train, task.validation, task.heldout)] == [20, 5, 5]
    evaluated = {p.prompt for p in [*task.validation, *task.heldout]}
    assert not evaluated & {p.prompt for p in task.train}
    json.dumps([dict(p.columns) for p in task.train])
    right = [from_json(p.columns["entry"]) for p in task.train[:3]]
    assert [entry["question"] for entry in right] == [p.prompt for p in task.train[:3]]
    answers = [e["metadata"]["expression"] if name == "countdown" else e["answer"] for e in right]
    said = [f"So <answer>{answers[0]}</answer>.", f"\\boxed{{{answers[1]}}}", f"Hm.\n{answers[2]}"]
    wrong = ["<answer>0</answer>", "none", ""]
    got = scores(task, [*said, *wrong])
    assert got[:3] == [1.0, 1.0, 1.0]
    assert max(got[3:]) < 1.0


def test_reasoning_gym_is_an_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "reasoning_gym.factory", None)
    monkeypatch.delitem(sys.modules, "strop.environments.reasoning_gym")
    monkeypatch.delattr("strop.environments.reasoning_gym")
    with pytest.raises(UserError, match=r"pip install 'strop\[reasoning-gym\]'"):
        load_task("reasoning_gym:chain_sum")


def test_reasoning_gym_evaluation_does_not_depend_on_the_training_size():
    small, large = (load_task("reasoning_gym:chain_sum", num_train=n) for n in (5, 50))
    assert (small.heldout, small.validation) == (large.heldout, large.validation)
    assert small.train == large.train[:5]


def test_reasoning_gym_splits_share_no_question():
    """There are few sums of two digits, so without a check the splits would share some."""
    sizes = {"num_validation": 20, "num_heldout": 20, "config": TINY}
    task = load_task("reasoning_gym:chain_sum", num_train=5, **sizes)
    drawn = create_dataset("chain_sum", **TINY, seed=0, size=100)
    asked = [drawn[place]["question"] for place in range(100)]
    heldout, validation, train = (
        [p.prompt for p in split] for split in (task.heldout, task.validation, task.train)
    )
    fresh = [question for question in asked[20:] if question not in heldout]
    assert heldout == asked[:20]
    assert validation == fresh[:20] != asked[20:40]
    assert train == [question for question in fresh[20:] if question not in validation][:5]
    larger = load_task("reasoning_gym:chain_sum", num_train=30, **sizes)
    assert (larger.heldout, larger.validation) == (task.heldout, task.validation)
    assert larger.train[:5] == task.train


def test_reasoning_gym_configuration_reaches_rows_and_verifier():
    task = load_task(
        "reasoning_gym:chain_sum", num_train=4, num_validation=2, num_heldout=2, config=TINY
    )
    assert all(
        len(from_json(p.columns["entry"])["metadata"]["expression"]) == 5 for p in task.train
    )
    assert from_json(task.train[0].columns["config"]) == TINY


@pytest.mark.parametrize("name", ["rearc", "graph_color", "chain_sum"])
def test_an_entry_survives_its_text_form_exactly(name):
    dataset = create_dataset(name, seed=1, size=2)
    entry = dataset[0]
    assert from_json(to_json(entry)) == entry
    if entry["answer"] is not None:
        said = [f"<answer>{entry['answer']}</answer>"]
        assert score(said, [to_json(entry)], [name], ["{}"]) == [1.0]


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("countdwn", {}, "unknown task 'countdwn' (did you mean 'countdown'?)"),
        ("countdown:x", {}, "takes no dataset"),
        ("countdown", {"num_train": 10**6}, "train puzzles, 1000000 were asked for"),
        ("countdown", {"num_train": 0}, "size of the train split is 0"),
        ("countdown", {"num_heldout": -1}, "size of the heldout split is -1"),
        ("reasoning_gym:chainsum", {}, "(did you mean 'chain_sum'?)"),
        ("reasoning_gym:", {}, "unknown reasoning-gym dataset ''"),
        ("reasoning_gym:chain_sum", {"config": {"min_term": 3}}, "(did you mean 'min_terms'?)"),
        ("reasoning_gym:chain_sum", {"config": {"min_terms": 9}}, "refuses its configuration"),
        ("reasoning_gym:chain_sum", {"config": {"seed": 1}}, "same in every run, so leave it out"),
        ("reasoning_gym:chain_sum", {"config": {"size": 9}}, "set data.train_size, data.valid"),
        ("agent:a.py:play", {"config": {"seed": 1}}, "has 'seed', of which each row of agent:a.py"),
        (
            "reasoning_gym:chain_sum",
            {"num_heldout": 2000, "num_validation": 0, "config": TINY},
            "rows of train that are not in heldout or validation: ask for smaller splits",
        ),
        (
            "reasoning_gym:chain_sum",
            {"num_heldout": 2000, "num_validation": 5, "config": TINY},
            "gave 0 of 5 rows of validation that are not in heldout: ask for smaller",
        ),
    ],
)
def test_refusals(name, options, expected):
    with pytest.raises(UserError) as caught:
        load_task(name, **options)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_importing_the_grading_side_does_not_import_torch():
    code = (
        "import sys, strop.environments.tasks, strop.environments.data_files\n"
        "import strop.rewards.grader, strop.rewards.grader_worker, strop.rewards.answers\n"
        "import strop.data.encode\n"
        "assert not {'torch', 'transformers', 'reasoning_gym', 'pyarrow'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
