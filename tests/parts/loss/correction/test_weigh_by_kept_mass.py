import math

import pytest
import torch
from builders import NAN, flat_batch, run

from strop.method.part import Use, facts
from strop.parts.loss.correction.weigh_by_engine_ratio import WeighByEngineRatio
from strop.parts.loss.correction.weigh_by_kept_mass import WeighByKeptMass


def test_worked_example():
    # p = .5, .3, .15, .05; the first two stay of it: the second is drawn with .3 / .8, and the
    # first of three, .95 together, with .5 / .95
    sampler = [math.log(0.3), math.log(0.5), math.log(0.05), NAN]
    drawn = [math.log(0.3 / 0.8), math.log(0.5 / 0.95), math.log(0.05), -1.0]
    batch = flat_batch((4,), logp_sampler_T=sampler, logp_behavior_T=drawn)
    found = run(WeighByKeptMass(), batch)
    assert found.value.tolist() == pytest.approx([0.8, 0.95, 1, 1], abs=1e-6)
    assert found.metrics["correction/mean"] is found.value


def test_nothing_cut_is_exactly_one():
    same = torch.linspace(-7, -0.1, 5).tolist()
    batch = flat_batch((5,), logp_sampler_T=same, logp_behavior_T=same)
    assert run(WeighByKeptMass(), batch).value.tolist() == [1.0] * 5


def test_equals_weigh_by_engine_ratio_when_the_trainer_is_the_engine():
    sampler, drawn = [-1.0, -2.5, -0.3], [-0.8, -2.5, -0.1]
    columns = {"logp_sampler_T": sampler, "logp_old_T": sampler, "logp_behavior_T": drawn}
    batch = flat_batch((1, 2), **columns)
    ours, theirs = (run(part, batch).value for part in (WeighByKeptMass(), WeighByEngineRatio()))
    torch.testing.assert_close(ours, theirs)
    assert facts(Use(WeighByKeptMass())) == {"corrects_behavior_ratio"}
