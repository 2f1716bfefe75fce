"""Costs of a sum of terms, from seconds that scatter around it."""

import itertools

import numpy as np

from strop.planning.course import Floats

SCATTER = 0.05  # of the seconds, relative, at least
APART = 1 / 3  # deviation of a term's share of the seconds, before anything is measured


def likeliest(terms: Floats, seconds: Floats, shares: Floats) -> tuple[Floats, Floats, Floats]:
    """The cost of each term: seconds = terms @ costs, none negative.

    terms: [N, K]. shares: [K] of the seconds that each term is thought to make up, give or take
    APART. Returns costs, the terms' shares and the deviation of these; the costs give the measured
    seconds all in all.
    """
    used = terms.any(axis=0)
    scale = np.ones(terms.shape[1])
    scale[used] = 1 / (terms[:, used] / seconds[:, None]).mean(axis=0)
    ours, scatter = terms / seconds[:, None] * scale, SCATTER
    for _ in range(2):
        system = np.vstack([ours / scatter, np.eye(terms.shape[1]) / APART])
        wanted = np.concatenate([np.full(len(seconds), 1 / scatter), shares / APART])
        found = _not_negative(system, wanted)
        off = ours @ found - 1
        scatter = max(SCATTER, float(np.sqrt((off**2).mean())))
    costs = found * scale
    deviations = np.sqrt(np.linalg.inv(system.T @ system).diagonal())
    return costs * seconds.sum() / (terms @ costs).sum(), found / found.sum(), deviations


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
