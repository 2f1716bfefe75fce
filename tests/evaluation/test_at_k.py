"""pass@k, maj@k and distinct@k against every subset, and their properties."""

from collections import Counter
from itertools import combinations
from math import comb
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strop.evaluation import at_k
from strop.evaluation.at_k import distinct_at_k, majority_at_k, pass_at_k

Rollouts = list[tuple[str | None, bool]]
answers = st.sampled_from(["7", "8", "9", None])
rollouts = st.lists(st.tuples(answers, st.booleans()), min_size=1, max_size=8)


def table(samples: Rollouts) -> tuple[np.ndarray, np.ndarray]:
    """Votes and correctness of each answer."""
    votes = Counter(a for a, _ in samples if a is not None)
    right = [np.mean([r for a, r in samples if a == answer]) for answer in votes]
    return np.array(list(votes.values()), dtype=np.int64), np.array(right, dtype=float)


def slow_majority(samples: Rollouts, k: int) -> float:
    """Mean over all subsets; the winner's correctness is that of its votes in the whole sample."""
    scores = []
    for subset in combinations(samples, k):
        votes = Counter(a for a, _ in subset if a is not None)
        if not votes:
            scores.append(0.0)
            continue
        tied = [a for a, count in votes.items() if count == max(votes.values())]
        scores.append(np.mean([np.mean([r for b, r in samples if b == a]) for a in tied]))
    return float(np.mean(scores))


def majority(samples: Rollouts, k: int) -> float:
    return majority_at_k(*table(samples), len(samples), k, np.random.default_rng(0))


def test_pass_at_k_worked_example() -> None:
    # n = 5, c = 2, k = 3: one of C(5, 3) = 10 subsets holds no right sample
    np.testing.assert_allclose(pass_at_k([5, 4], [2, 1], 3), [1 - 1 / 10, 3 / 4], rtol=1e-15)


def test_pass_at_k_stays_exact_where_binomials_overflow() -> None:
    n, c, k = 10_000, 3, 4_000
    exact = 1 - comb(n - c, k) / comb(n, k)  # whole numbers of thousands of digits
    assert pass_at_k(n, c, k) == pytest.approx(exact, abs=1e-12)


@given(rollouts)
def test_pass_at_k_is_the_mean_over_all_subsets(samples: Rollouts) -> None:
    n, c = len(samples), sum(right for _, right in samples)
    for k in range(1, n + 1):
        hits = [any(right for _, right in subset) for subset in combinations(samples, k)]
        assert pass_at_k(n, c, k) == pytest.approx(np.mean(hits), abs=1e-12)


@given(rollouts)
def test_majority_is_the_mean_over_all_subsets(samples: Rollouts) -> None:
    for k in range(1, len(samples) + 1):
        assert majority(samples, k) == pytest.approx(slow_majority(samples, k), abs=1e-12)


@given(rollouts)
def test_distinct_is_the_mean_over_all_subsets(samples: Rollouts) -> None:
    count_A, _ = table(samples)
    n_P = np.array([len(samples)])
    for k in range(1, len(samples) + 1):
        sizes = [len({a for a, _ in s if a is not None}) for s in combinations(samples, k)]
        found = distinct_at_k(np.zeros(len(count_A), dtype=np.int64), count_A, n_P, k)
        np.testing.assert_allclose(found, [np.mean(sizes)], atol=1e-12)


def test_majority_worked_examples() -> None:
    # two right "7", two wrong "8": a subset of 3 is decided 2 to 1, either way equally often
    samples: Rollouts = [("7", True), ("7", True), ("8", False), ("8", False)]
    assert majority(samples, 3) == pytest.approx(0.5)
    # 3 votes for 7, one for 8, k = 2: C(3,2) = 3 of 6 pairs are 7 7; the other 3 are ties
    assert majority([*samples[:2], samples[0], samples[2]], 2) == pytest.approx(3 / 6 + 3 / 6 / 2)
    # without an answer nobody votes: of 3 pairs only (None, None) scores 0, and it is one of them
    assert majority([("7", True), (None, False), (None, False)], 2) == pytest.approx(2 / 3)
    assert majority([(None, False)], 1) == 0.0


@given(st.integers(1, 40), st.data())
def test_pass_at_k_bounds_and_monotone_in_k_and_c(n: int, data: st.DataObject) -> None:
    c = data.draw(st.integers(0, n))
    by_k = [float(pass_at_k(n, c, k)) for k in range(1, n + 1)]
    assert by_k == sorted(by_k)
    assert by_k[0] == pytest.approx(c / n)
    assert by_k[-1] == (1.0 if c else 0.0)
    if c < n:
        assert all(float(pass_at_k(n, c + 1, k)) >= p for k, p in enumerate(by_k, start=1))


@given(rollouts, st.randoms())
def test_majority_ignores_order_and_keeps_bounds(samples: Rollouts, random: Random) -> None:
    shuffled = random.sample(samples, len(samples))
    for k in range(1, len(samples) + 1):
        value = majority(samples, k)
        assert -1e-12 <= value <= 1 + 1e-12
        assert majority(shuffled, k) == pytest.approx(value, abs=1e-12)


@pytest.mark.parametrize("k", [1, 3, 6])
def test_all_right_and_all_wrong(k: int) -> None:
    assert majority([("7", True)] * 4 + [("8", True)] * 2, k) == 1.0
    assert majority([("7", False)] * 4 + [("8", False)] * 2, k) == 0.0


@pytest.mark.parametrize(("counts", "k", "expected"), [
    ((1100, 100), 1, 1100 / 1200),
    ((1500, 500), 16, 0.99),  # 16 of 2,048 samples
    ((1500, 500), 700, 1.0),  # more subsets than a float can count, so some are drawn
])  # fmt: skip
def test_majority_of_thousands_of_samples(counts, k, expected) -> None:
    n = 1200 if sum(counts) == 1200 else 2048
    found = majority_at_k(np.array(counts), np.array([1.0, 0.0]), n, k, np.random.default_rng(0))
    assert found == pytest.approx(expected, abs=1e-9 if k == 1 else 0.02)


def test_sampled_majority_agrees_with_the_exact_one(monkeypatch: pytest.MonkeyPatch) -> None:
    count_A, right_A = np.array([9, 8, 3, 1, 1]), np.array([0.0, 1.0, 0.5, 0.0, 1.0])
    exact = majority_at_k(count_A, right_A, 25, 8, np.random.default_rng(0))
    monkeypatch.setattr(at_k, "EXACT_STEPS", 0)
    drawn = [majority_at_k(count_A, right_A, 25, 8, np.random.default_rng(s)) for s in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert drawn == pytest.approx([exact] * 3, abs=4 / 128)
    assert np.mean(drawn) != exact  # the sampled path was taken


def test_counting_ends_at_the_most_votes_that_a_winner_can_have() -> None:
    # 1 vote: of two answers each, (1 + 1) samples and 2 answers; 2 votes: (2 + 1) and 2
    assert at_k._num_steps(np.array([2, 1]), 5) == 4 + 5
    assert at_k._num_steps(np.array([2, 9]), 1) == 4


@pytest.mark.parametrize("k", [0, 4])
def test_k_outside_the_samples_is_refused(k: int) -> None:
    with pytest.raises(ValueError, match="k = "):
        pass_at_k([5, 3], [1, 1], k)
    with pytest.raises(ValueError, match="k = "):
        majority_at_k(np.array([3]), np.array([1.0]), 3, k, np.random.default_rng(0))
