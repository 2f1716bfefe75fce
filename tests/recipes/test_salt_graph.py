import pytest
import torch
from builders import flat_batch, run

from strop import functional as F
from strop.parts.advantage.credit.share_over_transitions import ShareOverTransitions

# Four episodes of two steps: success, success, failure, failure.
TRAJECTORIES = torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])
REWARDS = torch.tensor([0, 1, 0, 1, 0, 0, 0, 0], dtype=torch.float64)
STATES = torch.tensor([9, 1, 9, 1, 9, 1, 9, 2])  # the fourth goes another way
ACTIONS = torch.tensor([5, 0, 5, 1, 5, 2, 6, 3])  # all last actions differ


def advantages(states=STATES, actions=ACTIONS):
    return F.advantages(
        "salt_graph", groups=torch.zeros(8, dtype=torch.long), trajectories=TRAJECTORIES,
        turn_rewards=REWARDS, states=states, actions=actions,
    )  # fmt: skip


def test_worked_example():
    found = advantages()
    own = [0.8660, 0.8660, -0.8660, -0.8660]
    assert found[1::2].tolist() == pytest.approx(own, abs=5e-5)
    assert found[0::2].tolist() == pytest.approx([0.2887] * 3 + [-0.8660], abs=5e-5)


def test_a_transition_that_all_share_is_worth_nothing():
    states = torch.tensor([9, 1] * 4)
    found = advantages(states, torch.tensor([5, 0, 5, 1, 5, 2, 5, 3]))
    assert found[0::2].tolist() == pytest.approx([0] * 4, abs=1e-12)


def test_identical_rollouts_get_nothing():
    found = advantages(torch.tensor([9, 1] * 4), torch.tensor([5, 0] * 4))
    assert found.tolist() == pytest.approx([0] * 8, abs=1e-12)


def test_without_shared_transitions_it_is_grpo():
    plain = F.advantages(
        "grpo", rewards=torch.tensor([1.0, 1, 0, 0]).double(), groups=torch.zeros(4).long()
    )
    found = advantages(torch.arange(8), torch.arange(8))
    torch.testing.assert_close(found, plain.repeat_interleave(2))


def test_the_share_of_shared_transitions_is_logged():
    batch = flat_batch(
        (2,) * 4, turn_T=torch.arange(8), advantage_B=[1.0, 1.0, -1.0, -1.0],
        rollout_K=TRAJECTORIES, state_K=STATES, action_K=ACTIONS,
    )  # fmt: skip
    told = run(ShareOverTransitions(), batch).metrics  # the first turns of three rollouts
    assert told == {"transitions/frac_shared": 3 / 8}
