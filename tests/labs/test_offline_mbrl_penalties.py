"""labs/offline_mbrl_penalties.py: penalties by hand, plans, and which data tune what."""

import numpy as np
import pytest
from opened import opened

lab = opened("offline_mbrl_penalties")
# Three models of one place, in two dimensions.
MEAN = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
SD = np.array([[0.1, 0.1], [0.2, 0.1], [0.1, 0.3]])


def test_penalties_by_hand():
    assert lab.max_aleatoric(MEAN, SD) == pytest.approx(0.1**0.5)  # of (0.1, 0.3)
    assert lab.max_pairwise(MEAN, SD) == pytest.approx(2**0.5)
    # (0.01 + 0.04 + 0.01 + 1) / 3 - 1/9 and (0.01 + 0.01 + 0.09 + 1) / 3 - 1/9
    assert lab.mixture_variance(MEAN, SD) == pytest.approx([0.2422222, 0.2588889])
    assert lab.mixture_deviation(MEAN, SD) == pytest.approx((0.2422222 + 0.2588889) ** 0.5)


def test_penalties_of_two_models_by_hand():
    mean, sd = np.array([[0.0], [2.0]]), np.array([[1.0], [2.0]])
    # both predict 1 together: -1/2 and -1/8 - ln 2, which lie 0.3181 apart
    half = (0.5 - 0.125 - np.log(2)) / 2
    assert lab.likelihood_variance(mean, sd) == pytest.approx(half**2)
    # of N(0, 1) from N(2, 4): ln 2 + (1 + 4) / 8 - 1/2; back: -ln 2 + (4 + 4) / 2 - 1/2
    both = np.log(2) + 0.625 - 0.5 - np.log(2) + 4 - 0.5
    assert lab.leave_one_out(mean, sd) == pytest.approx(both / 2)


def test_models_that_agree_have_nothing_to_be_unsure_of():
    mean, sd = np.ones((3, 4, 1)), np.full((3, 4, 1), 0.2)
    for name in ("pairwise", "likelihood", "one out"):
        assert lab.PENALTIES[name](mean, sd) == pytest.approx(np.zeros(4)), name
    assert lab.mixture_deviation(mean, sd) == pytest.approx(np.full(4, 0.2))


def test_the_world_rewards_the_far_side_and_its_current_carries_back():
    assert lab.moved(np.array([0.0, 0.3, 1.0]), np.array([1.0, 1.0, 1.0])) == pytest.approx(
        [0.12, -0.18, 1.0]
    )
    assert lab.reward(np.array([0.8]))[0] > lab.reward(np.array([-0.05]))[0] > 0
    assert lab.REAL.sum(-1) == pytest.approx(np.ones(lab.REAL.shape[:2]))
    best = lab.true_return(lab.planned(lab.REAL, np.zeros(lab.REAL.shape[:2])))
    always_right = lab.true_return(np.full(len(lab.GRID), len(lab.PUSHES) - 1))
    assert best > always_right


def test_a_penalty_keeps_a_plan_out():
    barred = np.zeros(lab.REAL.shape[:2])
    barred[:, -3:] = 100.0  # all pushes to the right
    assert lab.planned(lab.REAL, barred).max() <= 3


def test_rank_correlation():
    one = np.array([1.0, 5.0, 2.0, 9.0])
    assert lab.rank_correlation(one, one**3) == pytest.approx(1)
    assert lab.rank_correlation(one, -one) == pytest.approx(-1)
    assert lab.rank_correlation(one, np.array([1.0, 2.0, 5.0, 9.0])) == pytest.approx(0.8)


def test_a_setting_is_chosen_by_its_mean_over_the_sets_given():
    def of(best):
        returns = {("a", w, n): float((w, n) == best) for w in lab.WEIGHTS for n in lab.NUMBERS}
        return lab.Studied({}, returns)

    assert lab.tuned("a", [of((3.0, 15)), of((0.1, 3)), of((0.1, 3))]) == (0.1, 3)


def test_models_know_more_where_data_are():
    found = lab.studied(0)
    for name in lab.PENALTIES:
        assert found.calibration[name, 15] > 0.2
    without_weight = {found.returns[name, 0.0, 7] for name in lab.PENALTIES}
    assert len(without_weight) == 1
