import statistics

import pytest
import torch
from builders import NAN, flat_batch, members_of, ragged_batch, run

from strop.parts.advantage.baseline.subtract_group_mean import SubtractGroupMean
from strop.parts.advantage.baseline.subtract_length_weighted_mean import SubtractLengthWeightedMean
from strop.parts.advantage.scale.divide_by_group_std import DivideByGroupStd
from strop.support.errors import UserError

OTHERS = SubtractGroupMean(leave_one_out=True)


def test_worked_examples():
    # mean of (1, 0, 0, 1) = .5
    batch = flat_batch((2, 4, 4, 2), advantage_B=[1.0, 0.0, 0.0, 1.0])
    assert run(SubtractGroupMean(), batch).value.tolist() == [0.5, -0.5, -0.5, 0.5]
    # the others of a 1 have mean (0 + 0 + 1) / 3 = 1/3, of a 0 (1 + 0 + 1) / 3 = 2/3
    expected = [2 / 3, -2 / 3, -2 / 3, 2 / 3]
    assert run(OTHERS, batch).value.tolist() == pytest.approx(expected)


@pytest.mark.parametrize("others", [False, True])
@pytest.mark.parametrize(("imagined", "best"), [(0, 1.0), (1, 1.0), (3, 1.7)])
def test_matches_slow_loop_with_its_scale(imagined, best, others):
    batch = ragged_batch(1)
    batch = batch.set(advantage_B=batch["reward_B"])
    expected = torch.zeros_like(batch["reward_B"])
    scaled = torch.zeros_like(batch["reward_B"])
    for group in range(batch.size("P")):
        members = members_of(batch, group)
        everyone = [float(batch["reward_B"][i]) for i in members] + [best] * imagined
        for i in members:
            reward = float(batch["reward_B"][i])
            expected[i], scale = reward, 1.0
            if len(members) > 1:
                compared = [float(batch["reward_B"][j]) for j in members if j != i or not others]
                expected[i] = reward - statistics.mean([*compared, *[best] * imagined])
                scale = statistics.stdev(everyone)
            scaled[i] = expected[i] / (1e-3 + scale)
    part = SubtractGroupMean(leave_one_out=others, num_imagined=imagined, best=best)
    found = run(part, batch).value
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
    if others:  # the deviation's own reduction is of the plain mean
        return
    scale = DivideByGroupStd(eps=1e-3, num_imagined=imagined)
    found = run(scale, batch.set(advantage_B=found)).value
    torch.testing.assert_close(found, scaled, rtol=1e-9, atol=1e-12)


def test_facts_are_those_of_imagined_rollouts():
    assert SubtractGroupMean().facts == frozenset()
    stated = {"advantage_mean_is_not_zero", "learns_from_uniform_groups"}
    assert SubtractGroupMean(num_imagined=1).facts == stated


@pytest.mark.parametrize("others", [False, True])
def test_edges(others):
    batch = flat_batch((1,) * 5, groups=(0, 1, 1, 1, 1), advantage_B=[0.7, 0.1, 0.1, 0.1, NAN])
    batch = batch.set(scored_B=torch.tensor([True, True, True, True, False]))
    for num_imagined in (0, 2):
        for singleton, alone in (("raw", 0.7), ("zero", 0)):
            part = SubtractGroupMean(singleton, others, num_imagined, best=0.1)
            assert run(part, batch).value.tolist() == [alone, 0, 0, 0, 0]


OF_A_GROUP = (
    SubtractGroupMean(),
    OTHERS,
    SubtractGroupMean(num_imagined=1),
    SubtractLengthWeightedMean(),
)


@pytest.mark.parametrize("part", OF_A_GROUP)
def test_the_only_scored_rollout_of_several_is_compared_with_nothing(part):
    batch = flat_batch((1,) * 4, groups=(0, 1, 1, 1), advantage_B=[0.7, 50.0, NAN, NAN])
    batch = batch.set(scored_B=torch.tensor([True, True, False, False]))
    assert run(part, batch).value.tolist() == [0.7, 0, 0, 0]


def test_what_is_refused():
    with pytest.raises(UserError, match="singleton"):
        SubtractGroupMean("error")
    for part in (SubtractGroupMean, DivideByGroupStd):
        with pytest.raises(UserError, match="num_imagined"):
            part(num_imagined=-1)


def test_how_far_the_baseline_lies_from_the_groups_mean_is_logged():
    # others' mean 1/3 or 2/3 beside 1/2; the group of one has no mean to leave
    batch = flat_batch((1,) * 5, (0, 0, 0, 0, 1), advantage_B=[1.0, 0.0, 0.0, 1.0, 9.0])
    assert run(OTHERS, batch).metrics == {"advantage/baseline_shift": pytest.approx(1 / 6)}
    assert run(SubtractGroupMean(), batch).metrics == {}
    batch = flat_batch((1,) * 3, advantage_B=[0.0, 0.0, 0.0])  # (0 + 1) / 4 beside 0
    told = run(SubtractGroupMean(num_imagined=1), batch).metrics
    assert told == {"advantage/baseline_shift": pytest.approx(1 / 4)}
