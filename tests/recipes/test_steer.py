import math

import pytest
import torch
from builders import (
    assert_equal_pushes,
    assert_same_push,
    clipped,
    ragged_batch,
    rows_learning,
    stages,
)

from strop import functional
from strop.recipes.grpo import grpo
from strop.recipes.steer import steer
from strop.support.errors import UserError

LOGP = torch.tensor([[0.9, 0.5, 0.1]]).double().log()
GIVEN = {
    "logp": LOGP, "logp_old": LOGP, "mask": torch.ones(1, 3, dtype=torch.bool),
    "entropy": torch.tensor([[0.4, 0.8, 1.5]]).double(),
    "advantages": torch.tensor([[1.0, 1.0, -1.0]]).double(),
}  # fmt: skip


@pytest.mark.parametrize(
    ("mode", "weights"), [("linear", [1.2, 1.1862, 0.8]), ("exponential", [0.9909, 0.9836, 0.8])]
)
def test_worked_example_through_the_padded_call(mode, weights):
    params = {"mode": mode, "aggregation": "token-sum"}
    found = functional.token_weights("steer", **GIVEN, params=params)
    assert found[0].tolist() == pytest.approx([weights[0], weights[1], -weights[2]], abs=6e-5)
    loss, _ = functional.policy_loss("steer", **GIVEN, params=params)
    assert float(loss) == pytest.approx(-weights[0] - weights[1] + weights[2], abs=1e-4)


def test_is_its_parents_clip_when_both_weights_are_one():
    ours = steer(w_min=1.0, w_max=1.0, clip_high=0.2, dual_clip_c=0.0)
    parent = grpo(aggregation="token-mean")
    batch = stages(parent, ragged_batch(1))
    assert_equal_pushes(ours, parent, batch)


@pytest.mark.parametrize("mode", ["linear", "exponential"])
def test_gradient_is_that_of_the_published_loss(mode):
    algorithm = steer(mode=mode, w_min=0.5, dual_clip_c=1.1)
    batch = stages(algorithm, ragged_batch(1))
    rows = rows_learning(batch)
    A, H = batch["advantage_T"][rows], batch["entropy_old_T"][rows]

    def loss_of(logp_T):
        rho = (logp_T[rows] - batch["logp_old_T"][rows]).exp()
        with torch.no_grad():
            p, q = logp_T[rows].exp(), batch["logp_old_T"][rows].exp().clamp(1e-8, 1)
            a = (A / q * p * (1 - p) * (p.log() + H)).abs()
            w = torch.exp(math.log(0.5) / a.max() * a).clamp(0.5, 1)
            if mode == "linear":
                w = 1.2 - (a - a.min()) * 0.7 / (a.max() - a.min())
        held = torch.where(A < 0, -1.1 * A, torch.inf)
        return (w * torch.minimum(clipped(rho, A, 0.2, 0.28), held)).mean()

    assert_same_push(algorithm, batch, loss_of)


def test_equal_changes_get_the_middle_and_mistakes_are_refused():
    same = {k: v[:, :1].expand(1, 3) if k != "mask" else v for k, v in GIVEN.items()}
    params = {"aggregation": "token-sum", "w_max": 1.1}
    found = functional.token_weights("steer", **same, params=params)
    assert found[0].tolist() == pytest.approx([0.95] * 3)
    sure = GIVEN | {"logp": torch.zeros(1, 3).double(), "logp_old": torch.zeros(1, 3).double()}
    assert functional.token_weights("steer", **sure).isfinite().all()
    for params, wrong in (
        ({"mode": "cubic"}, "mode"),
        ({"mode": "exponential", "w_min": 0.0}, "w_min"),
    ):
        with pytest.raises(UserError, match=wrong):
            functional.token_weights("steer", **GIVEN, params=params)
