"""The layer between a run and its trackers: order, ids, and that a broken tracker does no harm."""

import importlib.util
import json
import threading
import time

import pytest
from commands import Strop
from models import Lab, without_times

from strop.support.errors import UserError
from strop.support.files import flat
from strop.tracking import watch
from strop.tracking.base import TRACKERS, Tracker
from strop.tracking.to_mlflow import plain
from strop.tracking.watch import sampled
from strop.training.settings import config

HEARD: list[tuple] = []
HELD = threading.Event()


class Listening(Tracker):
    """Keeps what it is told."""

    def __init__(self, told):
        super().__init__(told)
        self.id = told.id or f"id-{len(HEARD)}"
        HEARD.append(("begin", told))

    def metrics(self, step, values):
        HEARD.append(("metrics", step, values))

    def samples(self, step, samples):
        HEARD.append(("samples", step, samples))

    def end(self, ok):
        HEARD.append(("end", ok))


class Breaking(Listening):
    def metrics(self, step, values):
        if step == 2:
            raise RuntimeError("no such\nserver")
        super().metrics(step, values)


class Slow(Listening):
    def metrics(self, step, values):
        time.sleep(0.02)
        super().metrics(step, values)


class Refusing(Listening):
    def __init__(self, told):
        raise ValueError("no key")


class Leaving(Listening):
    def __init__(self, told):
        raise SystemExit("no licence")


class Hanging(Listening):
    def metrics(self, step, values):
        HELD.wait(20)


@pytest.fixture
def told(monkeypatch):
    """`told(Class, ...)`: these stand in the places of tensorboard, wandb, ...; what was heard."""
    HEARD.clear()
    HELD.clear()

    def put(*classes):
        for kind, each in zip(TRACKERS, classes, strict=False):
            monkeypatch.setitem(TRACKERS, kind, f"{__name__}:{each.__name__}")
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
        return {"to": [*TRACKERS][: len(classes)]}

    yield put
    HELD.set()
    for thread in threading.enumerate():  # what still hangs would be heard by the next test
        if thread.name in [f"strop-{kind}" for kind in TRACKERS]:
            thread.join(1)


def test_what_a_tracker_hears(told, runner, lab, tmp_path):
    tracking = {**told(Listening), "project": "mine", "samples": 2}
    runner.whole(lab.raw(tracking=tracking, evaluation={"every": 3}), tmp_path / "run")
    kinds = [heard[0] for heard in HEARD]
    assert kinds == ["begin", "metrics", *["metrics", "samples"] * 3, "end"]
    started = HEARD[0][1]
    assert (started.project, started.name, started.step, started.id) == ("mine", "run", 0, "")
    assert started.text == (tmp_path / "run" / "config.toml").read_text()
    assert started.config["training.lr"] == 0.01
    assert started.config["algorithm.rollout.sample_independently.max_tokens"] == 6
    logged = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    for line, heard in zip(logged, [h for h in HEARD if h[0] == "metrics"], strict=True):
        assert {"step": heard[1], **heard[2]} == json.loads(line)
    columns, rows = HEARD[3][2]
    assert columns[:4] == ["prompt", "completion", "reward", "reward/digits"]
    assert len(rows) == 2
    assert HEARD[-1] == ("end", True)


def test_several_at_once_and_one_that_breaks(told, runner, lab, tmp_path):
    """The run and the other tracker lose nothing, and it is said once."""
    tracking = told(Breaking, Listening)
    run = runner.start(lab.raw(tracking=tracking), tmp_path / "run")
    watcher = runner.go(run)
    assert run.finished
    plain_run = runner.whole(lab.raw(), tmp_path / "plain")
    assert plain_run.finished
    assert without_times(tmp_path / "run") == without_times(tmp_path / "plain")
    steps = [heard[1] for heard in HEARD if heard[0] == "metrics"]
    assert sorted(steps) == [1, 1, 2, 3]
    assert [heard[0] for heard in HEARD].count("end") == 1
    (note,) = watcher.notes
    assert note == (
        "the tracker tensorboard gets no more data: RuntimeError: no such server; the run "
        "continues, and metrics.jsonl has everything"
    )


def test_one_that_hangs_holds_nothing_up(told, runner, lab, tmp_path, monkeypatch):
    monkeypatch.setattr(watch, "END_SECONDS", 0.2)
    run = runner.start(lab.raw(tracking=told(Hanging)), tmp_path / "run")
    watcher = runner.go(run)
    assert run.finished
    assert "it is still sending, and the run does not wait for it" in watcher.notes[0]
    monkeypatch.setattr(watch, "MOST_BEHIND", 2)
    again = runner.start(lab.raw(tracking=told(Hanging)), tmp_path / "again")
    watcher = runner.go(again)
    assert again.finished
    assert "it is 2 calls behind" in watcher.notes[0]


@pytest.mark.parametrize("error", [RuntimeError("no server"), SystemExit(1)])
def test_an_error_of_any_kind_is_reported(error):
    def fail(tracker):
        raise error

    line = watch.Line("x", Tracker(watch.RunInfo(None, "p", "n", {}, "")))
    line.send(fail)
    line.end(True, time.monotonic() + 10)
    assert f"x gets no more data: {type(error).__name__}: {error}" in line.complaint()


def test_the_last_call_of_one_that_hangs_takes_the_last_place(monkeypatch):
    """Its end comes when as many calls wait as may wait: nothing waits for room among them."""
    monkeypatch.setattr(watch, "MOST_BEHIND", 2)
    over = threading.Event()
    line = watch.Line("x", None)
    line.send(lambda tracker: over.wait())
    while not line._calls.empty():
        time.sleep(0.001)
    line.send(lambda tracker: None)
    line.end(True, by=time.monotonic())
    over.set()
    assert line.why.startswith("it is still sending")


@pytest.mark.parametrize(
    ("second", "why"), [(Refusing, "ValueError: no key"), (Leaving, "SystemExit: no licence")]
)
def test_one_that_cannot_be_had_stops_the_run_before_it_begins(
    told, strop: Strop, lab: Lab, tmp_path, second, why
):
    told(Listening, second)
    words = ["train", *lab.arguments(), "--track", "tensorboard", "--track", "wandb"]
    found = strop(*words, "--out", tmp_path / "run")
    assert found.code == 2
    assert f"wandb cannot log the run: {why}; fix it, or leave" in found.err
    assert not (tmp_path / "run").exists()
    assert [heard[0] for heard in HEARD] == ["begin", "end"]  # the first, and that it failed
    assert HEARD[-1] == ("end", False)


def test_a_package_that_is_not_installed_is_named_with_its_extra(
    strop: Strop, lab: Lab, tmp_path, monkeypatch
):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    words = ["train", *lab.arguments(), "--track", "mlflow", "--out", tmp_path / "run"]
    found = strop(*words)
    assert found.code == 2
    assert "the package mlflow is not installed: pip install 'strop[mlflow]'" in found.err
    assert not (tmp_path / "run").exists()


def test_a_tracker_that_there_is_not(strop: Strop, lab: Lab, tmp_path):
    found = strop("train", *lab.arguments(), "--track", "wandbb", "--out", tmp_path / "run")
    assert found.code == 2
    assert "'tensorboard', 'wandb', 'trackio' or 'mlflow'" in found.err


def test_one_that_is_named_twice_hears_everything_once(told, runner, lab, tmp_path):
    (kind,) = told(Listening)["to"]
    runner.whole(lab.raw(tracking={"to": [kind, kind]}), tmp_path / "run")
    assert [heard[1] for heard in HEARD if heard[0] == "metrics"] == [1, 2, 3]


def test_a_resumed_run_has_the_same_ids(told, runner, lab, tmp_path):
    tracking = told(Listening, Listening)
    runner.whole(lab.raw(tracking=tracking), tmp_path / "run")
    ids = watch.read_ids(tmp_path / "run")
    assert len(set(ids.values())) == 2
    HEARD.clear()
    runner.go(runner.resume(tmp_path / "run", training={"steps": 4}))
    started = [heard[1] for heard in HEARD if heard[0] == "begin"]
    assert [(each.id, each.step) for each in started] == [(id, 3) for id in ids.values()]
    assert [heard[1] for heard in HEARD if heard[0] == "metrics"] == [4, 4]
    (tmp_path / "run" / watch.NAME).write_text("{")
    with pytest.raises(UserError, match=r"tracking\.json is damaged: repair it, or remove it"):
        watch.read_ids(tmp_path / "run")


def test_one_that_comes_later_hears_what_was_before(told, runner, lab, tmp_path, monkeypatch):
    """However many steps that are: it has not fallen behind by them."""
    runner.whole(lab.raw(training={"steps": 6, "save_every": 0}), tmp_path / "run")
    monkeypatch.setattr(watch, "MOST_BEHIND", 4)
    run = runner.resume(tmp_path / "run", training={"steps": 7}, tracking=told(Slow))
    assert runner.go(run).notes == []
    assert [heard[1] for heard in HEARD if heard[0] == "metrics"] == [*range(1, 8)]


def test_answers_are_shown_on_request(strop: Strop, lab: Lab, tmp_path):
    folder = tmp_path / "run"
    words = lab.arguments("training.rollouts_every=2")
    found = strop("train", *words, "--answers", "3", "--out", folder)
    assert found.code == 0
    assert "answers of step 1" not in found.out
    for step in (2, 3):
        title = found.out.index(f"answers of step {step}")
        samples = sampled(folder, step, 3)
        assert samples is not None
        for prompt, _, reward, *_ in samples.rows:
            assert prompt in found.out[title:]
            assert f"{reward:.3f}" in found.out[title:]


def test_one_is_given_to_a_run_that_goes_on(told, strop: Strop, runner, lab: Lab, tmp_path):
    folder = tmp_path / "run"
    runner.whole(lab.raw(), folder)
    told(Listening)
    found = strop("train", "--resume", folder, "--track", "tensorboard", "training.steps=4")
    assert found.code == 0, found.err
    assert [heard[1] for heard in HEARD if heard[0] == "metrics"] == [1, 2, 3, 4]
    assert config.load(folder / "config.toml").tracking.to == ("tensorboard",)


def test_names_for_mlflow():
    assert plain("eval/validation/pass@8/low") == "eval.validation.pass_at_8.low"
    assert plain("//odd//{name}/../ü!") == "odd.ü_"
    assert plain("..") == "_"
    assert len(plain("x" * 999)) == 250


def test_settings_are_flat_and_names_are_their_paths():
    made = config.make({"recipe": "grpo", "algorithm": {"rollout.max_tokens": 7}})
    found = dict(flat(made.model_dump(mode="json")))
    assert (found["recipe"], found["algorithm.rollout.max_tokens"]) == ("grpo", 7)
    assert found["training.betas"] == [0.9, 0.95]
