import pytest
import torch
from builders import NAN, flat_batch, members_of, ragged_batch, run

from strop.parts.advantage.baseline.subtract_group_mean import SubtractGroupMean
from strop.support.errors import UserError

OTHERS = SubtractGroupMean(leave_one_out=True)


def test_worked_example():
    # the others of a 1 have mean (0 + 0 + 1) / 3 = 1/3, of a 0 (1 + 0 + 1) / 3 = 2/3
    batch = flat_batch((2, 4, 4, 2), advantage_B=[1.0, 0.0, 0.0, 1.0])
    expected = torch.tensor([2 / 3, -2 / 3, -2 / 3, 2 / 3], dtype=torch.float64)
    torch.testing.assert_close(run(OTHERS, batch).value, expected)


def test_matches_slow_loop():
    batch = ragged_batch(1, groups=(3, 1, 5, 2, 7))
    batch = batch.set(advantage_B=batch["reward_B"])
    expected = torch.zeros_like(batch["reward_B"])
    for group in range(batch.size("P")):
        members = members_of(batch, group)
        for i in members:
            others = [float(batch["reward_B"][j]) for j in members if j != i]
            baseline = sum(others) / len(others) if others else 0.0
            expected[i] = float(batch["reward_B"][i]) - baseline
    found = run(OTHERS, batch).value
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def test_equals_group_mean_times_g_over_g_minus_1():
    batch = ragged_batch(3, groups=(4, 4), unscored=())
    found = run(OTHERS, batch).value
    torch.testing.assert_close(found, run(SubtractGroupMean(), batch).value * 4 / 3)


def test_edges():
    batch = flat_batch((1,) * 5, groups=(0, 1, 1, 1, 1), advantage_B=[0.7, 0.1, 0.1, 0.1, NAN])
    batch = batch.set(scored_B=torch.tensor([True, True, True, True, False]))
    assert run(OTHERS, batch).value.tolist() == [0.7, 0, 0, 0, 0]
    alone_is_zero = SubtractGroupMean("zero", leave_one_out=True)
    assert run(alone_is_zero, batch).value.tolist() == [0, 0, 0, 0, 0]
    with pytest.raises(UserError, match="singleton"):
        SubtractGroupMean("error")


def test_how_far_the_baseline_lies_from_the_groups_mean_is_logged():
    # others' mean 1/3 or 2/3 beside 1/2; the group of one has no mean to leave
    batch = flat_batch((1,) * 5, (0, 0, 0, 0, 1), advantage_B=[1.0, 0.0, 0.0, 1.0, 9.0])
    told = run(SubtractGroupMean(leave_one_out=True), batch).metrics
    assert told == {"advantage/baseline_shift": pytest.approx(1 / 6)}
    assert run(SubtractGroupMean(), batch).metrics == {}
