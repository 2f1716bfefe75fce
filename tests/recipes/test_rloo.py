import pytest
import torch
from builders import (
    assert_same_push,
    clipped,
    flat_batch,
    learning,
    members_of,
    pushed,
    ragged_batch,
    stages,
    tokens_of,
)

from strop.method.check import check
from strop.recipes.dr_grpo import dr_grpo
from strop.recipes.rloo import rloo


def test_worked_example():
    batch = stages(rloo(), flat_batch((2, 4, 4, 2), reward_B=[1.0, 0.0, 0.0, 1.0]))
    third = 2 / 3
    expected = [third] * 2 + [-third] * 8 + [third] * 2
    assert batch["advantage_T"].tolist() == pytest.approx(expected)


def test_composes():
    check(rloo(beta=0.05))
    assert "logp_ref_T" not in rloo().reads()
    assert rloo(beta=0.05).advantage[0].label == "subtract_kl_to_reference"
    assert [term.name for term in rloo(beta=0.05).terms] == ["policy"]


def test_equals_dr_grpo_times_g_over_g_minus_1():
    batch = ragged_batch(2, groups=(4, 4, 4), unscored=())
    ours = pushed(rloo(), stages(rloo(), batch))[1]["logp_T"]
    parent = dr_grpo(length=1)
    theirs = pushed(parent, stages(parent, batch))[1]["logp_T"]
    torch.testing.assert_close(ours, theirs * 4 / 3, atol=1e-12, rtol=1e-10)


@pytest.mark.parametrize("beta", [0.0, 0.05])
def test_gradient_is_that_of_the_published_loss(beta):
    algorithm = rloo(beta=beta)
    batch = stages(algorithm, ragged_batch(1))
    reward = {}
    for i in range(batch.size("B")):
        tokens = tokens_of(batch, i)
        kl = (batch["logp_old_T"][tokens] - batch["logp_ref_T"][tokens]).sum()
        reward[i] = batch["reward_B"][i] - beta * kl

    def loss_of(logp_T):
        rows = learning(batch)
        total = logp_T.new_zeros(())
        for i, tokens in rows:
            others = [j for j in members_of(batch, int(batch["group_B"][i])) if j != i]
            baseline = sum(reward[j] for j in others) / max(len(others), 1)
            ratio = (logp_T[tokens] - batch["logp_old_T"][tokens]).exp()
            total = total + clipped(ratio, reward[i] - baseline, 0.2, 0.2).sum() / len(rows)
        return total

    assert_same_push(algorithm, batch, loss_of)
