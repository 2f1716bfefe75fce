"""A baseline for each role: over the step, the prompt, or the game."""

import pytest
import torch
from builders import flat_batch, run

from strop import functional as F
from strop.parts.advantage.baseline.subtract_role_mean import SubtractRoleMean
from strop.parts.reward.weigh_rewards_by_phase import WeighRewardsByPhase
from strop.recipes.advevo_public_baseline import advevo_public_baseline
from strop.support.errors import UserError

# One attacker and two defenders in each of two games of one prompt, and one game of another.
PLAYERS = torch.tensor([0, 1, 1, 0, 1, 1, 0, 1, 1])
GROUPS = torch.tensor([3, 3, 3, 3, 3, 3, 8, 8, 8])
EPISODES = torch.tensor([5, 5, 5, 6, 6, 6, 7, 7, 7])
REWARDS = torch.tensor([1.0, 0, 0, 0, 1, 0.5, 0, 0.5, 1], dtype=torch.float64)


def advantages(rewards=REWARDS, players=PLAYERS, groups=GROUPS, **more):
    params = more.pop("params", {})
    given = {"rewards": rewards, "players": players, "groups": groups, "params": params, **more}
    return F.advantages("advevo_public_baseline", **given)


def test_worked_example():
    rewards = torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64)
    found = F.advantages("advevo_public_baseline", rewards=rewards, players=torch.ones(3).long())
    assert found.tolist() == pytest.approx([0.3333, -0.6667, 0.3333], abs=1e-4)


def test_a_role_over_the_step():
    # Attackers 1, 0, 0: mean 1/3. Defenders 0, 0, 1, .5, .5, 1: mean .5.
    wanted = [2 / 3, -0.5, -0.5, -1 / 3, 0.5, 0, -1 / 3, 0, 0.5]
    assert advantages().tolist() == pytest.approx(wanted)


def test_a_role_in_its_prompt():
    # Attackers 1, 0 and 0; defenders 0, 0, 1, .5 (mean .375) and .5, 1 (mean .75).
    wanted = [0.5, -0.375, -0.375, -0.5, 0.625, 0.125, 0, -0.25, 0.25]
    assert advantages(params={"pool": "prompt"}).tolist() == pytest.approx(wanted)


def test_a_role_in_its_game():
    found = advantages(episode=EPISODES, params={"pool": "episode"})
    # An attacker is alone in its game: 0.
    assert found.tolist() == pytest.approx([0, 0, 0, 0, 0.25, -0.25, 0, -0.25, 0.25])


def test_one_agent_a_role_over_a_prompt_is_mean_centred_grpo():
    rewards, games = REWARDS[:6], torch.tensor([0, 1] * 3)
    ours = advantages(rewards, games, torch.zeros(6).long(), params={"pool": "prompt"})
    plain = {"normalize_std": False, "singleton": "zero"}
    theirs = F.advantages("grpo", rewards=rewards, groups=games, params=plain)
    torch.testing.assert_close(ours, theirs)


def test_one_role_is_a_batch_baseline():
    found = advantages(players=torch.zeros(9).long())
    torch.testing.assert_close(found, REWARDS - REWARDS.mean())


def test_whitening_is_that_of_the_parent():
    mask = torch.ones(9, 2, dtype=torch.bool)
    plain = advantages(mask=mask)
    white = advantages(mask=mask, params={"whiten": True})
    wanted = plain * (plain.flatten().var() + 1e-8).rsqrt()
    torch.testing.assert_close(white, wanted - wanted.mean())


def test_unscored_and_equal_rewards():
    rewards = REWARDS.clone()
    rewards[4] = float("nan")
    found = advantages(rewards)
    # Defenders without the fifth row: 0, 0, .5, .5, 1: mean .4.
    assert found.tolist() == pytest.approx([2 / 3, -0.4, -0.4, -1 / 3, 0, 0.1, -1 / 3, 0.1, 0.6])
    assert not advantages(torch.full((9,), 0.7, dtype=torch.float64)).any()
    assert not advantages(REWARDS[:1], PLAYERS[:1], GROUPS[:1]).any()


def test_what_is_missing_is_named():
    with pytest.raises(UserError, match="needs players"):
        F.advantages("advevo_public_baseline", rewards=REWARDS, groups=GROUPS)
    with pytest.raises(UserError, match="needs episode"):
        advantages(params={"pool": "episode"})


def test_how_far_the_roles_baselines_lie_from_that_of_all_is_logged():
    # 1/2 and 5/2 beside 3/2, in one pool
    batch = flat_batch((1,) * 4, advantage_B=[1.0, 0.0, 3.0, 2.0], role_B=[0, 0, 1, 1])
    assert run(SubtractRoleMean(), batch).metrics == {"advantage/baseline_shift": 1.0}


def test_rewards_weigh_otherwise_in_the_second_half():
    # safety and task of three defenders; an attacker has neither, an unscored one keeps its reward
    rewards = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [torch.nan] * 2, [1.0, 0.0]])
    batch = flat_batch(
        [1] * 5, reward_B=[1.0, 1.0, 2.0, 0.0, 7.0],
        scored_B=torch.tensor([True, True, True, True, False]), reward_BM=rewards,
        num_steps=torch.tensor(10),
    )  # fmt: skip
    part = WeighRewardsByPhase((0.7, 0.3), (0.2, 0.8))
    for step, wanted in ((5, [0.7, 0.3, 1.0, 0.0, 7.0]), (6, [0.2, 0.8, 1.0, 0.0, 7.0])):
        found = run(part, batch.set(step=torch.tensor(step))).value
        assert found.tolist() == pytest.approx(wanted)
    algorithm = advevo_public_baseline(first_half=(0.7, 0.3), second_half=(0.2, 0.8))
    assert algorithm.reward[-1].part == part
    plain = run(WeighRewardsByPhase(), batch.set(step=torch.tensor(1))).value
    assert plain.equal(batch["reward_B"])
    with pytest.raises(UserError, match="2 weights for 3 rewards"):
        run(part, batch.set(step=torch.tensor(1), reward_BM=torch.ones(5, 3)))
