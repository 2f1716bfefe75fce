"""The card's numbers, the norm by hand, and that it blocks no other gradient."""

import math

import pytest
import torch
from builders import flat_batch, gradient, ragged_batch, run

from strop.parts.loss.bound.clip_both_sides import ClipBothSides
from strop.parts.loss.bound.shrink_by_clipping_bias import ShrinkByClippingBias
from strop.support.errors import UserError

# Three tokens of one rollout with ratios e^0.1, e^-0.2, e^0.4 and advantage 6: the third is
# clipped (1.4918 -> 1.2); norm = 1.4918 * 6 / 3 = 2.98365
LOG_RATIOS = [0.1, -0.2, 0.4]
NORM = math.exp(0.4) * 6 / 3


def batch_of(advantage=6.0):
    return flat_batch([3], log_ratio_T=LOG_RATIOS, advantage_T=[advantage] * 3)


def test_by_hand():
    found = run(ShrinkByClippingBias(), batch_of())
    whole = [math.exp(0.1) * 6, math.exp(-0.2) * 6, 1.2 * 6]
    assert found.value.tolist() == pytest.approx([value / NORM for value in whole])
    assert float(found.metrics["clip_bias/norm"]) == pytest.approx(NORM)
    assert float(found.metrics["clip_bias/factor"]) == pytest.approx(1 / NORM)
    assert found.metrics["clip_ratio/high_mean"].tolist() == [0, 0, 1]


def test_what_is_bad_is_cut_off_below():
    # ratios e^-0.4 = 0.67, held at 0.8, and e^-0.2 = 0.82; norm = 0.67 * 6 / 2
    batch = flat_batch([2], log_ratio_T=[-0.4, -0.2], advantage_T=[-6.0] * 2)
    norm = math.exp(-0.4) * 6 / 2
    expected = [-0.8 * 6 / norm, -math.exp(-0.2) * 6 / norm]
    assert run(ShrinkByClippingBias(), batch).value.tolist() == pytest.approx(expected)


@pytest.mark.parametrize(("advantage", "floor"), [(6.0, 3.0), (0.5, 1.0)])
def test_below_the_floor_it_is_the_plain_clip(advantage, floor):
    found = run(ShrinkByClippingBias(floor=floor), batch_of(advantage))
    assert found.value.equal(run(ClipBothSides(), batch_of(advantage)).value)


def test_without_a_floor_a_small_norm_enlarges_and_nothing_clipped_changes_nothing():
    found = run(ShrinkByClippingBias(floor=0.0), batch_of(0.5))
    assert float(found.metrics["clip_bias/factor"]) == pytest.approx(12 / NORM)
    calm = batch_of().set(log_ratio_T=torch.tensor([0.1, 0.0, -0.1]).double())
    for floor in (0.0, 1.0):
        found = run(ShrinkByClippingBias(floor=floor), calm)
        assert found.value.equal(run(ClipBothSides(), calm).value)


def test_the_norm_gets_no_gradient():
    batch = batch_of()

    def total(part):
        return lambda log_ratio_T: run(part, batch.set(log_ratio_T=log_ratio_T)).value.sum()

    plain = gradient(total(ClipBothSides()), batch["log_ratio_T"])
    found = gradient(total(ShrinkByClippingBias()), batch["log_ratio_T"])
    torch.testing.assert_close(found, plain / NORM)


def test_lengths_are_those_of_each_rollout():
    batch = ragged_batch(2)
    batch = batch.set(log_ratio_T=torch.where(batch["mask_T"], 0.5, 0.0).double())
    found = run(ShrinkByClippingBias(), batch)
    squares = 0.0
    for i in range(batch.size("B")):
        rows = ((batch["rollout_T"] == i) & batch["gradient_T"]).nonzero().squeeze(1)
        for t in rows.tolist():
            if batch["advantage_T"][t] > 0:
                squares += float(math.exp(0.5) * batch["advantage_T"][t] / len(rows)) ** 2
    assert float(found.metrics["clip_bias/norm"]) == pytest.approx(math.sqrt(squares))


def test_refuses_a_negative_floor():
    with pytest.raises(UserError, match="floor must be at least 0"):
        ShrinkByClippingBias(floor=-1.0)
