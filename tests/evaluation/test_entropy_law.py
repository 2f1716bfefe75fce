"""The law that relates entropy and score."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strop.evaluation.entropy_law import fit_entropy_law
from strop.support.errors import UserError

ENTROPY = [1, 0.5, 0.2, 0.05, 0]


def test_worked_example():
    found = fit_entropy_law(ENTROPY, [0.1563, 0.3703, 0.4557, 0.4897, 0.5])
    assert (found.a, found.b, found.ceiling) == pytest.approx((0.2, 0.7, 0.5), abs=1e-4)
    assert found.r_squared == pytest.approx(1.0, abs=1e-6)
    assert found.score(0.5) == pytest.approx(0.3703, abs=1e-4)


@given(
    a=st.floats(-2, 2), b=st.floats(-2, 2),
    entropy=st.lists(st.floats(0, 2), min_size=3, max_size=9, unique_by=lambda h: round(h, 1)),
)  # fmt: skip
def test_scores_on_a_law_give_it_back(a, b, entropy):
    scores = [b - a * math.exp(h) for h in entropy]
    found = fit_entropy_law(entropy, scores)
    assert (found.a, found.b) == pytest.approx((a, b), abs=1e-8)


def test_is_ordinary_least_squares_with_one_regressor():
    rng = np.random.default_rng(0)
    entropy, score = rng.random(20), rng.random(20)
    found = fit_entropy_law(entropy, score)
    slope, intercept = np.polyfit(np.exp(entropy), score, 1)
    assert (found.a, found.b) == pytest.approx((-slope, intercept))
    explained = np.corrcoef(np.exp(entropy), score)[0, 1] ** 2
    assert found.r_squared == pytest.approx(explained)


@pytest.mark.parametrize("score", [0.0, 0.1, 0.7])  # the mean of seven 0.7 is not 0.7
def test_equal_scores_leave_nothing_to_explain(score):
    found = fit_entropy_law(np.linspace(1, 0.5, 7), [score] * 7)
    assert found.r_squared == 1
    assert found.ceiling == pytest.approx(score)


def test_what_cannot_be_fitted_is_refused():
    for entropy, score, why in (
        ([1.0, 0.5], [0.1, 0.2], "3 evaluations"),
        ([1.0, 0.5, 0.1], [0.1, 0.2], "3 evaluations"),
        ([1.0, 1.0, 1.0], [0.1, 0.2, 0.3], "different entropies"),
        ([1.0, 0.5, math.nan], [0.1, 0.2, 0.3], "finite"),
    ):
        with pytest.raises(UserError, match=why):
            fit_entropy_law(entropy, score)
