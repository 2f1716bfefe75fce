"""AUC and calibration error against slow loops, under weights too."""

import numpy as np
import pytest

from strop.evaluation.calibration import auc, expected_calibration_error, share


def ones(num_prompts: int) -> np.ndarray:
    return np.ones((1, num_prompts))


def slow_auc(confidence: np.ndarray, right: np.ndarray, weight: np.ndarray) -> float:
    top = bottom = 0.0
    for i in np.flatnonzero(right):
        for j in np.flatnonzero(~right):
            pair = weight[i] * weight[j]
            top += pair * ((confidence[i] > confidence[j]) + 0.5 * (confidence[i] == confidence[j]))
            bottom += pair
    return top / bottom


def test_auc_worked_example() -> None:
    # right: -1, -2; wrong: -2, -3. Pairs: won, won, tied, won -> 3.5 / 4
    confidence, right = np.array([-1.0, -2.0, -2.0, -3.0]), np.array([True, True, False, False])
    of = auc(confidence, right, np.arange(4))
    np.testing.assert_allclose(of(ones(4)), [3.5 / 4])
    np.testing.assert_allclose(auc(confidence, ~right, np.arange(4))(ones(4)), [0.5 / 4])


def test_auc_matches_slow_loop_with_ties_and_weights() -> None:
    rng = np.random.default_rng(3)
    confidence = rng.integers(-6, 0, 40).astype(float)
    right, prompt = rng.random(40) < 0.4, rng.integers(0, 7, 40)
    counts = rng.integers(0, 4, (5, 7)).astype(float)
    expected = [slow_auc(confidence, right, row[prompt]) for row in counts]
    np.testing.assert_allclose(auc(confidence, right, prompt)(counts), expected, rtol=1e-12)


def test_auc_without_a_pair_is_undefined() -> None:
    confidence, prompt = np.array([-1.0, -2.0]), np.array([0, 0])
    assert np.isnan(auc(confidence, np.array([True, True]), prompt)(ones(1))[0])
    empty = auc(np.array([]), np.array([], dtype=bool), np.array([], dtype=np.int64))
    assert np.isnan(empty(ones(2))).all()


def test_calibration_error_worked_example() -> None:
    # bin [0.9, 1]: two, mean 0.95, half right: gap 0.45; bin [0.2, 0.3): one, 0.25, right: gap 0.75
    probability, right = np.array([0.9, 1.0, 0.25]), np.array([True, False, True])
    of = expected_calibration_error(probability, right, np.array([0, 1, 1]))
    np.testing.assert_allclose(of(ones(2)), [2 / 3 * 0.45 + 1 / 3 * 0.75])
    # prompt 1 twice: bin of 0.9 and 1, 1 -> 2.9 stated, 1 right; bin of 0.25 twice
    np.testing.assert_allclose(of(np.array([[1.0, 2.0]])), [(1.9 + 1.5) / 5])


def test_share_of_nothing_is_undefined() -> None:
    of = share(np.array([1.0, 0.0]), np.array([2.0, 0.0]))
    found = of(np.array([[3.0, 1.0], [0.0, 1.0]]))
    assert found[0] == pytest.approx(0.5)
    assert np.isnan(found[1])
