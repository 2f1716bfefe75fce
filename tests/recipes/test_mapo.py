import pytest
import torch

from strop import functional as F

GROUPS = torch.zeros(3, dtype=torch.long)
REWARDS = torch.tensor([[1, 2], [3, 1], [0, 1]], dtype=torch.float64)


def advantages(rewards=REWARDS, groups=GROUPS, **params):
    return F.advantages("mapo", groups=groups, turn_rewards=rewards, params=params)


def test_worked_example():
    mix = torch.tensor([[-0.0431, 1.0607], [1.4184, -0.5303], [-1.3753, -0.5303]]).double()
    torch.testing.assert_close(advantages(), mix, atol=5e-5, rtol=0)
    turn = torch.tensor([[0.2673, 1.4142], [1.0690, -0.7071], [-1.3363, -0.7071]]).double()
    torch.testing.assert_close(advantages(alpha=1.0, beta=0.0), turn, atol=5e-5, rtol=0)
    batch = torch.tensor([[-0.3536, 0.7071], [1.7678, -0.3536], [-1.4142, -0.3536]]).double()
    torch.testing.assert_close(advantages(alpha=0.0, beta=1.0), batch, atol=5e-5, rtol=0)


def test_one_turn_without_the_pool_is_grpo():
    plain = F.advantages("grpo", groups=GROUPS, rewards=REWARDS[:, 0], params={"std": "biased"})
    found = advantages(REWARDS[:, :1], alpha=1.0, beta=0.0, eps=1e-6)
    torch.testing.assert_close(found, plain[:, None])


def test_the_pool_of_the_batch_spans_groups():
    groups = torch.tensor([0, 0, 1])
    pooled = advantages(groups=groups, alpha=0.0, beta=1.0, pool="batch")
    torch.testing.assert_close(pooled, advantages(alpha=0.0, beta=1.0))
    alone = advantages(groups=groups, alpha=0.0, beta=1.0)
    assert alone[2].tolist() == pytest.approx([-1, 1])


def test_the_last_survivor_of_a_turn_gets_nothing_for_its_return():
    valid = torch.tensor([[1, 1], [1, 0], [1, 0]])
    found = F.advantages("mapo", groups=GROUPS, turn_rewards=REWARDS, turn_valid=valid,
                         params={"alpha": 1.0, "beta": 0.0})  # fmt: skip
    assert found[0, 1] == 0
