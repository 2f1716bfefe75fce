"""Runs whose engine drafts: the same answers, and the drafts' statistics in the metrics."""

import pytest
from models import Lab, without_times

from strop.engines.local import speculation

OWN = ("drafts/tokens", "drafts/frac_accepted")


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """With two layers, whose answers repeat themselves: so there is something to draft."""
    return Lab.make(tmp_path_factory.mktemp("lab"), layers=2)


@pytest.fixture(autouse=True)
def eager(monkeypatch):
    """Whatever is known is drafted, so that a model which knows nothing drafts too."""
    monkeypatch.setattr(speculation, "STEP", 1e9)


@pytest.mark.parametrize("recipe", ["grpo", "rose_tree"])
def test_drafts_give_the_same_run(recipe, lab, runner, tmp_path):
    runner.whole(lab.raw(recipe, reward="even"), tmp_path / "plain")
    run = runner.whole(lab.raw(recipe, reward="even", engine={"speculate": 3}), tmp_path / "drafts")
    assert run.world.engine.drafts[0] > 0
    plain, drafts = (without_times(tmp_path / name) for name in ("plain", "drafts"))
    made = [{name: line.pop(name) for name in OWN if name in line} for line in drafts]
    for one, other in zip(plain, drafts, strict=True):
        assert not set(OWN) & set(one)
        assert one == pytest.approx(other, rel=1e-4, abs=1e-6, nan_ok=True)
    assert sum(line.get("drafts/tokens", 0) for line in made) > 0
    assert all(0 <= line["drafts/frac_accepted"] <= 1 for line in made if line)


def test_a_run_that_goes_on_drafts_as_if_it_had_not_stopped(lab, runner, tmp_path):
    raw = lab.raw("grpo", reward="even", engine={"speculate": 3})
    runner.whole(raw, tmp_path / "whole")
    half = {**raw, "training": {**raw["training"], "steps": 1}}
    runner.whole(half, tmp_path / "half")
    run = runner.resume(tmp_path / "half", training={"steps": raw["training"]["steps"]})
    runner.go(run)
    assert run.done == raw["training"]["steps"] > 1
    whole, resumed = (without_times(tmp_path / name) for name in ("whole", "half"))
    assert [line.get(OWN[0]) for line in whole] == [line.get(OWN[0]) for line in resumed]
    assert whole[-1] == pytest.approx(resumed[-1], rel=0, abs=0, nan_ok=True)


def test_collected_in_another_process(lab, runner, tmp_path):
    raw = lab.raw("grpo", reward="even", engine={"speculate": 3})
    raw["training"] |= {"max_staleness": 1}
    # that process drafts what pays: the answers of a cold model repeat themselves
    raw["algorithm"] |= {"rollout.max_tokens": 24, "rollout.temperature": 0.1}
    runner.whole(raw, tmp_path / "run")
    assert sum(line.get(OWN[0], 0) for line in without_times(tmp_path / "run")) > 0
