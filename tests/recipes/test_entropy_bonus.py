import pytest
import torch
from builders import (
    assert_equal_pushes,
    assert_same_push,
    clipped,
    learning,
    ragged_batch,
    rows_learning,
    stages,
)

from strop import functional
from strop.method.check import check
from strop.method.schedule import Linear
from strop.recipes.entropy_bonus import entropy_bonus
from strop.recipes.forking_token_mask import top_entropy_quantile
from strop.recipes.grpo import grpo

MASK = torch.tensor([[True, True], [True, False]])
ENTROPY = torch.tensor([[1.0, 3.0], [2.0, float("nan")]]).double()
GIVEN = {
    "logp": torch.zeros(2, 2).double(), "logp_old": torch.zeros(2, 2).double(),
    "advantages": torch.zeros(2).double(), "mask": MASK, "entropy": ENTROPY,
}  # fmt: skip


@pytest.mark.parametrize(
    ("framework", "aggregation", "expected"),
    [
        ("trl", "seq-mean-token-sum", 2.0),
        ("verl", "token-mean", 2.0),
        ("verl", "seq-mean-token-mean", 2.0),
        ("verl", "seq-mean-token-sum", 3.0),
    ],
)
def test_worked_example_through_the_padded_call(framework, aggregation, expected):
    params = {"coef": 1.0, "framework": framework, "aggregation": aggregation}
    loss, metrics = functional.policy_loss("entropy_bonus", **GIVEN, params=params)
    assert float(loss) == pytest.approx(-expected)
    assert metrics["loss/entropy"] == pytest.approx(-expected)


def test_gradient_flows_through_entropy_alone():
    entropy = ENTROPY.clone().requires_grad_()
    params = {"coef": 0.3}
    loss, _ = functional.policy_loss("entropy_bonus", **GIVEN | {"entropy": entropy}, params=params)
    (found,) = torch.autograd.grad(loss, entropy)
    assert found.flatten().tolist() == pytest.approx([-0.1, -0.1, -0.1, 0.0])


def test_is_its_parent_at_zero_and_trls_mask_below_rho_one():
    batch = stages(grpo(), ragged_batch(1))
    assert_equal_pushes(entropy_bonus(coef=0.0), grpo(), batch)
    masked = entropy_bonus(coef=0.0, rho=0.4, aggregation="token-mean")
    assert_equal_pushes(masked, top_entropy_quantile(rho=0.4), batch)


@pytest.mark.parametrize("rho", [1.0, 0.4])
def test_gradient_is_that_of_the_published_loss(rho):
    algorithm = entropy_bonus(coef=Linear(0.0, 0.07), rho=rho, aggregation="token-mean")
    batch = stages(algorithm, ragged_batch(1))
    rows = rows_learning(batch)
    old_N = batch["entropy_old_T"][rows]
    kept_N = (old_N >= torch.quantile(old_N, 1 - rho)).double()
    assert len(learning(batch)) > 2

    def loss_of(logp_T, entropy_T):
        ratio_N = (logp_T[rows] - batch["logp_old_T"][rows]).exp()
        policy_N = clipped(ratio_N, batch["advantage_T"][rows], 0.2, 0.2) * kept_N
        bonus = (entropy_T[rows] * kept_N).sum() / kept_N.sum()
        return policy_N.mean() - 0.07 * bonus

    assert_same_push(algorithm, batch, loss_of, "logp_T", "entropy_T")


def test_composes_and_refuses():
    check(entropy_bonus(coef=Linear(0.01, 0.0), beta=0.1))
