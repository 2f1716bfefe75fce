"""labs/swe_next.py: which pairs become tasks, and what solves one and what does not."""

import json
import re
from pathlib import Path

import pytest
from opened import LABS, opened
from scripted_model import save_scripted

from strop.environments import Exit, ToolsUnavailable
from strop.sandbox.run import NotRun
from strop.support.errors import UserError

lab = opened("swe_next")


@pytest.fixture(scope="module")
def mined(tmp_path_factory) -> Path:
    """The small repository and its tasks."""
    folder = tmp_path_factory.mktemp("swe")
    lab.make_repository(folder / "shop")
    miner = lab.Miner(str(folder / "shop"), all_tests=True, repeats=1, seconds=30)
    reasons = {}
    tasks = []
    for base, merged in miner.pairs(10):
        title = lab.git(folder / "shop", "log", "-1", "--format=%s", merged).decode().strip()
        try:
            tasks.append(miner.task(base, merged))
            reasons[title] = "kept"
        except lab.Dropped as reason:
            reasons[title] = str(reason)
    (folder / "reasons.json").write_text(json.dumps(reasons))
    rows = [json.dumps(lab.asdict(task)) for task in tasks]
    (folder / "tasks.jsonl").write_text("\n".join(rows))
    return folder


def made(folder: Path, **options):
    return lab.Repair(str(folder / "tasks.jsonl"), seconds=30, **options)


def test_which_pairs_become_tasks_and_why_not(mined):
    assert json.loads((mined / "reasons.json").read_text()) == {
        "The total of nothing is not defined": "pass_to_fail",
        "Discounts in percent, rounded down": "kept",
        "The total is written shorter": "no_fail_to_pass",
        "A page for readers": "no_source",
        "The total has the first price too": "kept",
    }
    discount, total = lab.load_tasks(str(mined / "tasks.jsonl"))
    names = [f"tests/test_discount.py::test_reduced[{percent}]" for percent in (0, 10)]
    assert discount.fail_to_pass == tuple(names)
    assert discount.pass_to_pass == tuple(
        f"tests/test_basket.py::test_{name}" for name in ("nothing", "prices")
    )
    assert total.fail_to_pass == ("tests/test_basket.py::test_prices",)
    assert total.pass_to_pass == ("tests/test_basket.py::test_nothing",)


def test_what_wins_and_what_does_not(mined, monkeypatch):
    environment = made(mined)
    environment.seconds = 3.0
    real, known = lab.run_tests, {}

    def run_tests(tree, files, seconds):  # equal trees are tested once
        key = (frozenset(tree.items()), tuple(files))
        known[key] = known.get(key) or real(tree, files, seconds)
        return known[key]

    monkeypatch.setattr(lab, "run_tests", run_tests)
    task = environment.training[1]
    found = {name: lab.play(environment, 1, actions) for name, actions in lab.agents(task).items()}
    came = {
        name: (each.reward, each.measures["valid_submission"], each.exit, each.kind)
        for name, each in found.items()
    }
    assert came == {
        "merges": (1, 1, "done", "clean"),
        "recovers": (1, 1, "done", "recovered"),
        "merges, tests nothing": (0, 0, "done", "failed"),
        "changes nothing": (0, 0, "done", "failed"),
        "writes the test": (0, 0, "done", "failed"),
        "forges reports": (0, 1, "done", "failed"),
        "ends the process": (0, 1, "crash", "failed"),
        "hangs": (0, 1, "timeout", "failed"),
    }
    assert [n for n, each in found.items() if each.measures["tampered"]] == ["forges reports"]
    rows = found["merges"].demonstrations()
    assert [row["completion"][:9] for row in rows] == ["call edit", "call run_", "done"]
    assert "result: changed" in rows[1]["prompt"]
    assert "result: 1 passed, 0 failed\n" in rows[2]["prompt"]


def test_an_agent_sees_nothing_of_the_tests_that_decide(mined):
    environment = made(mined)
    task = environment.training[0]
    shown = environment.reset(0).text
    assert task.title in shown
    assert "test_discount" not in shown + environment.list_files()
    with pytest.raises(lab.ToolError, match="no file"):
        environment.read_file("tests/test_discount.py")
    for path in ("tests/test_discount.py", "shop/test_x.py", "conftest.py", "pyproject.toml"):
        assert (
            "stay as they are"
            in environment.step(lab.called("edit", path=path, old="", new="")).text
        )
    for path in ("/etc/passwd", "shop/../../x.py", "./x.py"):
        with pytest.raises(lab.ToolError, match="goes down"):
            environment.edit(path, "", "x")


def test_a_copy_holds_what_it_changed_alone(mined):
    one, other = made(mined), made(mined)
    for each in (one, other):
        each.reset(1)
    one.edit("shop/basket.py", "sum(prices[1:])", "0")
    one.edit("shop/new.py", "", "x = 1\n")
    assert one.read_file("shop/basket.py", 2) == "    return 0\n"
    assert "prices[1:]" in other.read_file("shop/basket.py")
    assert set(one.edits) == {"shop/basket.py", "shop/new.py"}
    assert other.base is one.base
    assert "shop/new.py" not in other.files
    for old, why in (("nowhere", "0 times"), ("", "is there")):
        with pytest.raises(lab.ToolError, match=why):
            one.edit("shop/basket.py", old, "x")


def test_the_newest_tasks_can_be_held_out(mined):
    environment = made(mined, newest=1)
    first, second = lab.load_tasks(str(mined / "tasks.jsonl"))
    for seed, task in ((0, second), (1, second), (10**9, first), (2 * 10**9 + 1, first)):
        environment.reset(seed)
        assert environment.task == task
    with pytest.raises(UserError, match="left to train"):
        made(mined, newest=2)


def test_all_tests_have_to_pass_and_the_failing_one_to_fail(mined, monkeypatch):
    task = lab.load_tasks(str(mined / "tasks.jsonl"))[0]
    every = frozenset(task.fail_to_pass + task.pass_to_pass)

    def graded(passed, tampered=False):
        found = lab.Tested(passed, tampered=tampered)
        monkeypatch.setattr(lab, "run_tests", lambda *_: found)
        return lab.grade(lab.tree_of(task.repository, task.base), task, 1)[0]

    assert graded(every)
    assert not graded(every, tampered=True)
    for lost in every:
        assert not graded(every - {lost})


def test_runs_that_differ_or_end_make_no_task(mined, monkeypatch):
    task = lab.load_tasks(str(mined / "tasks.jsonl"))[0]
    miner = lab.Miner(task.repository, all_tests=True)
    name = frozenset(task.fail_to_pass)

    def reason(*found):
        told = iter(found)
        monkeypatch.setattr(lab, "run_tests", lambda *_: next(told))
        with pytest.raises(lab.Dropped) as dropped:
            miner.task(task.base, task.merged)
        return str(dropped.value)

    good, none = lab.Tested(name), lab.Tested()
    late = lab.Tested(how="over 1 s", cause=Exit.TIMEOUT)
    assert reason(good, none) == "unstable"
    assert reason(good, good, none, good) == "unstable"
    assert reason(none, none) == "none_passes"
    assert reason(late, late) == "timeout"
    assert reason(good, good, late, late) == "base_timeout"


def test_a_sandbox_that_does_not_start_leaves_an_episode_unscored(mined, monkeypatch):
    environment = made(mined)
    environment.reset(0)
    environment.edit("shop/new.py", "", "x = 1\n")
    environment.runs = 1

    def away(*_):
        raise NotRun("no namespaces")

    monkeypatch.setattr(lab, "run_tests", away)
    with pytest.raises(ToolsUnavailable, match="no namespaces"):
        environment.step(lab.called("run_tests"))
    ended = environment.step("done")
    assert ended.exit is Exit.START_FAILED
    assert ended.exit.leaves_unscored(0.0)


def test_strop_trains_on_it(mined, tmp_path, strop):
    model = save_scripted(tmp_path / "model", {"done": 1.0})
    result = strop(
        "train", "grpo", "--model", model, f"data.task={LABS / 'swe_next.py'}:Repair",
        f"data.task_config={{'tasks': '{mined / 'tasks.jsonl'}'}}", "training.steps=1",
        "evaluation.every=0", "sampling.num_prompts=2", "sampling.num_rollouts=2",
        "training.rollouts_every=1", "data.train_size=2", "data.validation_size=1",
        "data.heldout_size=1", "rollout.max_action_tokens=8", "--out", tmp_path / "run", "--quiet",
    )  # fmt: skip
    assert result.code == 0, result.err
    metrics = json.loads((tmp_path / "run/metrics.jsonl").read_text().splitlines()[-1])
    assert metrics["reward"] == 0
    assert metrics["episode/done_fraction"] == 1


def test_mistakes_have_an_error(tmp_path, capsys, refused):
    for words in ([str(tmp_path)], [str(tmp_path / "none")]):
        assert re.search("error: git -C", refused(lab.main, words))
    (tmp_path / "tasks.jsonl").write_text("{}\n")
    with pytest.raises(UserError, match="cannot be read"):
        lab.Repair(str(tmp_path / "tasks.jsonl"))
    (tmp_path / "tasks.jsonl").write_text("")
    with pytest.raises(UserError, match="mine more commits"):
        lab.Repair(str(tmp_path / "tasks.jsonl"))
