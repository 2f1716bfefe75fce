"""Costs of a sum of terms, from seconds that scatter around it."""

import itertools

import numpy as np

from strop.planning.course import Floats

SCATTER = 0.05  # of the seconds, relative, at least
APART = 1 / 3  # deviation of a term's share of the seconds, before anything is measured


def likeliest(terms: Floats, seconds: Floats, shares: Floats) -> tuple[Floats, Floats, Floats]:
    """The cost of each term: seconds = terms @ costs, none negative; see `likeliest_of_sums`.

    terms: [N, K]; what scatters is relative to the seconds.
    """
    relative = np.column_stack([terms / seconds[:, None], np.ones(len(seconds))])
    costs, found, deviations = likeliest_of_sums(relative.T @ relative, len(seconds), shares)
    return costs * seconds.sum() / (terms @ costs).sum(), found, deviations


def likeliest_of_sums(
    products: Floats, number: float, shares: Floats, sums: Floats | None = None
) -> tuple[Floats, Floats, Floats]:
    """The same of the sums of the products of each two of K terms and the seconds, the last.

    products: [K + 1, K + 1]; number: of what is summed. sums: [K + 1], of each by itself; by
    default those where the seconds are all 1. shares: [K] of the seconds that each term is thought
    to make up, give or take APART. Returns costs, the terms' shares and the deviation of these; the
    costs give the measured seconds all in all.
    """
    *whole, seconds = products[-1] if sums is None else sums
    used = np.array(whole) > 0
    scale = np.ones(len(whole))
    scale[used] = seconds / np.array(whole)[used]
    square, answer = products[:-1, :-1] * np.outer(scale, scale), products[:-1, -1] * scale
    values, axes = np.linalg.eigh(square)
    kept = values > values.max() * 1e-12
    root = np.sqrt(values[kept])
    ours, wanted = root[:, None] * axes.T[kept], axes.T[kept] @ answer / root
    found: Floats = np.zeros(len(whole))
    system: Floats = ours
    scatter = least = SCATTER * seconds / number
    for _ in range(2):
        system = np.vstack([ours / scatter, np.eye(len(whole)) / APART])
        found = _not_negative(system, np.concatenate([wanted / scatter, shares / APART]))
        off = products[-1, -1] - 2 * found @ answer + found @ square @ found
        scatter = max(least, float(np.sqrt(max(off, 0.0) / number)))
    costs = found * scale
    deviations = np.sqrt(np.linalg.inv(system.T @ system).diagonal())
    return costs * seconds / (np.array(whole) @ costs), found / found.sum(), deviations


def typical(seconds: Floats, expected: Floats) -> float:
    """Times as long as expected: the middle of all, each weighing as much as was expected of it.

    What something else on the machine slowed, up to half of all, has no part in it.
    """
    known = expected > 0
    ratio, weight = seconds[known] / expected[known], expected[known]
    order = np.argsort(ratio)
    before = np.cumsum(weight[order]) - weight[order] / 2
    return float(np.interp(weight.sum() / 2, before, ratio[order]))


def _not_negative(system: Floats, wanted: Floats) -> Floats:
    """The least squares of no negative number: the best of those with some of them 0."""
    best, least = np.zeros(system.shape[1]), np.inf
    for size in range(1, system.shape[1] + 1):
        for chosen in map(list, itertools.combinations(range(system.shape[1]), size)):
            found = np.linalg.lstsq(system[:, chosen], wanted, rcond=None)[0]
            off = float(((system[:, chosen] @ found - wanted) ** 2).sum())
            if (found >= 0).all() and off < least:
                best, least = np.zeros(system.shape[1]), off
                best[chosen] = found
    return best
