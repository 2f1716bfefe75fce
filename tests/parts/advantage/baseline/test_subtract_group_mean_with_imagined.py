import statistics

import pytest
import torch
from builders import flat_batch, members_of, ragged_batch, run

from strop.parts.advantage.baseline.subtract_group_mean import SubtractGroupMean
from strop.parts.advantage.scale.divide_by_group_std import DivideByGroupStd
from strop.support.errors import UserError


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        ([0.0] * 4, [-0.4472] * 4),  # mean .2, deviation sqrt(.2)
        ([1.0, 0.0, 0.0, 0.0], [1.0954, -0.7303, -0.7303, -0.7303]),
        ([1.0] * 4, [0.0] * 4),
        ([0.0] * 8, [-0.3333] * 8),
    ],
)
def test_worked_example_with_its_scale(rewards, expected):
    batch = flat_batch((1,) * len(rewards), advantage_B=rewards)
    centred = batch.set(advantage_B=run(SubtractGroupMean(num_imagined=1), batch).value)
    found = run(DivideByGroupStd(num_imagined=1), centred).value
    assert found.tolist() == pytest.approx(expected, abs=5e-5)


@pytest.mark.parametrize("others", [False, True])
@pytest.mark.parametrize(("imagined", "best"), [(1, 1.0), (3, 1.7)])
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
            alone = len(members) == 1
            compared = [float(batch["reward_B"][j]) for j in members if j != i or not others]
            baseline = statistics.mean([*compared, *[best] * imagined])
            expected[i] = reward - (0.0 if alone else baseline)
            scaled[i] = expected[i] / (1e-3 + (1.0 if alone else statistics.stdev(everyone)))
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


def test_edges():
    batch = flat_batch((1,) * 3, groups=(0, 1, 1), advantage_B=[0.3, 0.1, 0.1])
    assert run(SubtractGroupMean(num_imagined=1), batch).value[0] == 0.3
    alone_is_zero = SubtractGroupMean("zero", num_imagined=2, best=0.1)
    assert run(alone_is_zero, batch).value.tolist() == [0, 0, 0]
    unscored = batch.set(scored_B=torch.tensor([True, True, False]))
    assert run(SubtractGroupMean(num_imagined=1), unscored).value.tolist() == [0.3, 0.0, 0.0]
    with pytest.raises(UserError, match="num_imagined"):
        SubtractGroupMean(num_imagined=-1)
    with pytest.raises(UserError, match="num_imagined"):
        DivideByGroupStd(num_imagined=-1)


def test_how_far_the_baseline_lies_from_the_groups_mean_is_logged():
    batch = flat_batch((1,) * 3, advantage_B=[0.0, 0.0, 0.0])  # (0 + 1) / 4 beside 0
    told = run(SubtractGroupMean(num_imagined=1), batch).metrics
    assert told == {"advantage/baseline_shift": pytest.approx(1 / 4)}
