"""Engines come from one table: a kind of engine is a class of settings, wherever it is opened."""

import math
from typing import ClassVar

import pytest
from fakes.brittle import BrittleSettings
from models import without_times

from strop.api.inference import open_model
from strop.engines import open as engines
from strop.engines.local.engine import LocalEngine
from strop.engines.open import EngineSettings
from strop.support.errors import UserError
from strop.training.learner import models
from strop.training.settings import config
from strop.training.settings.assignments import override


class DeepEngine(LocalEngine):
    """A local engine of another kind; `closed` counts how often it was let go."""

    closed = 0

    def close(self) -> None:
        DeepEngine.closed += 1


class DeepSettings(EngineSettings):
    """An engine with a setting of its own."""

    depth: int = 1

    def open(self, model, tokenizer, *, num_slots, context_length):
        found = DeepEngine(model, tokenizer, num_slots=num_slots, context_length=context_length)
        found.depth = self.depth
        return found


@pytest.fixture
def deep(monkeypatch):
    """The table with one more line."""
    monkeypatch.setitem(engines.ENGINES, "deep", DeepSettings)
    monkeypatch.setattr(DeepEngine, "closed", 0)


def with_engine(lab, **settings):
    return lab.raw("grpo", reward="even", engine=settings)


def test_a_kind_has_its_own_settings_in_the_file_and_on_the_command_line(lab, deep, tmp_path):
    raw = override(with_engine(lab), ["engine.kind=deep", "engine.depth=3"])
    made = config.make(raw)
    assert made.engine == DeepSettings(kind="deep", depth=3)
    (tmp_path / "run.toml").write_text(made.to_toml())
    assert config.load(tmp_path / "run.toml") == made
    assert {"engine.kind", "engine.staleness", "engine.depth"} <= config.settings().keys()


def test_what_is_wrong_is_named(lab, deep):
    with pytest.raises(
        UserError, match=r"engine.kind = 'dep': no such engine; there are local, .*deep"
    ):
        config.make(with_engine(lab, kind="dep"))
    with pytest.raises(UserError, match=r"no option engine.staleness; engine.kind=local has it"):
        config.make(with_engine(lab, kind="deep", staleness=2))
    with pytest.raises(UserError, match=r"no option engine.depth; engine.kind=deep has it"):
        config.make(with_engine(lab, depth=2))
    with pytest.raises(UserError, match=r"engine.staleness = -1: Input should be greater"):
        config.make(with_engine(lab, staleness=-1))


def test_training_evaluation_and_sampling_open_it(lab, deep, runner, tmp_path):
    run = runner.whole(with_engine(lab, kind="deep", depth=3), tmp_path / "run")
    assert type(run.world.engine) is DeepEngine
    assert run.world.engine.depth == 3
    assert run.world.services.sampling.engine is run.world.engine
    assert DeepEngine.closed > 0
    runner.whole(with_engine(lab), tmp_path / "local")
    assert without_times(tmp_path / "run") == without_times(tmp_path / "local")

    before = DeepEngine.closed
    with open_model(str(tmp_path / "run"), trust=True) as subject:
        assert (type(subject.engine), subject.engine.depth) == (DeepEngine, 3)
        assert len(subject.answer("1+1:", num_samples=2, seed=0)) == 2
    assert DeepEngine.closed == before + 1


def test_scores_of_a_checkpoint_are_of_its_weights_whatever_the_age(lab, runner, tmp_path):
    runner.whole(with_engine(lab, staleness=2), tmp_path / "run")
    with open_model(str(tmp_path / "run"), trust=True) as subject:
        assert type(subject.engine) is LocalEngine


def test_a_cache_with_less_room_gives_the_same_run(lab, runner, tmp_path):
    """Eight answers to prompts of four tokens, ten tokens each at most; three of ten fit."""
    runner.whole(with_engine(lab), tmp_path / "whole")
    with pytest.raises(UserError, match=r"cache_tokens is 9, but .* come to (\d+) tokens: raise"):
        runner.whole(with_engine(lab, cache_tokens=9), tmp_path / "none")
    run = runner.whole(with_engine(lab, cache_tokens=30), tmp_path / "bounded")
    cache = run.world.engine.slots.cache
    assert cache.max_tokens == 30
    assert 0 < cache.lines * cache.places <= 30
    a, b = (without_times(tmp_path / name) for name in ("whole", "bounded"))
    for one, other in zip(a, b, strict=True):
        assert one == pytest.approx(other, rel=1e-4, abs=1e-6, nan_ok=True)


@pytest.mark.parametrize(("before", "after"), [(1, 0), (0, 1)])
def test_a_checkpoint_of_an_engine_with_other_weights_is_refused(
    before, after, lab, runner, tmp_path
):
    runner.whole(with_engine(lab, staleness=before), tmp_path / "run")
    with pytest.raises(UserError, match=r"holds weights .*engine.staleness"):
        runner.resume(tmp_path / "run", engine={"staleness": after})


@pytest.mark.parametrize("recipe", ["grpo", "remax", "spo_tree"])
def test_requests_that_fail_cost_their_rollouts_and_no_more(
    recipe, lab, runner, tmp_path, monkeypatch
):
    monkeypatch.setitem(engines.ENGINES, "brittle", BrittleSettings)
    raw = lab.raw(recipe, reward="even", engine={"kind": "brittle"})
    runner.whole(raw, tmp_path / "run")
    lines = without_times(tmp_path / "run")
    assert len(lines) == 3
    for line in lines:
        assert line["rollout/requests_failed"] > 0
        assert 0 <= line["rewards/frac_unscored"] < 1
        assert all(math.isfinite(value) for value in line.values() if isinstance(value, float))
    first = lines[0]
    if recipe == "grpo":  # two prompts, four answers each
        assert first["rollout/requests_failed"] == 2
        assert first["rewards/frac_unscored"] == 2 / 8


class RemoteSettings(EngineSettings):
    """An engine with a model of its own, as a server has."""

    needs_model: ClassVar[bool] = False
    folder: str = ""

    def open(self, model, tokenizer, *, num_slots, context_length):
        assert model is None
        own = models.load(self.folder).model
        return LocalEngine(own, tokenizer, num_slots=num_slots, context_length=context_length)


def test_an_engine_with_a_model_of_its_own_needs_none_here(lab, monkeypatch, tmp_path):
    monkeypatch.setitem(engines.ENGINES, "remote", RemoteSettings)
    with open_model(str(lab.model), task="countdown") as subject:
        expected = subject.answer("1,2,3:6=", num_samples=3, seed=1)
        plain = subject.loaded
    written = f"remote(folder='{lab.model}')"
    with open_model(str(lab.model), task="countdown", engine=written) as subject:
        assert all(p.is_meta for p in subject.loaded.model.parameters())
        assert subject.loaded.stop_ids == plain.stop_ids
        assert subject.loaded.context == plain.context
        assert subject.answer("1,2,3:6=", num_samples=3, seed=1) == expected


def test_the_engine_of_a_command_is_read_as_it_is_written(lab):
    with pytest.raises(UserError, match=r"engine.kind = 'sglang': no such engine; there are local"):
        open_model(str(lab.model), engine="sglang(url='http://here')")
    with pytest.raises(
        UserError, match=r"no option engine.url; engine.kind=completions or vllm or tinker has it"
    ):
        open_model(str(lab.model), engine="local(url='http://here')")
