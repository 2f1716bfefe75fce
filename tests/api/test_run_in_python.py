"""A run from Python: its steps one by one, stopping, resuming, and the calls that it offers."""

import contextlib
import math
import os
import re
import shutil
import signal
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from typing import Any, cast

import pandas
import pyarrow
import pytest
from models import Lab
from short import column, lines, rows_of, trained

import strop
from strop import UserError
from strop.api import run as module
from strop.api.run import Step
from strop.evaluation.samples import Estimate


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """With two layers, which here write no newlines."""
    return Lab.make(tmp_path_factory.mktemp("lab"), layers=2)


@pytest.fixture(scope="module")
def whole(lab: Any, tmp_path_factory: pytest.TempPathFactory) -> strop.Run:
    return trained(lab, out=tmp_path_factory.mktemp("whole") / "run", data_validation_size=2)


def test_steps_one_by_one_are_those_of_the_whole(lab: Any, here: Any, whole: Any) -> None:
    run = trained(lab, start=False, data_validation_size=2)
    assert (run.steps_done, run.finished) == (0, False)
    first = next(iter(run))
    assert (first.number, first["reward"]) == (1, first.metrics["reward"])
    seen = [step.number for step in run]
    assert seen == [2, 3]
    assert run.finished
    assert lines(run.folder) == lines(whole.folder)
    assert [*run] == []
    assert (run.folder / "report.html").is_file()


def test_leaving_the_loop_saves_and_another_goes_on(lab: Any, here: Any, whole: Any) -> None:
    with trained(lab, start=False, data_validation_size=2, training_save_every=0) as run:
        for step in run:
            if step.number == 2:
                break
        assert [path.name for path in (run.folder / "checkpoints").iterdir()] == ["step-000002"]
    with pytest.raises(UserError, match=r"was closed after step 2: resume it with strop\.resume"):
        run.train()
    other = strop.resume(run, progress=False)
    assert lines(other.folder) == lines(whole.folder)
    more = strop.resume(str(run.folder), training_steps=4, progress=False)
    assert (more.steps_done, len(lines(more.folder))) == (4, 4)
    with pytest.raises(UserError, match=r"a resumed run .* leave training\.lr out"):
        strop.resume(run, training_lr=1.0)


def test_a_callback_sees_every_step_and_stops(lab: Any, here: Any, whole: Any) -> None:
    seen: list[int] = []

    def watch(step: strop.Step) -> None:
        seen.append(step.number)
        assert not (step.run.folder / "end.json").exists()  # also after it has ended once
        if step.number == 2:
            step.run.stop()

    run = trained(lab, callbacks=[watch], data_validation_size=2)
    assert (seen, run.finished, run.steps_done) == ([1, 2], False, 2)
    run.train()
    assert (seen, run.finished) == ([1, 2, 3], True)
    assert lines(run.folder) == lines(whole.folder)


def test_one_that_goes_on_elsewhere_is_closed(lab: Any, here: Any, whole: Any) -> None:
    """Two of one folder would write over each other."""
    run = trained(lab, start=False, data_validation_size=2, training_save_every=0)
    next(iter(run))
    other = strop.resume(str(run.folder), progress=False)
    assert lines(other.folder) == lines(whole.folder)
    with pytest.raises(UserError, match="was closed after step 1"):
        run.train()
    assert lines(other.folder) == lines(whole.folder)
    left = trained(lab, start=False)
    next(iter(left))
    module._close_all()  # as at the end of a script
    assert left._session.closed
    assert (left.folder / "checkpoints/step-000001").is_dir()


def test_a_run_that_nobody_has_is_closed(lab: Any, here: Any) -> None:
    seen: list[strop.Run] = []

    def raises(step: strop.Step) -> None:
        seen.append(step.run)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        trained(lab, callbacks=raises)
    (run,) = seen
    assert run._session.closed
    assert run.steps_done == 1
    assert (run.folder / "checkpoints/step-000001").is_dir()
    with pytest.raises(UserError, match="a callback is str: give functions"):
        trained(lab, callbacks="print")


def test_a_fork_does_not_go_on_with_its_parents_run(lab: Any, here: Any) -> None:
    run = trained(lab, start=False)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            with contextlib.suppress(UserError):
                run.train()
            run.close()
            os.write(writing, str(run.steps_done).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reading, 10) == b"0"
    assert run.train().steps_done == 3
    with run.folder.joinpath("metrics.jsonl").open() as lines_of_run:
        assert len(list(lines_of_run)) == 3


@pytest.fixture
def interruptible() -> Iterator[None]:
    """As in a terminal, also where the tests were begun in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_finishes_the_step_and_saves(lab: Any, here: Any, whole: Any) -> None:
    run = trained(
        lab, start=False, data_validation_size=2,
        callbacks=[lambda step: step.number == 1 and os.kill(os.getpid(), signal.SIGINT)],
    )  # fmt: skip
    with pytest.raises(KeyboardInterrupt):
        run.train()
    assert run.steps_done == 1
    assert (run.folder / "checkpoints/step-000001").is_dir()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    run.train()
    assert lines(run.folder) == lines(whole.folder)


def test_a_folder_tells_what_the_run_would(whole: Any) -> None:
    again = strop.Run(whole.folder)
    assert repr(again) == f"Run('{whole.folder}': grpo, step 3/3)"
    for run in (whole, again):
        table = run.metrics
        assert column(table, "step") == [1, 2, 3]
        assert column(table, "reward") == [x["reward"] for x in lines(whole.folder)]
        assert column(run.rollouts, "step") == [3] * 8
    with pytest.raises(UserError, match=r"is not being trained here: resume it with strop\.resume"):
        _ = again.model
    with pytest.raises(UserError, match=r"is not a run: it has no config\.toml"):
        strop.Run(whole.folder.parent)


def test_scores_and_answers_are_those_of_the_command(
    whole: Any, strop_command: Any, here: Any
) -> None:
    words = ["--split", "validation", "--k", "1,2", "--samples", "4", "--trust-files", "--json"]
    said = strop_command("eval", whole.folder, *words).out
    titled = strop_command("eval", whole.folder, *words[:-1], "--max-tokens", "3").out
    assert "validation, at most 3 new tokens" in " ".join(titled.split())
    found = whole.evaluate(split="validation", k=(1, 2), samples=4)
    assert f'"pass@2": {found["pass@2"]}' in said
    assert found.estimates["num_rollouts"].value == 8
    assert "pass@2" in repr(found)
    assert "<td" in found._repr_html_()
    assert "mean@4" in column(found.table, "name")
    answers = whole.sample("3+2:", 3, seed=1)
    told = strop_command("sample", whole.folder, "3+2:", "-n", "3", "--seed", "1").out
    assert [f"{answer.logp:8.3f}  {answer.text}" for answer in answers] == [
        re.sub(r"  \(cut off at \d+ tokens\)", "", line) for line in told.splitlines()
    ]
    # This process has trained it, so its function may be used by the folder's name, too; a copy
    # of it, or a file that says something else, is somebody else's.
    by_name = strop.evaluate(str(whole.folder), split="validation", k=(1, 2), samples=4)
    assert by_name["pass@2"] == found["pass@2"]
    copy = here / "received"
    shutil.copytree(whole.folder, copy)
    for path in (copy, strop.Run(copy)):
        with pytest.raises(UserError, match=r"names .*, .* allow it with trust_files=True"):
            strop.evaluate(path, split="validation")
    text = (whole.folder / "config.toml").read_text()
    try:
        (whole.folder / "config.toml").write_text(text + "\n")
        with pytest.raises(UserError, match="trust_files=True"):
            strop.evaluate(whole.folder, split="validation")
    finally:
        (whole.folder / "config.toml").write_text(text)
    with pytest.raises(UserError, match=r"k=8 needs .* samples: give samples=8, or k=4"):
        whole.evaluate(samples=4, k=8)
    assert {"pass@1", "pass@2"} <= {*whole.evaluate(split="validation", samples=2).estimates}
    with pytest.raises(UserError, match="prompts=-1: give a number of prompts, or 0 for all"):
        whole.evaluate(prompts=-1)
    for call in (lambda: whole.evaluate(samples=2**31), lambda: whole.sample("1+1:", 2**31)):
        with pytest.raises(UserError, match="2147483648 answers to a prompt: give 1 to 1048576"):
            call()
    for call in (lambda: whole.evaluate(samples=-1), lambda: whole.sample("1+1:", -1)):
        with pytest.raises(UserError, match="-1 answers to a prompt: give 1 to 1048576"):
            call()
    for k in (float("inf"), [[1]], (), "1", len):
        with pytest.raises(UserError, match=r"k is .*: give whole numbers of at least 1"):
            whole.evaluate(k=k)


def test_a_loaded_model_and_rows_are_scored(lab: Any, whole: Any) -> None:
    rows = rows_of(lab.data)[:3]
    given = {"data": rows, "k": 2, "samples": 2, "rollout_max_tokens": 4, "seed": 1}
    ones = lambda completions, **_: [1.0] * len(completions)  # noqa: E731
    found = strop.evaluate(whole.model, reward=ones, tokenizer=whole.tokenizer, **given)
    assert (found["pass@2"], found["num_rollouts"]) == (1.0, 6)
    assert found.title == "Qwen3ForCausalLM on data train"


def test_a_score_without_a_value_is_shown() -> None:
    """As a calibration of answers that all are right; one prompt gives no interval."""
    none = math.nan
    estimates = {
        "calibration/auc": Estimate(none, none, none, 4), "pass@1": Estimate(0.5, none, none, 1),
        "pass@2": Estimate(0.5, 0.25, 0.75, 4),
    }  # fmt: skip
    found = strop.Evaluation("it", estimates, 0)
    assert [line.split()[1:] for line in repr(found).splitlines()[1:]] == [
        ["-"], ["0.500"], ["0.500", "(0.250", "to", "0.750)"],
    ]  # fmt: skip
    assert repr(found).splitlines()[0] == "it"
    with pytest.raises(KeyError, match=r"no score pass@3: there are pass@"):
        found["pass@3"]


def test_prompts_that_are_left_out_are_told() -> None:
    found = strop.Evaluation("it", {}, 2)
    assert repr(found) == "it, 2 prompts left out at the largest k: too few scored answers"
    assert "2 prompts left out" in found._repr_html_()


def test_curves_are_drawn(whole: Any) -> None:
    plot = whole.plot()
    assert repr(plot).startswith("Plot(Reward, Entropy")
    drawn = ElementTree.fromstring(plot.svg)
    assert drawn.tag.endswith("svg")
    one = whole.plot("reward")
    (trace,) = one.charts[0].data
    assert trace["y"] == [float(f"{x['reward']:.5g}") for x in lines(whole.folder)]
    assert one.svg.count("<polyline") == 1
    with pytest.raises(UserError, match="No such file"):
        one.save(whole.folder / "nowhere/one.svg")
    with pytest.raises(UserError, match="path is 3: give a path"):
        one.save(3)
    with pytest.raises(UserError, match="no number 'rewards' was recorded, did you mean reward"):
        whole.plot("rewards")
    with pytest.raises(UserError, match="3 is no name of a number"):
        whole.plot(3)


def test_tables_are_pandas_or_arrow(whole: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(whole.metrics, pandas.DataFrame)
    assert str(whole.metrics["step"].dtype) == "int64"
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for table in (whole.metrics, whole.rollouts):
        assert isinstance(table, pyarrow.Table)
    assert column(whole.rollouts, "scored") == [True] * 8


def test_a_metric_that_a_step_lacks_is_answered_with_those_it_has() -> None:
    step: Any = Step(2, {"loss": 0.5, "reward": 1.0}, cast(Any, None))
    with pytest.raises(KeyError, match="step 2 has no metric los: it has loss, reward"):
        step["los"]
