import math

import pytest
from builders import NAN, flat_batch, run

from strop.parts.advantage.baseline.subtract_group_log_mean_exp import SubtractGroupLogMeanExp
from strop.support.errors import UserError


def advantages(rewards, groups=None, tau=1.0, **columns):
    batch = flat_batch((1,) * len(rewards), groups=groups, advantage_B=rewards, **columns)
    return run(SubtractGroupLogMeanExp(tau), batch).value.tolist()


def test_worked_example():
    # log((e^0 + e^1) / 2) = 0.620115; at tau 1/2: log((1 + e^2) / 2) / 2 = 0.716890
    assert advantages([1.0, 0.0]) == pytest.approx([0.379885, -0.620115], abs=1e-6)
    assert advantages([1.0, 0.0], tau=0.5) == pytest.approx([0.283110, -0.716890], abs=1e-6)


def test_between_the_mean_and_the_best():
    rewards = [0.1, 0.5, 0.9]
    assert advantages(rewards, tau=1e5) == pytest.approx([-0.4, 0, 0.4], abs=1e-5)
    assert advantages(rewards, tau=1e-3) == pytest.approx(
        [r - 0.9 + 1e-3 * math.log(3) for r in rewards]
    )


def test_edges():
    rewards, groups = [0.3, 0.3, -700.0, 700.0, 0.7, NAN], (0, 0, 1, 1, 2, 0)
    found = advantages(rewards, groups, scored_B=[True] * 5 + [False])
    assert found == pytest.approx([0, 0, -1400 + math.log(2), math.log(2), 0.7, 0])
    with pytest.raises(UserError, match=r"subtract_group_log_mean_exp\.tau"):
        SubtractGroupLogMeanExp(0.0)


def test_how_far_the_baseline_lies_from_the_mean_is_logged():
    batch = flat_batch((1, 1), advantage_B=[1.0, 0.0])
    shift = math.log((math.e + 1) / 2) - 0.5
    told = run(SubtractGroupLogMeanExp(), batch).metrics
    assert told == {"advantage/baseline_shift": pytest.approx(shift)}
