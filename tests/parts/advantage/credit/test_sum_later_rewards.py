import pytest
import torch
from builders import run
from ragged import ragged_batch

from strop.parts.advantage.credit.discount_turn_rewards import DiscountTurnRewards
from strop.parts.advantage.credit.place_turn_rewards import PlaceTurnRewards
from strop.parts.advantage.credit.spread_turns import SpreadTurns
from strop.parts.advantage.credit.sum_later_rewards import SumLaterRewards


def placed(batch):
    return batch.set(reward_T=run(PlaceTurnRewards(), batch).value)


def slow(part, batch):
    """Token by token, from the end."""
    rows = range(batch.size("T"))
    turn, rollout = batch["turn_T"].tolist(), batch["rollout_T"].tolist()
    counts = [bool(batch["mask_T"][t] and batch["scored_B"][rollout[t]]) for t in rows]
    last = {turn[t]: t for t in rows if batch["mask_T"][t]}
    reward = [
        float(batch["reward_K"][turn[t]]) if counts[t] and last.get(turn[t]) == t else 0.0
        for t in rows
    ]
    if part.whiten:
        members = torch.tensor([reward[t] for t in rows if counts[t]], dtype=torch.float64)
        scale = float((members.var() + part.eps) ** -0.5)
        reward = [(reward[t] - float(members.mean())) * scale * counts[t] for t in rows]
    total = [0.0] * len(reward)
    for t in reversed(rows):
        more = t + 1 < len(reward) and rollout[t + 1] == rollout[t]
        total[t] = reward[t] + (part.gamma * total[t + 1] if more else 0.0)
    return [total[t] * counts[t] for t in rows]


@pytest.mark.parametrize("gamma", [1.0, 0.8])
@pytest.mark.parametrize("whiten", [False, True])
def test_matches_slow_loop(gamma, whiten):
    for seed in range(3):
        part, batch = SumLaterRewards(gamma, whiten), placed(ragged_batch(seed))
        assert run(part, batch).value.tolist() == pytest.approx(slow(part, batch), abs=1e-9)


def test_without_discount_it_is_the_turns_return_spread():
    batch = ragged_batch(5)
    batch = batch.set(
        mask_T=batch["mask_T"] | (batch["turn_T"].diff(append=torch.tensor([-1])) != 0)
    )
    scored_T = batch["scored_B"][batch["rollout_T"]]
    turns = batch.set(advantage_K=run(DiscountTurnRewards(), batch).value)
    expected = torch.where(scored_T, run(SpreadTurns(), turns).value, 0)
    torch.testing.assert_close(run(SumLaterRewards(), placed(batch)).value, expected)
