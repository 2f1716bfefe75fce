import dataclasses
import math

import pytest
import torch
from builders import assert_same_push, ragged_batch, rows_learning, stages

from strop import functional
from strop.method.check import check
from strop.recipes.gae import gae
from strop.recipes.ppo_clip import ppo_clip


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss"),
    [(1.5, 1.0, -1.2), (0.5, 1.0, -0.5), (1.5, -1.0, 1.5), (0.5, -1.0, 0.8), (5.0, -1.0, 3.0)],
)
def test_worked_example_through_the_padded_call(ratio, advantage, loss):
    logp = torch.tensor([[-1.0]]).double()
    given = {"logp_old": logp - math.log(ratio), "mask": logp < 0}
    given["advantages"] = torch.tensor([advantage]).double()
    found, _ = functional.policy_loss("ppo_clip", logp=logp, **given)
    assert float(found) == pytest.approx(loss)
    if (ratio, advantage) == (1.5, 1.0):
        params = {"clip_high": 0.28}
        found, _ = functional.policy_loss("ppo_clip", logp=logp, params=params, **given)
        assert float(found) == pytest.approx(-1.28)


def test_composes_and_is_gae_without_the_dual_clip():
    check(ppo_clip(beta=0.1, gamma=0.9))
    assert ppo_clip(dual_clip_c=0.0, num_minibatches=1) == gae()


def test_gradient_is_that_of_the_published_loss():
    algorithm = ppo_clip(dual_clip_c=1.3)
    batch = stages(algorithm, ragged_batch(1))
    algorithm = dataclasses.replace(algorithm, terms=algorithm.terms[:1])  # without the critic
    rows = rows_learning(batch)
    advantage_N = batch["advantage_T"][rows]
    held = []

    def loss_of(logp_T):
        ratio_N = (logp_T[rows] - batch["logp_old_T"][rows]).exp()
        one_N = torch.maximum(-advantage_N * ratio_N, -advantage_N * ratio_N.clamp(0.8, 1.2))
        dual_N = torch.minimum(one_N, -advantage_N * 1.3)
        held.append(int(((advantage_N < 0) & (dual_N < one_N)).sum()))
        return torch.where(advantage_N < 0, dual_N, one_N).mean()

    assert_same_push(algorithm, batch, loss_of)
    assert held[0] > 0
