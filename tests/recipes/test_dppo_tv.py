import math

import pytest
import torch
from builders import assert_same_push, flat_batch, pushed, ragged_batch, rows_learning, stages

from strop import functional
from strop.recipes.cispo import cispo
from strop.recipes.dppo_tv import dppo_kl, dppo_tv


@pytest.mark.parametrize(
    ("p_old", "p", "advantage", "tv", "kl"),
    [
        (0.5, 0.7, 1.0, False, False),  # tv .2, kl .087177
        (0.01, 0.05, 1.0, True, True),  # tv .04, kl .024736: PPO would clip the ratio 5
        (0.5, 0.3, -1.0, False, False),
        (0.5, 0.3, 1.0, True, True),  # moved the other way
        (0.5, 0.7, -1.0, True, True),
        (0.5, 0.6, 1.0, True, True),
    ],
)
def test_worked_example_through_the_padded_call(p_old, p, advantage, tv, kl):
    given = {
        "logp": torch.tensor([[math.log(p)]], dtype=torch.float64),
        "logp_old": torch.tensor([[math.log(p_old)]], dtype=torch.float64),
        "advantages": torch.tensor([advantage]).double(),
        "mask": torch.ones(1, 1),
    }
    for name, valid in (("dppo_tv", tv), ("dppo_kl", kl)):
        weights = functional.token_weights(name, **given)
        expected = advantage * p / p_old if valid else 0.0
        assert float(weights) == pytest.approx(expected, rel=1e-9)
        loss, metrics = functional.policy_loss(name, **given)
        assert float(loss) == pytest.approx(-expected * math.log(p))
        assert metrics["clip_ratio/region_mean"] == float(not valid)


def test_the_divergence_of_the_worked_example():
    """K lies between the bounds at which a token turns invalid."""
    for p_old, p, value in ((0.5, 0.7, 0.087177), (0.01, 0.05, 0.024736)):
        batch = flat_batch((1,), logp_T=[math.log(p)], logp_old_T=[math.log(p_old)],
                           advantage_T=[1.0])  # fmt: skip
        for bound, pushes in ((value - 2e-6, False), (value + 2e-6, True)):
            found = pushed(dppo_kl(clip_high=bound), batch)[1]["logp_T"]
            assert bool(found != 0) == pushes


@pytest.mark.parametrize("recipe", [dppo_tv, dppo_kl])
def test_gradient_is_that_of_the_published_loss(recipe):
    width = 0.06 if recipe is dppo_tv else 0.01
    algorithm = recipe(clip_low=width, clip_high=1.5 * width, ratio_cap=1.2)
    batch = stages(algorithm, ragged_batch(1))
    rows = rows_learning(batch)
    number = len({int(batch["rollout_T"][t]) for t in rows})
    a = batch["advantage_T"][rows]

    def loss_of(logp_T):
        p, old = logp_T[rows].exp(), batch["logp_old_T"][rows].exp()
        k = old * (old / p).log() + (1 - old) * ((1 - old + 1e-8) / (1 - p + 1e-8)).log()
        if recipe is dppo_tv:
            valid = torch.where(a > 0, p - old <= 1.5 * width, p - old >= -width)
        else:
            valid = torch.where(a > 0, (k <= 1.5 * width) | (p <= old), (k <= width) | (p >= old))
        assert 0 < int(valid.sum()) < len(rows)
        weight = ((p / old).clamp(max=1.2) * valid).detach()
        return -(a * weight * logp_T[rows]).sum() / (number * int(batch["max_length"]))

    assert_same_push(algorithm, batch, loss_of)


def test_equal_to_cispo_while_everything_is_valid():
    batch = stages(dppo_tv(), ragged_batch(3))
    free = {"clip_low": 100.0, "clip_high": 100.0}
    theirs = cispo(clip_low=10.0, clip_high=19.0, aggregation="seq-mean-token-sum-norm")
    for recipe in (dppo_tv, dppo_kl):
        ours = pushed(recipe(**free), batch)
        torch.testing.assert_close(ours[1]["logp_T"], pushed(theirs, batch)[1]["logp_T"])


def test_a_certain_token_is_finite():
    batch = flat_batch((2,), logp_T=[0.0, -1e-12], logp_old_T=[-1e-9, 0.0], advantage_T=[1.0, -1.0])
    for recipe in (dppo_tv, dppo_kl):
        assert torch.isfinite(pushed(recipe(), batch)[1]["logp_T"]).all()


def test_what_becomes_or_was_certain_has_a_divergence():
    # .5 ln .5 + .5 ln(.5 / 1e-8) = 8.5 nats from a half to 1; ln(1 / .9) = .105361 from 1 to .9
    batch = flat_batch((2,), logp_T=[0.0, math.log(0.9)], logp_old_T=[math.log(0.5), 0.0],
                       advantage_T=[1.0, -1.0])  # fmt: skip
    for clip_low, clip_high, pushes in (
        (0.1053, 8.4, [False, False]), (0.1054, 8.6, [True, True]),
    ):  # fmt: skip
        found = pushed(dppo_kl(clip_low=clip_low, clip_high=clip_high), batch)[1]["logp_T"]
        assert (found != 0).tolist() == pushes
