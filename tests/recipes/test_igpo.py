import pytest
import torch
from builders import flat_batch, run
from hypothesis import given as over
from hypothesis import strategies as st

from strop import functional as F
from strop.parts.advantage.credit.centre_tokens_by_position import CentreTokensByPosition
from strop.support.errors import UserError

GROUPS = torch.zeros(2, dtype=torch.long)
REWARDS = torch.tensor([[0.2, 0.1, 1.0], [0.0, -0.1, 0.0]], dtype=torch.float64)
# The turns with a token of the environment before the second one.
MASK = torch.tensor([[1, 0, 1, 1]] * 2)
TURNS = torch.tensor([[0, -1, 1, 2]] * 2)


def advantages(rewards=REWARDS, **params):
    return F.advantages("igpo", groups=GROUPS[: len(rewards)], turn_rewards=rewards, params=params)


def close(found, wanted):
    assert found.tolist() == [pytest.approx(row, abs=1e-4) for row in wanted]


def test_worked_example_of_the_paper():
    close(advantages(), [[1.7285, 1.7285, 1.9755], [-1.7285, -1.2347, -0.4939]])
    close(advantages(gamma=0.0), [[0, -0.2469, 1.9755], [-0.4939, -0.7408, -0.4939]])


def test_worked_example_apart_before_and_after_discounting():
    apart = [[1.3416, 0.4472, 1], [-0.4472, -1.3416, -1]]
    close(advantages(variant="separate", gamma=0.0), apart)
    half = [[1.3416 + 0.2236 + 0.25, 0.4472 + 0.5, 1], [-0.4472 - 0.6708 - 0.25, -1.8416, -1]]
    close(advantages(variant="separate", gamma=0.5), half)


def test_worked_example_of_the_code():
    close(advantages(variant="code"), [[0.7, 0.6, 0.5], [-0.7, -0.6, -0.5]])


def test_the_codes_sums_end_at_the_environments_tokens():
    given = {"groups": GROUPS, "turn_rewards": REWARDS}
    turns = torch.tensor([[0, -1, 1, -1, 2]] * 2)
    given |= {"mask": turns >= 0, "turn_ids": turns}
    found = F.advantages("igpo", params={"variant": "code"}, **given)
    close(found, [[0.1, 0, 0.1, 0, 0.5], [-0.1, 0, -0.1, 0, -0.5]])
    on = {"variant": "code", "reset_at_masked": False}
    close(
        F.advantages("igpo", params=on, **given), [[0.7, 0, 0.6, 0, 0.5], [-0.7, 0, -0.6, 0, -0.5]]
    )


def test_the_codes_means_hold_the_returns_of_the_environments_tokens():
    # row 1's middle token has return 1 + 0: the means are (.5, 1, 1)
    mask, rewards = torch.tensor([[1, 1, 1], [1, 0, 1]]), torch.tensor([[0.0, 0, 1]] * 2).double()
    given = {"groups": GROUPS, "mask": mask, "token_rewards": rewards}
    found = F.advantages("igpo", params={"variant": "code"}, **given)
    close(found, [[0.5, 0, 0], [-0.5, 0, 0]])
    # gamma .5: returns (.25, .5, 1) and (0, .5, 1)
    found = F.advantages("igpo", params={"variant": "code", "gamma": 0.5}, **given)
    close(found, [[0.125, 0, 0], [-0.125, 0, 0]])


@over(seed=st.integers(0, 10**6))
def test_matches_slow_loop(seed):
    rng = torch.Generator().manual_seed(seed)
    rewards = torch.randn(5, 9, generator=rng, dtype=torch.float64)
    mask = torch.rand(5, 9, generator=rng) < 0.6
    mask[:, 0] = mask[:, -1] = True
    groups = torch.tensor([0, 0, 1, 1, 1])
    returns = torch.zeros(5, 9).double()
    for i in range(5):
        ahead = 0.0
        for t in reversed(range(9)):
            returns[i, t] = (float(rewards[i, t]) if mask[i, t] else 0.0) + 0.9 * ahead
            ahead = float(returns[i, t]) if mask[i, t] else 0.0
    wanted = torch.stack([returns[i] - returns[groups == groups[i]].mean(0) for i in range(5)])
    found = F.advantages("igpo", groups=groups, mask=mask, token_rewards=rewards,
                         params={"variant": "code", "gamma": 0.9})  # fmt: skip
    torch.testing.assert_close(found, wanted * mask, rtol=1e-9, atol=1e-12)


def test_rewards_of_tokens_are_those_of_turns_on_their_last_token():
    given = {"groups": GROUPS, "mask": MASK, "turn_ids": TURNS, "params": {"variant": "code"}}
    tokens = torch.zeros(2, 4, dtype=torch.float64)
    tokens[:, [0, 2, 3]] = REWARDS
    by_turns = F.advantages("igpo", turn_rewards=REWARDS, **given)
    torch.testing.assert_close(F.advantages("igpo", token_rewards=tokens, **given), by_turns)


def test_shorter_rollouts_count_as_zero_at_later_places():
    valid = torch.tensor([[1, 1, 1], [1, 0, 0]])
    given = {"groups": GROUPS, "turn_rewards": REWARDS, "turn_valid": valid}
    found = F.advantages("igpo", params={"variant": "code"}, **given)
    close(found, [[0.65, 0.55, 0.5], [-0.65, 0, 0]])


def test_a_rollout_without_policy_tokens_counts_as_zero():
    batch = flat_batch((2, 1), reward_T=[0.2, 1.0, 5.0], mask_T=[True, True, False])
    found = run(CentreTokensByPosition(), batch).value
    assert found.tolist() == pytest.approx([0.6, 0.5, 0.0])


def test_one_turn_is_grpo():
    rewards = torch.tensor([1.0, 0.0, 0.5], dtype=torch.float64)
    groups = torch.zeros(3, dtype=torch.long)
    found = F.advantages("igpo", groups=groups, turn_rewards=rewards[:, None])
    plain = F.advantages("grpo", groups=groups, rewards=rewards, params={"eps": 1e-6})
    torch.testing.assert_close(found, plain[:, None])


@pytest.mark.parametrize("variant", ["paper", "separate", "code"])
def test_equal_rewards_teach_nothing_and_a_group_of_one_is_finite(variant):
    same = torch.full((2, 1), 0.3, dtype=torch.float64)
    assert not advantages(same, variant=variant).any()
    alone = advantages(REWARDS[:1], variant=variant)
    assert torch.isfinite(alone).all()
    assert variant == "paper" or alone[0, 2] == 0


def test_unscored_rollouts_take_part_in_nothing():
    rewards = torch.cat([REWARDS, REWARDS[:1] + 5])
    groups = torch.zeros(3, dtype=torch.long)
    outcomes = torch.tensor([1.3, -0.1, float("nan")], dtype=torch.float64)
    for variant in ("paper", "separate", "code"):
        params = {"variant": variant}
        found = F.advantages("igpo", groups=groups, rewards=outcomes, turn_rewards=rewards,
                             params=params)  # fmt: skip
        torch.testing.assert_close(found[:2], advantages(variant=variant))
        assert not found[2].any()


def test_refuses_another_variant():
    with pytest.raises(UserError, match="paper, separate, code"):
        advantages(variant="joint")
