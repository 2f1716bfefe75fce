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
from strop.method.check import check
from strop.recipes.dapo import dapo
from strop.recipes.forking_token_mask import forking_token_mask, top_entropy_quantile

ENTROPY = torch.tensor([[0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1.2, 2.0]]).double()
GIVEN = {
    "logp": -ENTROPY, "logp_old": -ENTROPY, "entropy": ENTROPY,
    "advantages": torch.ones(1).double(), "mask": ENTROPY > 0,
}  # fmt: skip


def test_worked_example_through_the_padded_call():
    # the last two of ten tokens are kept, with loss -1 each
    loss, _ = functional.policy_loss("forking_token_mask", **GIVEN)
    assert float(loss) == pytest.approx(-1.0)
    full, _ = functional.policy_loss("top_entropy_quantile", **GIVEN)
    assert float(full) == pytest.approx(-0.2)
    params = {"normaliser": "full", "selection": "topk", "rho": 0.35}
    loss, _ = functional.policy_loss("forking_token_mask", params=params, **GIVEN)
    assert float(loss) == pytest.approx(-0.3)
    weights = functional.token_weights("forking_token_mask", **GIVEN)
    assert weights[0, :8].eq(0).all()


def test_composes_and_is_dapo_when_everything_is_kept():
    check(top_entropy_quantile(beta=0.1))
    batch = stages(dapo(), ragged_batch(1))
    assert_equal_pushes(forking_token_mask(rho=1.0), dapo(), batch)


@pytest.mark.parametrize("full", [False, True])
def test_gradient_is_that_of_the_published_loss(full):
    algorithm = top_entropy_quantile(rho=0.4, beta=0.03) if full else forking_token_mask(rho=0.4)
    batch = stages(algorithm, ragged_batch(1))
    rows = rows_learning(batch)
    entropy_N = batch["entropy_old_T"][rows]
    kept_N = entropy_N >= torch.quantile(entropy_N, 0.6)
    assert 3 < int(kept_N.sum()) < len(rows) / 2
    advantage_N = batch["advantage_T"][rows]

    def loss_of(logp_T):
        ratio_N = (logp_T[rows] - batch["logp_old_T"][rows]).exp()
        loss_N = clipped(ratio_N, advantage_N, 0.2, 0.2 if full else 0.28) * kept_N
        if not full:
            return loss_N.sum() / kept_N.sum()
        d_N = batch["logp_ref_T"][rows] - logp_T[rows]
        return (loss_N + 0.03 * (d_N.exp() - d_N - 1)).mean()  # the penalty is on all tokens

    assert_same_push(algorithm, batch, loss_of)
