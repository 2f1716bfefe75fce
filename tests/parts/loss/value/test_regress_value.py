"""The critic's loss by hand, its gradient, and where the gradient is zero."""

import math

import pytest
import torch
from builders import f64, flat_batch, gradient, run, slope

from strop import functional
from strop.parts.loss.value.regress_value import RegressValue
from strop.support.errors import UserError

# V_old 0.2, return 1. V 0.5 lies within 0.5 of V_old: 0.5 * 0.5^2. V 0.9 is held at 0.7, which is
# worse: 0.5 * 0.3^2. V 1.6 is held at 0.7, but as it stands it is worse still: 0.5 * 0.6^2.
VALUES, OLD, RETURNS = f64(0.5, 0.9, 1.6), f64(0.2, 0.2, 0.2), f64(1, 1, 1)
LOSSES = [0.125, 0.045, 0.18]


def test_by_hand_and_how_many_are_held():
    batch = flat_batch([3], value_T=VALUES, value_old_T=OLD, return_T=RETURNS)
    found = run(RegressValue(0.5), batch)
    assert (-found.value).tolist() == pytest.approx(LOSSES)
    assert found.metrics["critic/clip_ratio"].tolist() == [0.0, 1.0, 0.0]
    free = run(RegressValue(0.0), batch.set(value_old_T=OLD * float("nan")))
    assert (-free.value).tolist() == pytest.approx([0.125, 0.005, 0.18])
    assert not free.metrics


def test_by_hand_through_the_padded_call():
    mask = torch.tensor([[0, 1, 1, 1]])

    def row(values):
        return torch.cat([f64(float("nan")), values])[None]

    given = {"returns": row(RETURNS), "mask": mask}
    found = functional.value_loss_clip(values=row(VALUES), values_old=row(OLD), **given)
    assert float(found) == pytest.approx(sum(LOSSES) / 3)
    summed = functional.value_loss_clip(
        values=row(VALUES), clip_value=0.0, aggregation="token-sum", **given
    )
    assert float(summed) == pytest.approx(0.31)
    with pytest.raises(UserError, match="needs values_old; clip_value=0 does without"):
        functional.value_loss_clip(values=row(VALUES), **given)


def test_gradient_is_the_error_except_where_the_value_is_held():
    def loss_of(values):
        return -RegressValue(0.5)(values, RETURNS, OLD).value.sum()

    found = gradient(loss_of, VALUES)
    assert found.tolist() == pytest.approx([-0.5, 0.0, 0.6])
    assert torch.allclose(found, slope(loss_of, VALUES), atol=1e-8)


def test_far_errors_cost_a_line():
    # within 0.4 of the return e^2 / 2, beyond it 0.4 (|e| - 0.2): 0.12 for -0.5, 0.16 for 0.6; V
    # 0.9 is held at 0.7, 0.3 away: 0.045
    part = RegressValue(0.5, delta=0.4)
    found = part(VALUES, RETURNS, OLD).value
    assert (-found).tolist() == pytest.approx([0.12, 0.045, 0.16])
    slopes = gradient(lambda values: -part(values, RETURNS, OLD).value.sum(), VALUES)
    assert slopes.tolist() == pytest.approx([-0.4, 0.0, 0.4])
    assert part(VALUES / 2 + 0.5, RETURNS, OLD).value.equal(
        RegressValue(0.5)(VALUES / 2 + 0.5, RETURNS, OLD).value
    )
    anywhere = RegressValue(0.5, delta=math.inf)  # linear beyond no error, so it is the square
    slopes = gradient(lambda values: -anywhere(values, RETURNS, OLD).value.sum(), VALUES)
    square = gradient(lambda values: -RegressValue(0.5)(values, RETURNS, OLD).value.sum(), VALUES)
    assert slopes.equal(square)
    with pytest.raises(UserError, match="delta must be at least 0"):
        RegressValue(delta=-1.0)


def test_at_a_tie_the_gradient_is_that_of_the_value_itself():
    def loss_of(values):
        return -RegressValue(0.5)(values, RETURNS, values.detach()).value.sum()

    assert gradient(loss_of, VALUES).tolist() == pytest.approx([-0.5, -0.1, 0.6])


def test_returns_and_old_values_get_no_gradient():
    others = [RETURNS.clone().requires_grad_(), OLD.clone().requires_grad_()]
    assert not RegressValue(0.5)(VALUES, *others).value.requires_grad


def test_a_clip_needs_the_old_values():
    with pytest.raises(UserError, match=r"clip needs value_old_T"):
        RegressValue(0.5)(VALUES, RETURNS)
    with pytest.raises(UserError, match="clip must be at least 0"):
        RegressValue(-1.0)
