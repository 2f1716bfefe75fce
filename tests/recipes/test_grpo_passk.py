import pytest
import torch
from builders import flat_batch, members_of, ragged_batch, run, stages

from strop import functional
from strop.parts.advantage.baseline.credit_lead_of_best import CreditLeadOfBest
from strop.recipes.grpo_passk import grpo_passk


def call(rewards, **params):
    rewards = torch.tensor(rewards).double()
    groups = torch.zeros(len(rewards)).long()
    found = functional.advantages("grpo_passk", rewards=rewards, groups=groups, params=params)
    return found.tolist()


def test_worked_example():
    assert call([3.0, 1.0, 0.0, 0.0]) == pytest.approx([2 / 2**0.5, 0, 0, 0], abs=1e-5)
    assert call([3.0, 1.0, 0.0, 0.0], normalize_std=False) == [2.0, 0.0, 0.0, 0.0]
    assert call([1.0, 0.0, 0.0, 1.0]) == [0.0] * 4
    assert call([-3.0, -1.0], normalize_std=False) == [0.0, 2.0]


@pytest.mark.parametrize("std", ["unbiased", "biased"])
def test_matches_slow_loop(std):
    batch = stages(grpo_passk(std=std), ragged_batch(5, groups=(3, 1, 4, 2, 6)))
    for group in range(batch.size("P")):
        members = members_of(batch, group)
        rewards = batch["reward_B"][members]
        order = rewards.argsort(descending=True)
        expected = torch.zeros_like(rewards)
        if len(members) > 1:
            deviation = rewards.std(correction=1 if std == "unbiased" else 0)
            lead = rewards[order[0]] - rewards[order[1]]
            expected[order[0]] = lead / (deviation + 1e-6)
        torch.testing.assert_close(batch["advantage_B"][members], expected)


def test_a_group_of_one_and_rollouts_without_a_score():
    assert call([1.0]) == [0.0]
    nan = float("nan")
    assert call([nan, 1.0, 0.25], normalize_std=False) == [0.0, 0.75, 0.0]
    assert call([nan, 1.0]) == [0.0, 0.0]


def test_the_share_of_groups_with_a_winner_and_its_lead_are_logged():
    groups, rewards = (0, 0, 0, 1, 1, 2), [3.0, 1.0, 0.0, 2.0, 2.0, 5.0]  # one tie, one alone
    told = run(CreditLeadOfBest(), flat_batch((1,) * 6, groups, advantage_B=rewards)).metrics
    assert told == {"lead/frac_groups": pytest.approx(1 / 3), "lead/mean": 2.0}
    none = run(CreditLeadOfBest(), flat_batch((1, 1), advantage_B=[1.0, 1.0])).metrics
    assert none == {"lead/frac_groups": 0.0, "lead/mean": 0.0}
