import math

import pytest
import torch
from builders import flat_batch, gradient, ragged_batch, run, slope

from strop.parts.loss.bound.bound_ratio_softly import BoundRatioSoftly
from strop.parts.loss.bound.clip_both_sides import ClipBothSides
from strop.support.errors import UserError


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "weight"),
    [(1.0, 1.0, -2.0, 1.0), (1.5, 1.0, -2.489837, 0.940015), (1.5, -1.0, 2.393585, 0.934140)],
)
def test_worked_example(ratio, advantage, loss, weight):
    batch = flat_batch((1,), log_ratio_T=[math.log(ratio)], advantage_T=[advantage])
    assert -float(run(BoundRatioSoftly(), batch).value) == pytest.approx(loss, abs=1e-6)
    advantage_T = batch["advantage_T"]
    found = gradient(
        lambda x_T: BoundRatioSoftly()(x_T, advantage_T).value.sum(), batch["log_ratio_T"]
    )
    # the weight is that of the ratio: d ratio / d log_ratio = ratio
    assert float(found) == pytest.approx(weight * ratio * advantage, abs=2e-6)


def test_gradient_and_reduction_at_ratio_one():
    batch = ragged_batch(1, unscored=())
    rows_T = batch["mask_T"]
    advantage_T = batch["advantage_T"][rows_T]
    log_ratio_T = (batch["logp_T"] - batch["logp_old_T"])[rows_T]

    def soft(x_T):
        return BoundRatioSoftly(0.7, 2.0)(x_T, advantage_T).value.sum()

    found = gradient(soft, log_ratio_T)
    torch.testing.assert_close(found, slope(soft, log_ratio_T), atol=1e-8, rtol=1e-6)

    def hard(x_T):
        return ClipBothSides()(x_T, advantage_T).value.sum()

    ones_T = torch.zeros_like(log_ratio_T)
    torch.testing.assert_close(gradient(soft, ones_T), gradient(hard, ones_T))


def test_edges():
    batch = flat_batch((2,), log_ratio_T=[0.3, -0.3], advantage_T=[0.0, 0.0])
    assert run(BoundRatioSoftly(), batch).value.tolist() == [0, 0]
    with pytest.raises(UserError, match="tau_negative"):
        BoundRatioSoftly(tau_negative=0.0)


def test_the_weight_of_a_token_is_logged():
    batch = flat_batch((3,), log_ratio_T=[0.0, math.log(1.5), math.log(1.5)],
                       advantage_T=[1.0, 1.0, -1.0])  # fmt: skip
    told = run(BoundRatioSoftly(), batch).metrics["soft_gate/weight_mean"]
    assert told.tolist() == pytest.approx([1.0, 0.940015, 0.934140], abs=1e-6)
