"""A method's needs of the engine are checked before the run; nothing is silently left out."""

import math

import pytest
import torch
from fakes.engine import TableEngine, by_last_token
from fakes.services import FakeSampling, FakeServices, FakeTexts, rolled_out
from models import without_times

from strop.api.inference import open_model
from strop.engines import open as engines
from strop.engines.asynchronous import asynchronous
from strop.engines.base import CAPABILITIES, Request
from strop.engines.local.engine import LocalEngine
from strop.engines.open import EngineSettings
from strop.method.engine_needs import check
from strop.method.part import Draw, Use
from strop.parts.rollout.sample_independently import SampleIndependently
from strop.support.errors import UserError
from strop.training.settings import config


class PoorEngine(LocalEngine):
    """A local engine that refuses what it is said to lack."""

    def start(self, id, request, source=None):
        assert request.want <= self.capabilities
        assert "rules" in self.capabilities or not request.rules
        super().start(id, request, source)

    def load_weights(self, state, version):
        if "weights" not in self.capabilities:
            raise UserError("this engine has weights of its own")
        super().load_weights(state, version)


class PoorSettings(EngineSettings):
    lacks: str = ""

    def open(self, model, tokenizer, *, num_slots, context_length):
        found = PoorEngine(model, tokenizer, num_slots=num_slots, context_length=context_length)
        found.capabilities = CAPABILITIES - set(self.lacks.split())
        return found


@pytest.fixture(autouse=True)
def poor(monkeypatch):
    monkeypatch.setitem(engines.ENGINES, "poor", PoorSettings)


def without(lab, recipe, lacks, **more):
    return lab.raw(recipe, reward="even", engine={"kind": "poor", "lacks": lacks}, **more)


@pytest.mark.parametrize(
    ("recipe", "lacks", "part", "why"),
    [
        ("hapo", "entropy", "rollout.sample_at_entropy_temperature", "reads entropy_behavior_T"),
        ("hapo", "rules", "rollout.sample_at_entropy_temperature", "needs 'rules'"),
        ("rose_tree", "top", "rollout.branch_at_uncertainty", "needs 'top'"),
        ("spae", "top", "probes.probe_answers", "needs 'top'"),
        ("gtpo_conflict", "entropy", "control.carry_metric_forward", "needs 'entropy'"),
        ("adaptive_entropy_coef", "entropy", "control.hold_entropy_with_coefficient", "needs"),
    ],
)
def test_a_run_that_would_lack_something_does_not_begin(
    recipe, lacks, part, why, lab, runner, tmp_path
):
    expected = rf"{part} {why}.*, and the engine 'poor' has no '{lacks}' \(it has .*\): take"
    with pytest.raises(UserError, match=expected):
        runner.start(without(lab, recipe, lacks), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("recipe", "has"),
    [("hapo", "rules entropy"), ("rose_tree", "top"), ("spo_tree", "logp_model"), ("spae", "top")],
)
def test_what_a_method_says_is_all_that_it_needs(recipe, has, lab, runner, tmp_path):
    """Two steps on an engine with so much and no more."""
    lacks = " ".join(CAPABILITIES - {"weights", *has.split()})
    raw = without(lab, recipe, lacks, training={"steps": 2, "save_every": 0})
    run = runner.whole(raw, tmp_path / "run")
    assert run.done == 2


def test_options_decide_what_is_needed(lab, runner, tmp_path):
    """Rules are needed where a rule is set, and nothing else of the engine is."""
    runner.start(without(lab, "grpo", "rules top"), tmp_path / "run")
    raw = without(lab, "grpo", "rules")
    raw["algorithm"]["rollout.top_p"] = 0.9
    with pytest.raises(UserError, match=r"rollout.sample_independently needs 'rules'"):
        runner.start(raw, tmp_path / "other")


def test_parts_of_ones_own_choice_are_asked_too(lab, runner, tmp_path):
    raw = without(lab, "grpo", "logp_model", stages={"selection": "drop_mismatched_rollouts"})
    with pytest.raises(UserError, match=r"drop_mismatched_rollouts reads logp_sampler_T"):
        runner.start(raw, tmp_path / "run")


class Idle:
    capabilities, version = CAPABILITIES, 0

    def start(self, id, request, source):
        return


class IdleSettings(EngineSettings):
    def open(self, model, tokenizer, *, num_slots, context_length):
        return Idle()


class ClosedSettings(EngineSettings):
    pass


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            IdleSettings,
            r"the engine 'own': Idle has no method cancel: add it, as strop.engines.base.Engine",
        ),
        (ClosedSettings, r"the engine 'own': ClosedSettings has no method open\(model, tokenizer,"),
    ],
)
def test_an_engine_without_a_method_is_refused_by_its_name(
    settings, message, monkeypatch, lab, runner, tmp_path
):
    monkeypatch.setitem(engines.ENGINES, "own", settings)
    with pytest.raises(UserError, match=message):
        runner.start(lab.raw("grpo", reward="even", engine={"kind": "own"}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_engine_that_takes_no_weights_is_for_scores_alone(lab, runner, tmp_path):
    raw = without(lab, "grpo", "weights")
    with pytest.raises(UserError, match=r"'poor' takes none .*strop eval and strop sample"):
        runner.start(raw, tmp_path / "run")
    runner.whole(without(lab, "grpo", ""), tmp_path / "whole")
    settings = tmp_path / "whole" / "config.toml"
    settings.write_text(settings.read_text().replace('lacks = ""', 'lacks = "weights entropy"'))
    with open_model(str(tmp_path / "whole"), trust=True) as subject:
        assert subject.answer("1+1:", num_samples=1, seed=0)[0][1] < 0


def test_a_run_without_statistics_is_the_same_but_for_what_is_not_told(lab, runner, tmp_path):
    """Nothing stands in their place, in training, validation or the answers of strop sample."""
    evaluation = {"every": 3, "num_samples": 2}
    raw = without(lab, "grpo", "entropy logp_model top rules", evaluation=evaluation)
    run = runner.whole(raw, tmp_path / "poor")
    runner.whole(lab.raw("grpo", reward="even", evaluation=evaluation), tmp_path / "rich")
    for poor, rich in zip(*map(without_times, (tmp_path / "poor", tmp_path / "rich")), strict=True):
        untold = {name for name in rich if name not in poor}
        assert poor == {name: value for name, value in rich.items() if name in poor}
        assert all("entropy" in n or "logp" in n or n.endswith("auc") or "auc/" in n
                   for n in untold), untold  # fmt: skip
        assert "entropy" in untold or "eval/validation/entropy" in untold
    sampling = run.world.services.sampling
    assert sampling.wanted_statistics == frozenset()
    with open_model(str(tmp_path / "poor"), trust=True) as subject:
        ((_, mean, _),) = subject.answer("1+1:", num_samples=1, seed=0)
        assert math.isnan(mean)


def test_what_the_engine_does_not_tell_is_void():
    table = {i: [0.1, 0.3, 0.3, 0.3] for i in range(4)}
    engine = TableEngine(by_last_token(table), capabilities=frozenset({"entropy"}))
    draws, sampling = (Draw(1, 3),), FakeSampling(wanted_statistics=frozenset({"entropy"}))
    services = FakeServices(FakeTexts({1: (1,)}), sampling=sampling)
    batch, *_ = rolled_out(SampleIndependently(), draws, engine, services, torch.Generator())
    mask_T = batch["mask_T"]
    assert batch["logp_sampler_T"][mask_T].isnan().all()
    assert batch["entropy_behavior_T"][mask_T].allclose(torch.tensor(1.3138), atol=1e-4)
    assert not batch["logp_sampler_T"][~mask_T].any()


def test_a_part_that_needs_more_than_it_says_is_still_refused():
    """The engine is asked for nothing that it lacks, whatever a part of one's own states."""
    engine = TableEngine(by_last_token({0: [0.5, 0.5]}), capabilities=frozenset())
    with pytest.raises(UserError, match="needs an engine with 'entropy'"):
        asynchronous(engine).sample([Request((0,), 1, want=frozenset({"entropy"}))])


def test_a_renamed_column_is_known():
    """A part that reads the statistic under another name needs it all the same."""
    use = Use(Plain(), columns=(("level_T", "entropy_behavior_T"),))
    with pytest.raises(UserError, match=r"curation.plain reads entropy_behavior_T"):
        check([("curation.plain", use)], TableEngine(by_last_token({}), capabilities=frozenset()),
              "table")  # fmt: skip
    check([("curation.plain", Use(Plain()))], TableEngine(by_last_token({})), "table")


class Plain:
    """A part that reads one column."""

    def __call__(self, level_T):
        return level_T


def test_the_settings_are_those_of_a_file(tmp_path):
    made = config.make({"engine": {"kind": "poor", "lacks": "top"}})
    assert 'lacks = "top"' in made.to_toml()


def test_the_engine_of_a_run_that_is_refused_is_closed(lab, runner, tmp_path, monkeypatch):
    closed = []
    monkeypatch.setattr(PoorEngine, "close", lambda engine: closed.append(engine))
    for number, (lacks, critic) in enumerate((("weights", {}), ("", {"start": "nowhere"}))):
        raw = lab.raw(engine={"kind": "poor", "lacks": lacks}, critic=critic)
        with pytest.raises(UserError, match=r"weights|critic\.start"):
            runner.start(raw, tmp_path / "run")
        assert len(closed) == number + 1
