import dataclasses

import numpy as np
import pytest
import torch
from builders import assert_same_push, clipped, flat_batch, gradient, ragged_batch, run, stages

from strop.method.check import check
from strop.parts.loss.penalty.hold_entropy_between_quantiles import HoldEntropyBetweenQuantiles
from strop.recipes.forking_token_mask import forking_token_mask
from strop.recipes.grpo import grpo
from strop.recipes.spine import spine
from strop.support.errors import UserError
from strop.training.learner import kernel

FORKS = [1.0, 1.2, 1.5, 2.0, 3.0]


def test_worked_example():
    # low = Q10 = 1.0 + 0.4 * 0.2 = 1.08, high = Q50 = 1.5
    batch = flat_batch((5,), entropy_T=FORKS)
    found = run(HoldEntropyBetweenQuantiles(), batch)
    assert found.value.tolist() == pytest.approx([-0.08, 0, 0, -0.5, -1.5])
    other = batch.set(gradient_T=torch.tensor([True, True, True, False, False]))
    assert run(HoldEntropyBetweenQuantiles(), other).value.tolist()[3:] == [0, 0]


def test_the_bounds_are_constants():
    def loss(entropy_T):
        batch = flat_batch((5,), entropy_T=entropy_T)
        return run(HoldEntropyBetweenQuantiles(), batch).value.sum()

    at = torch.tensor(FORKS).double()
    assert gradient(loss, at).tolist() == [1, 0, 0, -1, -1]


def test_gradient_is_that_of_the_published_loss():
    algorithm = spine(rho=0.5, band_weight=0.3, beta=0.2)
    batch = stages(algorithm, ragged_batch(4))
    rows = [t for t in range(batch.size("T")) if batch["gradient_T"][t]]
    entropy = batch["entropy_old_T"][rows].numpy()
    tau = np.quantile(entropy, 0.5)
    rows = [t for t, h in zip(rows, entropy, strict=True) if h >= tau]
    advantage_N = batch["advantage_T"][rows]

    def loss_of(logp_T, entropy_T):
        ratio_N = (logp_T[rows] - batch["logp_old_T"][rows]).exp()
        core = clipped(ratio_N, advantage_N, 0.2, 0.2).mean()
        gap_N = batch["logp_ref_T"][rows] - logp_T[rows]
        kl = (gap_N.exp() - gap_N - 1).mean()
        band = 0
        for i in range(batch.size("B")):
            own = [t for t in rows if batch["rollout_T"][t] == i]
            if own:
                h_N = entropy_T[own]
                low, high = np.quantile(h_N.detach().numpy(), [0.1, 0.5])
                band = band + ((h_N - high).relu() + (low - h_N).relu()).sum()
        return core + 0.2 * kl + 0.3 * band / len(rows)

    assert_same_push(algorithm, batch, loss_of, "logp_T", "entropy_T")


def test_reductions():
    """Without the band the fork mask on votes; without the mask too, grpo on votes."""
    forks = forking_token_mask(clip_high=0.2, num_rollouts=8)
    assert spine(band_weight=0.0).terms == forks.terms
    plain = spine(band_weight=0.0, rho=1.0)
    expected = grpo(aggregation="token-mean", num_rollouts=8)
    assert dataclasses.replace(plain, reward=plain.reward[:1]) == expected


def test_composes():
    check(spine(leave_one_out=True))
    assert kernel.scope_of(spine().terms) == "rollout"
    with pytest.raises(UserError, match="levels must be two shares"):
        spine(band_low=0.6)
