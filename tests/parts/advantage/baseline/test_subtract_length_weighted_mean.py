import pytest
import torch
from builders import flat_batch, members_of, ragged_batch, run

from strop.parts.advantage.baseline.subtract_group_mean import SubtractGroupMean
from strop.parts.advantage.baseline.subtract_length_weighted_mean import SubtractLengthWeightedMean


def test_worked_example():
    # (2 * 1 + 4 * 0 + 4 * 0 + 2 * 1) / 12 = 1/3
    batch = flat_batch((2, 4, 4, 2), advantage_B=[1.0, 0.0, 0.0, 1.0])
    found = run(SubtractLengthWeightedMean(), batch).value.tolist()
    assert found == pytest.approx([2 / 3, -1 / 3, -1 / 3, 2 / 3])


def test_matches_slow_loop():
    batch = ragged_batch(2)
    batch = batch.set(advantage_B=batch["reward_B"])
    expected = torch.zeros_like(batch["reward_B"])
    for group in range(batch.size("P")):
        members = members_of(batch, group)
        lengths = [int(batch["length_B"][i]) for i in members]
        rewards = [float(batch["reward_B"][i]) for i in members]
        pairs = list(zip(lengths, rewards, strict=True))
        mean = sum(n * r for n, r in pairs) / sum(lengths) if len(members) > 1 else 0.0
        for i, reward in zip(members, rewards, strict=True):
            expected[i] = reward - mean
    found = run(SubtractLengthWeightedMean(), batch).value
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def test_equals_the_group_mean_when_lengths_are_equal():
    batch = flat_batch((3,) * 5, groups=(0, 0, 0, 1, 1), advantage_B=[0.3, 0.9, 0.1, 2.0, -1.0])
    found = run(SubtractLengthWeightedMean(), batch).value
    torch.testing.assert_close(found, run(SubtractGroupMean(), batch).value)


def test_edges():
    batch = flat_batch((1, 5, 7, 2), groups=(0, 1, 1, 1), advantage_B=[3.0, 0.1, 0.1, 0.1])
    assert run(SubtractLengthWeightedMean(), batch).value.tolist() == [3, 0, 0, 0]
    assert run(SubtractLengthWeightedMean("zero"), batch).value.tolist() == [0, 0, 0, 0]
    silent = batch.set(mask_T=torch.zeros_like(batch["mask_T"]))
    assert run(SubtractLengthWeightedMean(), silent).value.tolist() == [3, 0.1, 0.1, 0.1]
    unscored = batch.set(scored_B=torch.tensor([True, False, True, True]))
    unscored = unscored.set(advantage_B=torch.tensor([3.0, 9.0, 0.0, 0.9], dtype=torch.float64))
    found = run(SubtractLengthWeightedMean(), unscored).value
    assert found.tolist() == pytest.approx([3, 0, -0.2, 0.7])


def test_how_far_the_baseline_lies_from_the_mean_is_logged():
    batch = flat_batch((2, 4, 4, 2), advantage_B=[1.0, 0.0, 0.0, 1.0])  # 4/12 beside 1/2
    told = run(SubtractLengthWeightedMean(), batch).metrics
    assert told == {"advantage/baseline_shift": pytest.approx(1 / 6)}
