"""TensorBoard's event files of real runs, read back with its own reader."""

import json

import pyarrow.parquet as pq
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from strop.tracking.base import RunInfo, Samples
from strop.tracking.to_tensorboard import ToTensorboard
from strop.tracking.watch import read_ids


@pytest.fixture
def raw(lab):
    return lab.raw(tracking={"to": ["tensorboard"], "samples": 3}, evaluation={"every": 2})


def read(folder):
    """Scalars by name and step, texts by name and step."""
    found = EventAccumulator(str(folder / "tensorboard"), size_guidance={"tensors": 0})
    found.Reload()
    scalars = {
        name: {event.step: event.value for event in found.Scalars(name)}
        for name in found.Tags()["scalars"]
    }
    texts = {
        name.partition("/")[0]: {
            event.step: event.tensor_proto.string_val[0].decode() for event in found.Tensors(name)
        }
        for name in found.Tags()["tensors"]
    }
    return scalars, texts


def lines(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def check(folder, steps):
    """Every number of metrics.jsonl is there, once, at its step, and no other."""
    scalars, texts = read(folder)
    logged = {line["step"]: line for line in lines(folder)}
    assert sorted(logged) == [0, *range(1, steps + 1)]
    wanted: dict[str, dict[int, float]] = {}
    for step, line in logged.items():
        for name, value in line.items():
            if name != "step" and value is not None:
                wanted.setdefault(name, {})[step] = pytest.approx(value, rel=1e-6)
    assert scalars == wanted
    assert len(wanted) > 40
    return texts


def test_a_run_is_told_whole(runner, raw, tmp_path):
    runner.whole(raw, tmp_path / "run")
    texts = check(tmp_path / "run", 3)
    assert (tmp_path / "run" / "config.toml").read_text() in texts["config"][0]
    assert sorted(texts["rollouts"]) == [1, 2, 3]
    rows = pq.read_table(tmp_path / "run" / "rollouts" / "step-000002.parquet").to_pylist()
    table = texts["rollouts"][2].splitlines()
    assert table[0].startswith("| prompt | completion | reward | reward/digits | advantage |")
    assert len(table) == 2 + 3
    for line, row in zip(table[2:], (rows[0], rows[2], rows[5]), strict=True):  # of 8, spread
        assert f"| {row['reward']:.4g} |" in line
        assert line.startswith(f"| {row['prompt']} | ")
    assert read_ids(tmp_path / "run") == {"tensorboard": "tensorboard"}


def test_a_run_that_was_stopped_goes_on_in_the_same_one(runner, raw, tmp_path):
    """It saves at step 2 only, and breaks off behind step 3: of that one later numbers count."""
    folder = tmp_path / "run"
    raw["training"] = {**raw["training"], "steps": 5, "save_every": 2}

    def break_off(run):
        if run.done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        runner.go(runner.start(raw, folder), break_off)
    assert sorted(read(folder)[0]["reward"]) == [1, 2, 3]
    runner.go(runner.resume(folder))
    check(folder, 5)
    assert len(list((folder / "tensorboard").iterdir())) == 2


def test_a_run_that_is_tracked_later_tells_what_was_before(runner, raw, tmp_path):
    folder = tmp_path / "run"
    untracked = {**raw, "tracking": {}}
    runner.whole(untracked, folder)
    assert not (folder / "tensorboard").exists()
    runner.go(runner.resume(folder, training={"steps": 4}, tracking={"to": ["tensorboard"]}))
    check(folder, 4)


def test_texts_are_made_harmless(tmp_path):
    tracker = ToTensorboard(RunInfo(tmp_path, "strop", "run", {}, "seed = 1\n"))
    tracker.samples(4, Samples(["prompt", "reward"], [["a|b\n<i>&c", 0.25], [None, None]]))
    tracker.end(True)
    table = read(tmp_path)[1]["rollouts"][4].splitlines()
    assert table[2:] == ["| a&#124;b<br>&lt;i>&amp;c | 0.25 |", "| None | None |"]
