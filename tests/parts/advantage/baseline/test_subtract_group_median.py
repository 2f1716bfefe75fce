import statistics

import torch
from builders import NAN, flat_batch, members_of, ragged_batch, run

from strop.parts.advantage.baseline.subtract_group_mean import SubtractGroupMean
from strop.parts.advantage.baseline.subtract_group_median import SubtractGroupMedian


def test_worked_example():
    # sorted .1 .2 .5 .9 1: median .5
    batch = flat_batch((1,) * 5, advantage_B=[0.1, 0.5, 0.9, 1.0, 0.2])
    expected = torch.tensor([-0.4, 0.0, 0.4, 0.5, -0.3], dtype=torch.float64)
    torch.testing.assert_close(run(SubtractGroupMedian(), batch).value, expected)


def test_matches_slow_loop():
    batch = ragged_batch(1, groups=(3, 1, 4, 2, 6))
    batch = batch.set(advantage_B=batch["reward_B"])
    expected = torch.zeros_like(batch["reward_B"])
    for group in range(batch.size("P")):
        members = members_of(batch, group)
        middle = statistics.median_low([float(batch["reward_B"][i]) for i in members])
        for i in members:
            expected[i] = float(batch["reward_B"][i]) - middle
    torch.testing.assert_close(run(SubtractGroupMedian(), batch).value, expected)


def test_equals_group_mean_where_mean_is_median():
    batch = flat_batch((1,) * 3, advantage_B=[0.5, -1.0, 2.0])
    batch = batch.set(advantage_B=torch.tensor([-1.0, 0.5, 2.0], dtype=torch.float64))
    found = run(SubtractGroupMedian(), batch).value
    torch.testing.assert_close(found, run(SubtractGroupMean(), batch).value)


def test_edges():
    # an even number: the lower middle one, .3 of (.3, .8); a group of one; a group unscored
    rewards = [0.3, 0.8, 0.7, 0.1, 0.1, NAN, NAN]
    batch = flat_batch((1,) * 7, groups=(0, 0, 1, 2, 2, 2, 3), advantage_B=rewards)
    batch = batch.set(scored_B=~batch["advantage_B"].isnan())
    assert run(SubtractGroupMedian(), batch).value.tolist() == [0, 0.5, 0, 0, 0, 0, 0]


def test_how_far_the_median_lies_from_the_mean_is_logged():
    batch = flat_batch((1,) * 4, advantage_B=[3.0, 1.0, 2.0, 6.0])  # 2 beside 3
    assert run(SubtractGroupMedian(), batch).metrics == {"advantage/baseline_shift": 1.0}
