import pytest
import torch

from strop import functional as F
from strop.recipes._base import average
from strop.recipes.matchtir import matchtir
from strop.support.errors import UserError

GROUPS = torch.zeros(3, dtype=torch.long)
REWARDS = torch.tensor([[1, 0.5, 1], [0.5, 0, 0], [0.5, 0.5, 0]], dtype=torch.float64)


def advantages(rewards=REWARDS, **params):
    groups = torch.zeros(len(rewards), dtype=torch.long)
    return F.advantages("matchtir", groups=groups, turn_rewards=rewards, params=params)


def test_worked_example():
    wanted = [[1.12, 1.1008, 1.1378], [-0.8032, -0.8467, -0.689], [-0.3169, -0.2541, -0.4488]]
    assert advantages().tolist() == [pytest.approx(row, abs=1e-4) for row in wanted]


def test_the_sum_is_twice_the_mean():
    torch.testing.assert_close(advantages(fusion="sum"), 2 * advantages())


def test_one_turn_is_grpo():
    rewards = REWARDS.sum(1)
    plain = F.advantages("grpo", rewards=rewards, groups=GROUPS, params={"eps": 1e-6})
    torch.testing.assert_close(advantages(rewards[:, None]), plain[:, None])


def test_tokens_of_a_turn_are_alike_and_observations_get_nothing():
    mask = torch.tensor([[1, 1, 0, 1, 0, 1]] * 3)
    turns = torch.tensor([[0, 0, -1, 1, 2, 2]] * 3)
    found = F.advantages("matchtir", groups=GROUPS, turn_rewards=REWARDS, turn_ids=turns, mask=mask)
    one, two, three = advantages().unbind(1)
    nothing = torch.zeros(3, dtype=torch.float64)
    torch.testing.assert_close(found, torch.stack([one, one, nothing, two, nothing, three], 1))


def test_a_turn_that_only_one_rollout_has_keeps_its_return():
    valid = torch.tensor([[1, 1, 1], [1, 1, 0], [1, 1, 0]])
    given = {"groups": GROUPS, "turn_rewards": REWARDS, "turn_valid": valid}
    found = F.advantages("matchtir", **given)
    # the rollouts' part is that of all three turns where the missing ones earned nothing
    assert found[0, 2].item() == pytest.approx((1.1209 + 1.0) / 2, abs=1e-4)


@pytest.mark.parametrize("size", [1, 3])
def test_equal_rewards_and_groups_of_one(size):
    found = advantages(torch.full((size, 2), 0.5, dtype=torch.float64))
    wanted = [0.0, 0.0] if size > 1 else [(1.0 + 0.95) / 2, (1.0 + 0.5) / 2]
    assert found[0].tolist() == pytest.approx(wanted, abs=1e-5)


def test_refuses_another_fusion():
    with pytest.raises(UserError, match="mean, sum"):
        advantages(fusion="product")


def test_its_average_is_the_released_codes():
    assert matchtir().terms[0].average == average("seq-mean-token-mean")
