import pytest
import torch
from builders import assert_same_push, learning, ragged_batch, stages

from strop import functional
from strop.method.check import check
from strop.recipes.grpo import grpo
from strop.recipes.sapo_soft import sapo_soft


def test_worked_example_through_the_padded_call():
    ratio, advantage = torch.tensor([[1.0], [1.5], [1.5]]), torch.tensor([1.0, 1.0, -1.0])
    logp, given = ratio.log().double(), {"mask": ratio > 0, "logp_old": torch.zeros(3, 1).double()}
    losses = [
        float(functional.policy_loss("sapo_soft", logp=logp[i : i + 1], advantages=a[None],
                                     **{k: v[i : i + 1] for k, v in given.items()})[0])
        for i, a in enumerate(advantage.double())
    ]  # fmt: skip
    assert losses == pytest.approx([-2.0, -2.489837, 2.393585], abs=1e-6)
    weights = functional.token_weights("sapo_soft", logp=logp, advantages=advantage, **given)
    expected = [1.0 / 3, 0.940015 * 1.5 / 3, -0.934140 * 1.5 / 3]
    assert weights.squeeze(1).tolist() == pytest.approx(expected, abs=1e-6)


def test_composes_and_has_grpos_gradient_on_policy():
    check(sapo_soft(beta=0.1))
    batch = stages(sapo_soft(), ragged_batch(1))
    batch = batch.set(logp_old_T=batch["logp_T"])
    from builders import pushed

    ours, theirs = pushed(sapo_soft(), batch)[1], pushed(grpo(), batch)[1]
    torch.testing.assert_close(ours["logp_T"], theirs["logp_T"])


def test_gradient_is_that_of_the_published_loss():
    algorithm = sapo_soft(tau_pos=0.8, tau_neg=1.7)
    batch = stages(algorithm, ragged_batch(1))

    def loss_of(logp_T):
        total = logp_T.new_zeros(())
        for i, tokens in learning(batch):
            a = float(batch["advantage_B"][i])
            tau = 0.8 if a > 0 else 1.7
            ratio = (logp_T[tokens] - batch["logp_old_T"][tokens]).exp()
            gate = 4 / tau / (1 + (-tau * (ratio - 1)).exp())
            total = total - (gate * a).mean() / len(learning(batch))
        return total

    assert_same_push(algorithm, batch, loss_of)
