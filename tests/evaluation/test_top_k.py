"""Return and risk of the top k, by hand and against scipy's ranks."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import spearmanr

from strop.evaluation.top_k import rank_correlation, sharpe_ratio_at_k
from strop.support.errors import UserError


def test_the_ratio_by_hand() -> None:
    # ranked values 10, 7, 4, baseline 6: of two, deviation 1.5; of three, sqrt((9 + 0 + 9) / 3)
    ranked, values = [3.0, 1.0, 2.0], [10.0, 4.0, 7.0]
    two = sharpe_ratio_at_k(ranked, values, 6.0, 2)
    assert two == (2, 10.0, 7.0, 8.5, 7.0, 1.5, pytest.approx(2.6667, abs=1e-4), 0.0)
    three = sharpe_ratio_at_k(ranked, values, 6.0, 3)
    assert three.sharpe_ratio == pytest.approx(4 / math.sqrt(6))
    assert (three.kth, three.worst, three.below_baseline) == (4.0, 4.0, pytest.approx(1 / 3))


def test_candidates_without_spread_have_no_finite_ratio() -> None:
    assert sharpe_ratio_at_k([1, 2], [5, 5], 4, 2).sharpe_ratio == math.inf
    assert sharpe_ratio_at_k([1, 2], [5, 5], 6, 2).sharpe_ratio == -math.inf
    assert math.isnan(sharpe_ratio_at_k([1, 2], [5, 5], 5, 1).sharpe_ratio)
    rounded = sharpe_ratio_at_k([3, 2, 1], [0.1, 0.1, 0.1], 0.05, 3)  # their mean is not 0.1
    assert (rounded.deviation, rounded.sharpe_ratio) == (0, math.inf)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=2, max_size=12))
def test_ranks_agree_with_scipy(pairs: list[tuple[int, int]]) -> None:
    estimates, values = np.array(pairs, dtype=float).T
    found = rank_correlation(estimates, values)
    if len(set(estimates)) == 1 or len(set(values)) == 1:
        assert math.isnan(found)
    else:
        assert found == pytest.approx(spearmanr(estimates, values).statistic)


def test_what_is_no_ranking_is_refused() -> None:
    for estimates, values, k, told in [
        ([1, 2], [1, 2, 3], 1, "one estimate and one value"),
        ([1, 2], [1, math.nan], 1, "not finite"),
        ([1, 2], [1, 2], 3, "there are 2 candidates"),
    ]:
        with pytest.raises(UserError, match=told):
            sharpe_ratio_at_k(estimates, values, 0.0, k)
