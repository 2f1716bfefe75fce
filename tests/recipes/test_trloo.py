import torch

from strop import functional as F

GROUPS = torch.zeros(4, dtype=torch.long)
REWARDS = torch.tensor([0.3, 1.0, 0.0, 0.5], dtype=torch.float64)


def advantages(turn_rewards, **params):
    return F.advantages("trloo", groups=GROUPS, turn_rewards=turn_rewards, params=params)


def test_worked_example():
    rewards = torch.tensor([[0, 3], [1, 1], [0, 0.0]], dtype=torch.float64)
    found = F.advantages("trloo", groups=GROUPS[:3], turn_rewards=rewards)
    torch.testing.assert_close(found, torch.tensor([[2, 2.5], [0.5, -0.5], [-2.5, -2]]).double())


def test_one_turn_is_rloo():
    plain = F.advantages("rloo", groups=GROUPS, rewards=REWARDS)
    torch.testing.assert_close(advantages(REWARDS[:, None]), plain[:, None])


def test_without_discount_each_turn_is_rloo_of_its_own_rewards():
    rewards = torch.stack([REWARDS, REWARDS.flip(0)], dim=1)
    each = [F.advantages("rloo", groups=GROUPS, rewards=column) for column in rewards.T]
    torch.testing.assert_close(advantages(rewards, gamma=0.0), torch.stack(each, dim=1))


def test_a_turn_without_others_keeps_its_return():
    valid = torch.tensor([[1, 1], [1, 0], [1, 0], [1, 0]])
    rewards = torch.stack([REWARDS, REWARDS], dim=1)
    found = F.advantages("trloo", groups=GROUPS, turn_rewards=rewards, turn_valid=valid)
    assert found[0, 1] == REWARDS[0]
