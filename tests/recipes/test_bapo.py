import pytest
import torch
from builders import (
    assert_equal_pushes,
    assert_same_push,
    pushed,
    ragged_batch,
    rows_learning,
    stages,
)

from strop import functional
from strop.method.check import check
from strop.recipes.bapo import bapo
from strop.recipes.dapo import dapo
from strop.support.errors import UserError
from strop.training.learner import kernel

# ratios 1.5 and 0.5, old probabilities .25 and .5, advantages +1 and -1
OLD = torch.tensor([[0.25, 0.5]]).double().log()
GIVEN = {
    "logp": OLD + torch.tensor([[1.5, 0.5]]).double().log(),
    "logp_old": OLD,
    "advantages": torch.tensor([[1.0, -1.0]]).double(),
    "mask": torch.ones(1, 2),
}


@pytest.mark.parametrize(("target", "high"), [(0.4, 1.2), (0.54, 1.45)])
def test_worked_example_through_the_padded_call(target, high):
    loss, metrics = functional.policy_loss("bapo", params={"target": target}, **GIVEN)
    assert float(loss) == pytest.approx((-high + 0.6) / 2)
    assert (metrics["bapo/c_low"], metrics["bapo/c_high"]) == pytest.approx((0.6, high))
    _, metrics = functional.policy_loss("bapo", params={"variant": "code"}, **GIVEN)
    assert (metrics["bapo/c_low"], metrics["bapo/c_high"]) == pytest.approx((0.6, 1.2))


def test_composes():
    check(bapo(variant="code"))
    assert kernel.scope_of(bapo().terms) == "update"
    part = bapo(variant="code").terms[0].objective.part
    assert (part.low, part.high) == ((0.6, 0.8, 0.05), (1.2, 2.0, 0.1))
    assert (part.target, part.dual_clip_c) == (1.0, 3.0)
    with pytest.raises(UserError, match="high has more than 100000 bounds"):
        bapo(high_max=1e300)


@pytest.mark.parametrize("variant", ["paper", "code"])
def test_fixed_bounds_are_the_clipped_loss(variant):
    batch = stages(bapo(), ragged_batch(1))
    fixed = {"low_start": 0.8, "low_max": 0.8, "high_start": 1.3, "high_max": 1.3}
    ours = bapo(variant=variant, dual_clip_c=2.0, **fixed)
    assert_equal_pushes(ours, dapo(clip_high=0.3, dual_clip_c=2.0), batch)


def test_gradient_is_that_of_the_published_loss():
    algorithm = bapo(target=0.415, high_max=1.6)
    batch = stages(algorithm, ragged_batch(2, groups=(4, 4)))
    rows = rows_learning(batch)
    advantage_N = batch["advantage_T"][rows]
    weight_N = batch["logp_behavior_T"][rows].exp()
    found = []

    def surrogate(ratio_N, low, high):
        return torch.minimum(ratio_N * advantage_N, ratio_N.clamp(low, high) * advantage_N)

    def loss_of(logp_T):
        ratio_N = (logp_T[rows] - batch["logp_old_T"][rows]).exp()
        low, high = 0.6, 1.2

        def share():
            s_N = weight_N * surrogate(ratio_N.detach(), low, high).abs()
            return float(s_N[advantage_N > 0].sum() / s_N.sum())

        while share() < 0.415 and low + 0.02 <= 0.9 + 1e-9:
            if high + 0.05 <= 1.6 + 1e-9:
                high += 0.05
            else:
                low += 0.02
        found.append((low, high))
        return -surrogate(ratio_N, low, high).mean()

    assert_same_push(algorithm, batch, loss_of)
    metrics = pushed(algorithm, batch)[2]
    assert (metrics["bapo/c_low"], metrics["bapo/c_high"]) == pytest.approx(found[0])
    assert found[0] == pytest.approx((0.6, 1.4))
