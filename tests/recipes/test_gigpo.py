import pytest
import torch

from strop import functional as F
from strop.support.errors import UserError

# Two episodes: s0 -> s1 -> success, s0 -> s2 -> failure.
EXAMPLE = {
    "groups": torch.zeros(4, dtype=torch.long),
    "trajectories": torch.tensor([0, 0, 1, 1]),
    "anchors": torch.tensor([7, 8, 7, 9]),
    "turn_rewards": torch.tensor([0.0, 1.0, 0.0, 0.0], dtype=torch.float64),
    "action_valid": torch.ones(4),
}


def advantages(params=None, **changes):
    return F.advantages("gigpo", params=params or {}, **{**EXAMPLE, **changes})


def test_worked_example_over_rows():
    assert advantages().tolist() == pytest.approx([1.5731, 0.8660, -1.5731, -0.8660], abs=1e-4)


def test_worked_example_over_trajectories():
    found = advantages({"episode_statistics": "trajectories"})
    assert found.tolist() == pytest.approx([1.4142, 0.7071, -1.4142, -0.7071], abs=1e-4)


def test_weight_0_is_grpo_over_rows():
    rows = F.advantages("grpo", rewards=torch.tensor([1.0, 1, 0, 0]).double(),
                        groups=EXAMPLE["groups"])  # fmt: skip
    torch.testing.assert_close(advantages({"w": 0.0}), rows)


def test_states_that_never_recur_add_nothing():
    found = advantages(anchors=torch.arange(4))
    torch.testing.assert_close(found, advantages({"w": 0.0}))


def test_one_shared_state_and_a_last_reward_double_the_episode_part():
    same = torch.zeros(4, dtype=torch.long)
    found = advantages({"gamma": 1.0}, anchors=same)
    torch.testing.assert_close(found, 2 * advantages({"w": 0.0}))


def test_an_invalid_action_costs_in_both_parts():
    valid = torch.tensor([1, 1, 1, 0])
    found = advantages({"mode": "mean_norm", "invalid_penalty": 0.1}, action_valid=valid)
    # Episodes (1, 1, 0, -.1), mean .475; only s0 is met twice: returns .95 and 0, centred on .475.
    assert found.tolist() == pytest.approx([0.525 + 0.475, 0.525, -0.475 - 0.475, -0.575])


def test_by_default_an_invalid_action_costs_nothing():
    valid = torch.tensor([1, 1, 1, 0])
    assert advantages(action_valid=valid).equal(advantages())
    assert not advantages({"invalid_penalty": 0.1}, action_valid=valid).equal(advantages())


def test_mean_norm_does_not_divide():
    assert advantages({"mode": "mean_norm"}).tolist() == pytest.approx([0.975, 0.5, -0.975, -0.5])


@pytest.mark.parametrize("params", [{"mode": "std"}, {"episode_statistics": "turns"}])
def test_refuses_unknown_forms(params):
    with pytest.raises(UserError, match=r"(mode|episode_statistics) must be one of "):
        advantages(params)
