import pytest
import torch
from builders import assert_equal_pushes, assert_same_push, ragged_batch, rows_learning, stages

from strop import functional
from strop.recipes.aepo_agentic_loss import aepo_agentic_loss
from strop.recipes.grpo import grpo

ENTROPY = torch.tensor([[0.2, 0.4, 0.6, 2.0]]).double()
ZERO = torch.zeros(1, 4).double()
GIVEN = {
    "logp_old": ZERO, "mask": torch.ones(1, 4, dtype=torch.bool), "entropy": ENTROPY,
    "advantages": torch.ones(1).double(),
}  # fmt: skip
SUM = {"aggregation": "token-sum"}


def weights(ratio, sign=1, **params):
    given = {**GIVEN, "logp": ZERO + torch.tensor(ratio).double().log()}
    given["advantages"] = sign * GIVEN["advantages"]
    found = functional.token_weights("aepo_agentic_loss", **given, params={**SUM, **params})
    return found[0].tolist()


def test_worked_example_through_the_padded_call():
    shaped = [0.853, 0.902, 0.951, 1.2939]  # 1 + .2 Z
    assert weights(1.0) == pytest.approx(shaped, abs=6e-5)
    # above the clip the token of high entropy keeps 1.2 of it, the others nothing
    assert weights(1.5) == pytest.approx([0, 0, 0, 1.2 * 1.2939], abs=6e-5)
    assert weights(1.5, variant="all") == pytest.approx([1.2 * b for b in shaped], abs=1e-4)
    assert weights(1.5, variant="code") == pytest.approx(
        [*(1.2 * b for b in shaped[:3]), 0], abs=1e-4
    )
    assert weights(1.5, variant="none") == [0, 0, 0, 0]
    # below it, and with a negative advantage: nothing; above it rho, up to the dual clip
    assert weights(0.5, sign=-1) == [0, 0, 0, 0]
    assert weights(1.5, sign=-1) == pytest.approx([-1.5 * b for b in shaped], abs=1e-4)
    assert weights(4.0, sign=-1) == [0, 0, 0, 0]


def test_value_is_the_clipped_one():
    given = {**GIVEN, "logp": ZERO + torch.tensor(1.5).double().log()}
    loss, metrics = functional.policy_loss("aepo_agentic_loss", **given, params=SUM)
    assert float(loss) == pytest.approx(-1.2 * 4.0)  # the shaped advantages sum to 4
    assert metrics["clip_ratio/kept_mean"] == 0.25


def test_is_its_parents_clip_without_shaping_and_kept_gradients():
    ours = aepo_agentic_loss(variant="none", a=0.0, dual_clip_c=0.0)
    parent = grpo(aggregation="token-mean")
    batch = stages(parent, ragged_batch(1))
    assert_equal_pushes(ours, parent, batch)


@pytest.mark.parametrize("variant", ["paper", "all", "code"])
def test_gradient_is_that_of_the_published_loss(variant):
    algorithm = aepo_agentic_loss(variant=variant, dual_clip_c=1.3, a=0.3)
    batch = stages(algorithm, ragged_batch(1))
    rows = rows_learning(batch)
    H = batch["entropy_old_T"][rows]
    Z = (H - H.mean()) / H.std()
    B = batch["advantage_T"][rows] * (1 + 0.3 * Z)
    chosen = {"paper": Z > 0, "all": Z > -9, "code": Z <= 0}[variant]

    def loss_of(logp_T):
        rho = (logp_T[rows] - batch["logp_old_T"][rows]).exp()
        u = torch.where(chosen, 1.2 * rho / rho.detach(), 1.2 * torch.ones_like(rho))
        bounded = torch.where(rho > u, u, rho.clamp(min=0.8))
        loss = torch.maximum(-B * rho, -B * bounded)
        return torch.where(B < 0, torch.minimum(loss, -1.3 * B), loss).mean()

    assert_same_push(algorithm, batch, loss_of)


def test_equal_entropies_change_nothing_and_mistakes_are_refused():
    flat = {**GIVEN, "entropy": ZERO + 0.7, "logp": ZERO}
    found = functional.token_weights("aepo_agentic_loss", **flat, params=SUM)
    assert found[0].tolist() == [1, 1, 1, 1]
