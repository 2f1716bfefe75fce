import math

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
)

from strop.method.check import check
from strop.recipes.grpo import grpo
from strop.support.errors import UserError


def test_worked_example():
    # deviation of (1, 0, 0, 1) is .57735: .5 / .57735 = .866
    batch = stages(grpo(eps=0.0), flat_batch((2, 4, 4, 2), reward_B=[1.0, 0.0, 0.0, 1.0]))
    half = math.sqrt(3) / 2
    expected = [half] * 2 + [-half] * 8 + [half] * 2
    assert batch["advantage_T"].tolist() == pytest.approx(expected)


def test_composes():
    check(grpo(beta=0.1, aggregation="prompt-mean"))
    with pytest.raises(UserError, match="token-mean"):
        grpo(aggregation="token-men")
    assert [term.name for term in grpo().terms] == ["policy"]


@pytest.mark.parametrize("seed", [0, 1])
def test_advantages_and_gradient_are_those_of_the_published_loss(seed):
    algorithm = grpo(beta=0.04)
    batch = stages(algorithm, ragged_batch(seed))
    advantage = {}
    for group in range(batch.size("P")):
        rewards = [float(batch["reward_B"][i]) for i in members_of(batch, group)]
        mean = sum(rewards) / len(rewards)
        squares = sum((r - mean) ** 2 for r in rewards)
        scale = math.sqrt(squares / (len(rewards) - 1)) if len(rewards) > 1 else 1.0
        mean = mean if len(rewards) > 1 else 0.0
        for i, reward in zip(members_of(batch, group), rewards, strict=True):
            advantage[i] = torch.tensor((reward - mean) / (scale + 1e-6), dtype=torch.float64)

    def loss_of(logp_T):
        rows = learning(batch)
        total = logp_T.new_zeros(())
        for i, tokens in rows:
            ratio = (logp_T[tokens] - batch["logp_old_T"][tokens]).exp()
            d = batch["logp_ref_T"][tokens] - logp_T[tokens]
            token = clipped(ratio, advantage[i], 0.2, 0.2) + 0.04 * (d.exp() - d - 1)
            total = total + token.mean() / len(rows)
        return total

    assert_same_push(algorithm, batch, loss_of)
    assert (pushed(algorithm, batch)[1]["logp_T"][~batch["gradient_T"]] == 0).all()
