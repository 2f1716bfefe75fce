"""`strop.compare`: the command's comparison from a script."""

import shutil
import sys
from multiprocessing.spawn import get_preparation_data
from pathlib import Path
from typing import Any

import pytest
from short import SHORT, column, even, lines, rows_of, trained

import strop
from strop import UserError
from strop.api import compare as compare_module
from strop.comparison.plan import START
from strop.comparison.runs import _main_hidden
from strop.comparison.scores import Row
from strop.comparison.verdict import judge

OPTIONS = {name: value for name, value in SHORT.items() if name != "training_steps"}


def compared(lab: Any, methods: Any, **changes: Any) -> strop.Comparison:
    given = {"model": str(lab.model), "data": rows_of(lab.data), "reward": even, "seeds": 2,
             "steps": 2, "k": (1, 2), "data_heldout_size": 2, **OPTIONS, **changes}  # fmt: skip
    return strop.compare(methods, **given)


def test_methods_beside_each_other(lab: Any, here: Path) -> None:
    rloo = strop.recipe("rloo")
    found = compared(lab, {"plain": "grpo", "leave one out": rloo, "wide": ("grpo", WIDE)})
    assert found.folder == Path("comparisons/1")
    assert {label: [run.steps_done for run in runs] for label, runs in found.runs.items()} == {
        "plain": [2, 2], "leave one out": [2, 2], "wide": [2, 2],
    }  # fmt: skip
    alone = trained(lab, "rloo", training_steps=2, data_heldout_size=2, seed=1)
    assert lines(found.runs["leave one out"][1].folder) == lines(alone.folder)
    assert found.runs["wide"][0].config.algorithm["terms.policy.objective.clip_high"] == 0.5
    scores, table = found.scores, found.table
    assert column(scores, "method").count("wide") == 2
    assert set(column(scores, "step")) == {2}
    assert "pass@2" in column(table, "metric")
    assert set(column(table, "method")) == {"plain", "leave one out", "wide"}
    assert "<td" in found._repr_html_()
    assert "`leave one out`" in repr(found)
    assert all(label in found.plot("reward").svg for label in ("plain", "leave one out", "wide"))
    assert found.page.is_file()


def test_scores_keep_every_digit_and_the_model_before_training_has_one_row() -> None:
    before, after = {"pass@1": 0.123456789}, {"pass@1": 1 / 3, "tokens": 123456789.0}
    rows = [Row(START, 0, step, before) for step in (2, 4)] + [Row("grpo", 1, 4, after)]
    plan: Any = None  # is not looked at
    found = compare_module.Comparison(Path("none"), plan, tuple(rows)).scores
    assert column(found, "method") == [START, "grpo"]
    assert column(found, "pass@1") == [0.123456789, 1 / 3]
    assert column(found, "step") == [0, 4]
    assert column(found, "tokens")[1] == 123456789.0


def test_an_error_between_runs_names_keywords(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise UserError("--target none: give one of these, and another --out")

    monkeypatch.setattr(compare_module, "carry_out", refuse)
    plan: Any = None  # is not looked at
    with pytest.raises(UserError, match=r"^target= none: give one of these, and another out=$"):
        compare_module._carried_out(plan, Path("none"), 0, False)


def test_a_row_has_the_p_of_its_difference_as_it_is_and_adjusted() -> None:
    gaps = {
        "base": [0.0] * 5,
        "one": [1.0, 2.0, 3.0, 4.0, 5.0],
        "other": [1.0, -1.0, 2.0, 0.0, 3.0],
    }
    scores = {"reward": {label: dict(enumerate(values)) for label, values in gaps.items()}}
    base, one, other = (compare_module._row(each) for each in judge(scores, "base"))
    assert "p" not in base
    assert one["p"] == pytest.approx(0.0132356, abs=1e-6)  # t = 3 / sqrt(2.5 / 5)
    assert one["p_adjusted"] == pytest.approx(2 * one["p"])
    assert other["p_adjusted"] == other["p"] > 0.05


WIDE = {"loss_clip_high": 0.5}
TUNED = {"training_lr": "1e-4..1e-2,log"}


def test_settings_that_are_tried_have_the_ranges_of_all_and_their_own() -> None:
    given = {"loss_clip_high": "0.1..0.5", "training_weight_decay": 0.1}
    mine = compare_module._settings_of({"mine": "rloo"}, given, 2)
    label, method, values, of = mine.entries[1]
    assert (label, of) == ("mine loss.clip_high=0.3", "mine")
    assert method == ("rloo", dict(values)) == ("rloo", {"loss.clip_high": "0.3"})
    (first, second) = compare_module._settings_of([("grpo", {**TUNED, "seed": 3})], {}, 2).entries
    assert first == ("grpo seed=3", ("grpo", {"seed": 3}), (), "grpo seed=3")
    assert second[1] == ("grpo", {"seed": 3, "training.lr": "0.001"})


@pytest.mark.parametrize(
    ("methods", "changes", "message"),
    [
        ([], {}, "name the methods to compare"),
        ([strop.recipe("grpo")], {}, "has no name: give a dict"),
        ([lambda: strop.recipe("grpo")], {}, "has no name: give a dict"),
        (["grpo", "grpo"], {}, "grpo stands twice"),
        (["grpo", "rlo"], {}, "no recipe 'rlo', did you mean rloo"),
        (["grpo"], {"baseline": "rloo"}, "baseline= rloo is none of the methods"),
        (["grpo"], {"k": (8,), "samples": 4}, "k=8 needs at least as many samples="),
        (["grpo"], {"data": 3}, "data is int"),
        (["grpo"], {"seeds": 0}, "seeds is 0: give a whole number of at least 1"),
        (["grpo"], {"steps": -3}, "steps is -3: give a whole number of at least 0"),
        (
            ["grpo"],
            {"data_heldout_size": 0},
            "grpo: its data has no held-out rows .* score_on= FILE",
        ),
        (["grpo"], {"score_on": "nope.jsonl"}, r"data file nope\.jsonl does not exist"),
        (["grpo"], {"k": 0}, "k is .*: give whole numbers"),
        (["grpo"], {"at": "3"}, "at is .*: give whole numbers"),
        (["grpo"], {"mean": 3}, "mean is .*: give names"),
        (["grpo"], {"mean": len}, "mean is .*: give names"),
        (["grpo"], {"target": "pass@1"}, "target is 'pass@1': give a pair"),
        (["grpo"], {"band": (0.4, 0.3)}, "band is .*: give a pair, such as .0.3"),
        (["grpo"], {"band": (0.3, "0.4")}, "band is .*: give a pair, such as .0.3"),
        (["grpo"], {"tune_seeds": 2}, "tune_seeds= and tune_by= choose .*: give tune= N too"),
        (["grpo"], {"training_lr": "1e-4..1e-3"}, "is a range: give tune="),
        ([("grpo", TUNED), "rloo"], {"tune": 2}, "rloo has nothing to tune"),
        (["grpo"], {"tune": 2, "tune_seeds": 0}, "tune_seeds is 0: give a whole number"),
    ],
)
def test_mistakes_leave_no_folder(
    lab: Any, here: Path, methods: Any, changes: Any, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        compared(lab, methods, **changes)
    assert not (here / "comparisons").exists()


def test_other_rows_are_another_comparison(
    lab: Any, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compare_module, "_carried_out", lambda plan, *_: plan)
    rows = rows_of(lab.data)
    compared(lab, ["grpo"], out="mine")
    compared(lab, ["grpo"], out="mine")
    with pytest.raises(UserError, match=r"mine was started with other rows \(data\)"):
        compared(lab, ["grpo"], out="mine", data=rows[1:])
    assert rows_of(here / "mine/given/data.jsonl") == rows
    (here / "other/given").mkdir(parents=True)
    with pytest.raises(UserError, match="other has its own given"):
        compared(lab, ["grpo"], out="other")
    assert (here / "other/given").is_dir()


def test_arguments_that_a_killed_call_put_aside_are_those_of_the_comparison(
    lab: Any, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compare_module, "_carried_out", lambda plan, *_: plan)
    rows = rows_of(lab.data)
    compared(lab, ["grpo"], out="mine")
    shutil.copytree(here / "mine/given", here / "mine/given.before")
    (here / "mine/given/data.jsonl").write_text("{}\n")  # of a call that was killed here
    with pytest.raises(UserError, match=r"mine was started with other rows \(data\)"):
        compared(lab, ["grpo"], out="mine", data=rows[1:])
    assert rows_of(here / "mine/given/data.jsonl") == rows
    assert [path.name for path in (here / "mine").glob("given*")] == ["given"]


class Killed(BaseException):
    """Stands for a process that is killed."""


def test_a_kill_while_what_was_put_aside_is_deleted_loses_none_of_it(
    lab: Any, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compare_module, "_carried_out", lambda plan, *_: plan)
    rows, delete = rows_of(lab.data), shutil.rmtree
    compared(lab, ["grpo"], out="mine")

    def killed(place: Path, ignore_errors: bool = False) -> None:
        if not ignore_errors:
            (place / "data.jsonl").unlink()
            raise Killed
        delete(place, ignore_errors=True)

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", killed)
        with pytest.raises(Killed):
            compared(lab, ["grpo"], out="mine")
    with pytest.raises(UserError, match=r"mine was started with other rows \(data\)"):
        compared(lab, ["grpo"], out="mine", data=rows[1:])
    assert rows_of(here / "mine/given/data.jsonl") == rows


def test_another_reward_is_another_comparison(
    lab: Any, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compare_module, "_carried_out", lambda plan, *_: plan)

    def scoring(source: str) -> Any:
        names: dict[str, Any] = {"__name__": "__main__"}
        exec(source, names)
        return names["even"]

    mine = "def even(completions, **columns):\n    return [1.0 for _ in completions]"
    compared(lab, ["grpo"], out="mine", reward=scoring(mine))
    before = (here / "mine/given/even.pickle").read_bytes()
    compared(lab, ["grpo", "rloo"], out="mine", reward=scoring(f"# a line above\n{mine}"))
    with pytest.raises(UserError, match=r"mine was started with other code \(even\)"):
        compared(lab, ["grpo", "rloo"], out="mine", reward=scoring(mine.replace("1.0", "0.5")))
    with pytest.raises(UserError, match="mine holds another comparison"):
        compared(
            lab, ["grpo"], out="mine", reward=scoring(mine), steps=3, score_on=rows_of(lab.data)
        )
    assert (here / "mine/given/even.pickle").read_bytes() == before
    assert sorted(path.name for path in (here / "mine/given").iterdir()) == [
        "data.jsonl", "even.pickle",
    ]  # fmt: skip


def test_a_script_is_not_run_again_in_its_children(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None, raising=False)
    monkeypatch.setattr(sys.modules["__main__"], "__file__", "a_script.py", raising=False)
    with _main_hidden():
        assert not [key for key in get_preparation_data("a run") if key.startswith("init_main")]
    assert [key for key in get_preparation_data("a run") if key.startswith("init_main")]
