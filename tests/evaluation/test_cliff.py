import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strop.evaluation.cliff import distance_bound, reweighted_distance, tied_top
from strop.support.errors import UserError


def test_worked_example() -> None:
    one, other, prompt = [1.0, 1.001], [1.001, 1.0], [0, 0]
    for alpha, wanted in ((0.001, 0.4621), (0.1, 0.0050), (1.0, 0.0005)):
        found = reweighted_distance(one, other, prompt, alpha)
        assert found.tolist() == [pytest.approx(wanted, abs=5e-5)]
        assert found[0] <= distance_bound(0.001, alpha)
    assert distance_bound(0.001, 0.001) == 0.5
    assert distance_bound(0.001, 0.1, horizon=10) == pytest.approx(0.05)


@given(
    rewards=st.lists(st.tuples(st.floats(-2, 2), st.floats(-2, 2)), min_size=1, max_size=6),
    alpha=st.floats(0.05, 3),
)
def test_distance_stays_within_its_bound(rewards: list[tuple[float, float]], alpha: float) -> None:
    one, other = np.array(rewards).T
    (found,) = reweighted_distance(one, other, np.zeros(len(one), dtype=int), alpha)
    # without a change of the mean the bound holds; a common shift never moves a policy
    change = np.abs(one - other).max()
    assert found <= min(distance_bound(float(change), alpha), 1.0) + 1e-12
    assert reweighted_distance(one + 3, one, np.zeros(len(one)), alpha)[0] == pytest.approx(0)


def test_ties_are_of_distinct_answers() -> None:
    prompt = np.array([0, 0, 0, 1, 1, 3])
    score = np.array([1.0, 1.0, 0.0, 1.0, 0.0, 1.0])
    assert tied_top(prompt, score, 4).tolist() == [1.0, 0.0, 0.0, 0.0]


def test_means_of_equal_scores_are_tied_whatever_their_number() -> None:
    score = np.array([(0.7 + 0.7 + 0.7) / 3, 0.7])
    assert score[0] < score[1]
    assert tied_top(np.zeros(2, dtype=int), score, 1).tolist() == [1.0]


def test_no_entropy_no_bound() -> None:
    for alpha in (0.0, float("nan")):
        with pytest.raises(UserError, match="entropy"):
            distance_bound(0.1, alpha)
        with pytest.raises(UserError, match="entropy"):
            reweighted_distance([1], [1], [0], alpha)
