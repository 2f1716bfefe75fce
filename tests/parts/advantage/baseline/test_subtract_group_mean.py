import pytest
import torch
from builders import NAN, flat_batch, members_of, ragged_batch, run

from strop.parts.advantage.baseline.subtract_group_mean import SubtractGroupMean
from strop.parts.advantage.baseline.subtract_length_weighted_mean import (
    SubtractLengthWeightedMean,
)


def test_worked_example():
    # mean of (1, 0, 0, 1) = .5
    batch = flat_batch((1, 1, 1, 1), advantage_B=[1.0, 0.0, 0.0, 1.0])
    expected = torch.tensor([0.5, -0.5, -0.5, 0.5], dtype=torch.float64)
    torch.testing.assert_close(run(SubtractGroupMean(), batch).value, expected)


def test_matches_slow_loop():
    batch = ragged_batch(1)
    batch = batch.set(advantage_B=batch["reward_B"])
    expected = torch.zeros_like(batch["reward_B"])
    for group in range(batch.size("P")):
        members = members_of(batch, group)
        values = [float(batch["reward_B"][i]) for i in members]
        for i, value in zip(members, values, strict=True):
            expected[i] = value if len(values) == 1 else value - sum(values) / len(values)
    torch.testing.assert_close(run(SubtractGroupMean(), batch).value, expected, rtol=1e-9, atol=0)


def test_edges():
    batch = flat_batch((1,) * 5, groups=(0, 1, 1, 1, 1), advantage_B=[0.7, 0.1, 0.1, 0.1, NAN])
    batch = batch.set(scored_B=torch.tensor([True, True, True, True, False]))
    assert run(SubtractGroupMean("raw"), batch).value.tolist() == [0.7, 0, 0, 0, 0]
    assert run(SubtractGroupMean("zero"), batch).value.tolist() == [0, 0, 0, 0, 0]


OF_A_GROUP = (
    SubtractGroupMean(),
    SubtractGroupMean(leave_one_out=True),
    SubtractLengthWeightedMean(),
)


@pytest.mark.parametrize("part", OF_A_GROUP)
def test_the_only_scored_rollout_of_several_is_compared_with_nothing(part):
    batch = flat_batch((1,) * 4, groups=(0, 1, 1, 1), advantage_B=[0.7, 50.0, NAN, NAN])
    batch = batch.set(scored_B=torch.tensor([True, True, False, False]))
    assert run(part, batch).value.tolist() == [0.7, 0, 0, 0]


@pytest.mark.parametrize("leave_one_out", [False, True])
@pytest.mark.parametrize("num_imagined", [0, 2])
def test_the_mean_is_that_of_members_and_imagined_ones(leave_one_out, num_imagined):
    rewards, best = [1.0, 0.25, 0.0], 2.0
    batch = flat_batch((1,) * 3, advantage_B=rewards)
    expected = []
    for place, reward in enumerate(rewards):
        counted = rewards[:place] + rewards[place + 1 :] if leave_one_out else rewards
        counted = counted + [best] * num_imagined
        expected.append(reward - sum(counted) / len(counted))
    part = SubtractGroupMean(leave_one_out=leave_one_out, num_imagined=num_imagined, best=best)
    assert run(part, batch).value.tolist() == pytest.approx(expected)
