"""Statistics of k of a prompt's n samples: any right, the majority right, distinct answers."""

import math
from functools import cache

import numpy as np
from numpy.typing import ArrayLike

from strop.evaluation.samples import Floats, Ints

EXACT_STEPS = 4_000  # array operations per prompt up to which the majority is counted exactly
LARGEST = 1e300  # number of subsets up to which they are counted as floats
NUM_DRAWS = 4_096  # subsets drawn otherwise; a prompt's standard error is then at most 1/128


def usual_ks(most: int, num_samples: int) -> tuple[int, ...]:
    """The k that are reported where none is given: 1, and `most` or, where that is less, the number
    of samples; 0 samples: as many as are needed.
    """
    return tuple(sorted({1, min(most, num_samples if num_samples > 0 else most)}))


def pass_at_k(n_P: ArrayLike, c_P: ArrayLike, k: int) -> Floats:
    """Chance that k of n samples, drawn without replacement, hold at least one of the c right ones.

        pass@k = 1 - C(n - c, k) / C(n, k) = 1 - prod_{j=0}^{k-1} (1 - c / (n - j)),  0 factors kept

    n_P, c_P: [P] counts -> [P]. The product has no large numbers, so nothing overflows.
    Raises ValueError for k < 1 or k > n. Source: arXiv 2107.03374, eq. 1.
    """
    n, c = np.broadcast_arrays(np.asarray(n_P, dtype=np.int64), np.asarray(c_P, dtype=np.int64))
    if k < 1 or (n < k).any():
        raise ValueError(f"k = {k} must be between 1 and the smallest n, {n.min()}")
    missed_Pk = 1.0 - c[..., None] / (n[..., None] - np.arange(k))
    return np.asarray(1.0 - np.prod(np.maximum(missed_Pk, 0.0), axis=-1))


def distinct_at_k(prompt_A: Ints, count_A: Ints, n_P: Ints, k: int) -> Floats:
    """Expected number of distinct answers among k of a prompt's n samples.

        distinct@k = sum_a (1 - C(n - n_a, k) / C(n, k))

    An answer occurs with the chance that pass@k would give it alone. prompt_A, count_A: [A] prompt
    and number of votes of each answer; n_P: [P] samples, those without an answer included -> [P].
    Raises ValueError as `pass_at_k`. Source: rarefaction, Hurlbert, Ecology 52 (1971), 577-586.
    """
    met_A = pass_at_k(n_P[prompt_A], count_A, k)
    return np.asarray(np.bincount(prompt_A, weights=met_A, minlength=len(n_P)), dtype=np.float64)


def majority_at_k(
    count_A: Ints, right_A: Floats, n: int, k: int, rng: np.random.Generator
) -> float:
    """Expected correctness of the most frequent answer among k of one prompt's n samples.

        maj@k = E_subset[ mean of right_a over the answers a with the most votes in the subset ]

    count_A: [A] votes of each answer; right_A: [A] its correctness (the mean over its samples where
    the verifier differed between equal answers). The n - sum(count_A) samples without an answer do
    not vote; a subset without any vote scores 0. A tie counts as the mean over the tied answers.
    The expectation is exact for k = n and wherever the count of subsets is cheap (`EXACT_STEPS`);
    else it is the mean over `NUM_DRAWS` subsets drawn with `rng`.
    Raises ValueError for k < 1 or k > n. Source: arXiv 2203.11171 (the vote; the subsets are ours).
    """
    if k < 1 or k > n:
        raise ValueError(f"k = {k} must be between 1 and n = {n}")
    votes = int(count_A.sum())
    if len(count_A) == 0:
        return 0.0
    if np.ptp(right_A) == 0:  # whoever wins, the outcome is the same
        return float(right_A[0] * pass_at_k(n, votes, k))
    if k == n:
        return _mean_vote(count_A[None, :], right_A)
    countable = math.comb(n, min(k, n // 2)) < LARGEST
    if countable and _num_steps(count_A, k) <= EXACT_STEPS:
        return _count_votes(count_A, right_A, n - votes, k)
    counts_A = np.append(count_A, n - votes)
    drawn_RA = rng.multivariate_hypergeometric(counts_A, k, size=NUM_DRAWS, method="marginals")
    return _mean_vote(drawn_RA[:, :-1], right_A)


def _mean_vote(count_RA: Ints, right_A: Floats) -> float:
    """Mean over rows of the mean correctness of each row's most frequent answers."""
    most_R = count_RA.max(axis=1, keepdims=True)
    wins_RA = (count_RA == most_R) & (most_R > 0)
    return float(np.mean((wins_RA @ right_A) / np.maximum(wins_RA.sum(axis=1), 1)))


def _num_steps(count_A: Ints, k: int) -> int:
    """The number of array operations that `_count_votes` will take."""
    most = min(k, int(count_A.max()))
    return sum(int(np.minimum(count_A, m).sum()) + len(count_A) for m in range(1, most + 1))


def _count_votes(count_A: Ints, right_A: Floats, silent: int, k: int) -> float:
    """maj@k by counting subsets: one pass over the answers for each number of winning votes."""
    most = min(k, int(count_A.max()))
    total = sum(_winning_votes(m, count_A, right_A, silent, k) for m in range(1, most + 1))
    return total / math.comb(int(count_A.sum()) + silent, k)


def _winning_votes(m: int, count_A: Ints, right_A: Floats, silent: int, k: int) -> float:
    """Sum, over subsets of size k whose winners have m votes, of the winners' mean correctness.

    `table[0, s, t]` counts the ways to take s samples so that t answers have exactly m votes and
    none has more; `table[1, s, t]` sums over these ways the correctness of the t answers.
    """
    num_winners = min(k // m, int((count_A >= m).sum()))
    table = np.zeros((2, k + 1, num_winners + 1))
    free = np.arange(min(silent, k) + 1)
    table[0, free, 0] = _binomials(silent, k)[free]
    for count, right in zip(count_A.tolist(), right_A.tolist(), strict=True):
        ways = _binomials(count, k)
        new = ways[0] * table
        for j in range(1, min(count, m - 1) + 1):
            new[:, j:] += ways[j] * table[:, : k + 1 - j]
        if count >= m:
            won = ways[m] * table[:, : k + 1 - m, :-1]
            new[:, m:, 1:] += won
            new[1, m:, 1:] += right * won[0]
        table = new
    return float((table[1, k, 1:] / np.arange(1, num_winners + 1)).sum())


@cache
def _binomials(n: int, most: int) -> Floats:
    """The ways to take up to `most` of n."""
    return np.array([float(math.comb(n, j)) for j in range(min(n, most) + 1)])
