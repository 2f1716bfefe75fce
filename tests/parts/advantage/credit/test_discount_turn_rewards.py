import pytest
import torch
from builders import ragged_batch, run

from strop import functional
from strop.batch.batch import Batch
from strop.parts.advantage.credit.discount_turn_rewards import DiscountTurnRewards
from strop.support.errors import UserError


def turns(rewards, rollouts, **columns) -> Batch:
    """One token a turn, one group."""
    row_K = torch.arange(len(rewards))
    rollout_K = torch.tensor(rollouts)
    group_B = torch.zeros(int(rollout_K.max()) + 1, dtype=torch.long)
    one = torch.zeros(1, dtype=torch.long)
    return Batch({
        "turn_T": row_K, "mask_T": row_K >= 0, "rollout_K": rollout_K, "group_B": group_B,
        "uid_P": one, "draw_P": one, "reward_K": torch.tensor(rewards, dtype=torch.float64),
        **columns,
    })  # fmt: skip


def test_worked_example():
    batch = turns([0, 1, 0, 0], [0, 0, 1, 1])
    assert run(DiscountTurnRewards(0.95), batch).value.tolist() == [0.95, 1, 0, 0]
    assert run(DiscountTurnRewards(whole=True), batch).value.tolist() == [1, 1, 0, 0]


def test_penalty_stays_with_its_turn():
    batch = turns([0, 1], [0, 0], valid_K=torch.tensor([True, False]))
    found = run(DiscountTurnRewards(0.5, invalid_penalty=0.1), batch).value
    assert found.tolist() == pytest.approx([0.5, 0.9])
    steps = {"turn_rewards": torch.tensor([[0.0, 1.0]]), "states": torch.tensor([[0, 1]])}
    with pytest.raises(UserError, match="needs action_valid"):
        functional.advantages("gigpo", params={"invalid_penalty": 5.0}, **steps)


@pytest.mark.parametrize(
    ("stop", "expected"),
    [("never", [4.75, 7.5, 11, 14, 16, 32]), ("after", [2, 2, 4, 14, 16, 32]),
     ("before", [1, 2, 4, 14, 16, 32])],
)  # fmt: skip
def test_sums_end_at_actions_that_were_not_wanted(stop, expected):
    match_K = torch.tensor([True, False, False, True, True, True])
    batch = turns([1, 2, 4, 6, 16, 32], [0] * 5 + [1], match_K=match_K)
    assert run(DiscountTurnRewards(0.5, stop=stop), batch).value.tolist() == expected


@pytest.mark.parametrize("gamma", [0.0, 0.3, 0.9, 1.0])
def test_matches_slow_loop(gamma):
    rng = torch.Generator().manual_seed(0)
    rollouts = torch.sort(torch.randint(0, 4, (23,), generator=rng)).values
    rollouts = torch.unique(rollouts, return_inverse=True)[1].tolist()
    rewards = torch.randn(23, generator=rng, dtype=torch.float64).tolist()
    expected, ahead = [0.0] * 23, 0.0
    for k in reversed(range(23)):
        if k + 1 < 23 and rollouts[k + 1] != rollouts[k]:
            ahead = 0.0
        ahead = expected[k] = rewards[k] + gamma * ahead
    found = run(DiscountTurnRewards(gamma), turns(rewards, rollouts)).value
    assert found.tolist() == pytest.approx(expected)


def test_no_discount_of_one_turn_is_the_reward():
    batch = ragged_batch(0)
    found = run(DiscountTurnRewards(0.0), batch.set(reward_K=torch.ones(batch.size("K")))).value
    assert found.tolist() == [1.0] * batch.size("K")
