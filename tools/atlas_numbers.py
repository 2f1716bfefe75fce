"""The numbers that the atlas's page derives from its rows: pairs, fitted curves, ranks."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from strop.comparison.verdict import FEWEST_SEEDS, Compared, judge
from strop.evaluation.samples import Floats
from strop.evaluation.top_k import rank_correlation

Row = Mapping[str, str]
FEWEST_RECIPES = 8  # the fewest for which a rank correlation is shown
FEWEST_RANKED = 3  # the fewest seeds of a recipe that is ranked
DRAWS = 400
NAMES = {  # a column of the rows, and its name among the numbers of `strop compare`
    "pass@1": "pass@1", "pass@16": "pass@16", "length": "completions/mean_length",
    "entropy_late": "late/entropy", "ece": "ece", "sampled": "sampled", "seconds": "seconds",
}  # fmt: skip


class Pair(NamedTuple):
    """Rows of one seed: of a recipe, and of grpo on the same kind of machine."""

    ours: Row
    theirs: Row


def paired(rows: Sequence[Row], one_base: bool = True) -> dict[str, list[Pair]]:
    """The pairs of every recipe, from rows without an error. Of a recipe only its newest settings
    count, and of a seed that was run on several kinds of machines only the first pair.

    one_base: keep only pairs with the newest baseline, whose words are the options of the regime.
    """
    good = [row for row in rows if not row["error"]]
    newest = {_of(row): _settings(row) for row in good}
    good = [row for row in good if newest[_of(row)] == _settings(row)]
    bases = [row["baseline"] for row in good if row["words"] != row["baseline"]]
    if one_base:  # of a regime that has begun with its baseline there is none yet
        good = [row for row in good if row["baseline"] in bases[-1:]]
    by_key = {(row["words"], row["seed"], row["machine"]): row for row in good}
    found: dict[str, dict[str, Pair]] = {}
    for row in good:
        theirs = by_key.get((row["baseline"], row["seed"], row["machine"]))
        if row["words"] != row["baseline"] and theirs is not None:
            found.setdefault(row["recipe"], {}).setdefault(row["seed"], Pair(row, theirs))
    return {name: list(pairs.values()) for name, pairs in found.items()}


def _of(row: Row) -> str:
    """The recipe of a row; the words of a baseline, as several may stand at a time."""
    return row["words"] if row["words"] == row["baseline"] else row["recipe"]


def _settings(row: Row) -> tuple[str, str]:
    return row["words"], row["fingerprint"]


def compared(pairs: Mapping[str, list[Pair]], column: str) -> dict[str, Compared]:
    """Compares each recipe with its grpo in one number, as `strop compare` decides, with Holm's
    correction over the recipes of the regime.
    """
    number: dict[tuple[str, ...], int] = {}
    scores: dict[str, dict[int, float]] = {"grpo": {}}
    for name, several in pairs.items():
        for ours, theirs in several:
            if not (ours[column] and theirs[column]):
                continue
            key = (theirs["words"], theirs["seed"], theirs["machine"])
            at = number.setdefault(key, len(number))
            scores["grpo"][at] = float(theirs[column])
            scores.setdefault(name, {})[at] = float(ours[column])
    if not scores["grpo"]:
        return {}
    return {each.label: each for each in judge({NAMES[column]: scores}, "grpo")}


def series(row: Row, column: str) -> Floats:
    """A curve of a row; NaN where a point is not known."""
    return np.array([math.nan if x == "-" else float(x) for x in row[column].split()])


def at_tokens(pairs: Sequence[Pair], by: str) -> list[tuple[float, float]]:
    """Validation pass@1 of both sides of each pair at the point where both had spent as much as the
    thriftier one spent in all; by: "sampled_at" or "trained_at". Leaves out pairs in which a side
    spent nothing.
    """
    found = []
    for pair in pairs:
        spent = [series(row, by) for row in pair]
        budget = min(float(each[-1]) for each in spent)
        if budget > 0:
            a, b = (
                float(np.interp(budget, x, series(row, "curve")))
                for x, row in zip(spent, pair, strict=True)
            )
            found.append((a, b))
    return found


class Fit(NamedTuple):
    """asymptote, efficiency, midpoint: value, low and high; why: the reason if undetermined."""

    asymptote: tuple[float, float, float]
    efficiency: tuple[float, float, float]
    midpoint: tuple[float, float, float]
    why: str


def fitted(curves_SN: Floats, steps_N: Floats) -> Fit:
    """Fits a saturating curve to the mean curve over seeds S, by least squares.

        R(C) = R_0 + (A - R_0) / (1 + (M / C)^B),   R_0 = R(0),   0 <= A <= 1

    A: asymptote; B: efficiency; M: midpoint, in steps. The fit searches a grid of B and M; A is the
    least-squares solution at each point. Intervals: 95% of `DRAWS` bootstraps over seeds; a limit
    at the grid's end is 0 or infinite. The fit is not determined if the best M or B lies at the
    grid's end, or if the interval of A is wider than 0.2. Source: arXiv 2510.13786.
    """
    rng = np.random.default_rng(0)
    drawn = rng.integers(len(curves_SN), size=(DRAWS, len(curves_SN)))
    means_DN = np.concatenate([curves_SN.mean(0)[None], curves_SN[drawn].mean(1)])
    efficiency = np.geomspace(0.25, 8, 41)
    midpoint = np.geomspace(steps_N[1] / 4, steps_N[-1], 61)
    b_G, m_G = (x.ravel() for x in np.meshgrid(efficiency, midpoint))
    shape_GN = 1 / (1 + (m_G[:, None] / steps_N[None, 1:]) ** b_G[:, None])
    start_D = means_DN[:, 0]
    rise_DN = means_DN[:, 1:] - start_D[:, None]
    size_G, both_GD = (shape_GN**2).sum(1), shape_GN @ rise_DN.T
    gain_GD = np.clip(both_GD / size_G[:, None], -start_D, 1 - start_D)
    best_D = (gain_GD**2 * size_G[:, None] - 2 * gain_GD * both_GD).argmin(0)
    a_D = start_D + gain_GD[best_D, np.arange(len(best_D))]
    b_D, m_D = b_G[best_D], m_G[best_D]
    found = [
        (float(x[0]), *(float(q) for q in np.quantile(x[1:], (0.025, 0.975))))
        for x in (a_D, b_D, m_D)
    ]
    for at, grid in ((1, efficiency), (2, midpoint)):
        value, low, high = found[at]
        found[at] = value, 0.0 if low <= grid[0] else low, math.inf if high >= grid[-1] else high
    why = ""
    if len(curves_SN) < FEWEST_SEEDS:
        why = f"fewer than {FEWEST_SEEDS} seeds"
    elif a_D[0] <= start_D[0]:
        why = "the curve does not rise"
    elif m_D[0] in (m_G.min(), m_G.max()) or b_D[0] in (b_G.min(), b_G.max()):
        why = "the best fit lies at an end of the search grid"
    elif found[0][2] - found[0][1] > 0.2:
        why = "the interval of the asymptote is wider than 0.2"
    return Fit(*found, why)  # type: ignore[arg-type]


class Ranked(NamedTuple):
    """A rank correlation over so many recipes, with its 95% interval."""

    value: float
    low: float
    high: float
    count: int

    def __str__(self) -> str:
        return f"{self.value:+.2f} ({self.low:+.2f} to {self.high:+.2f}), {self.count} recipes"


def spearman(a: Sequence[float], b: Sequence[float]) -> Ranked | None:
    """Rank correlation with its interval by bootstrap over the recipes; None where there are too
    few recipes, or where one of the two numbers is the same for all.
    """
    x, y = np.array(a), np.array(b)
    if len(a) < FEWEST_RECIPES or np.ptp(x) == 0 or np.ptp(y) == 0:
        return None
    rng = np.random.default_rng(0)
    drawn = [rank_correlation(x[at], y[at]) for at in rng.integers(len(x), size=(DRAWS, len(x)))]
    low, high = (
        np.nanquantile(drawn, (0.025, 0.975)) if np.isfinite(drawn).any() else (math.nan,) * 2
    )
    return Ranked(rank_correlation(x, y), float(low), float(high), len(x))


def early_and_last(
    pairs: Mapping[str, list[Pair]], share: float
) -> tuple[list[float], list[float]]:
    """For each recipe: mean difference from its grpo in validation pass@1 after a share of the
    steps, and in final pass@1. Recipes whose grpo has options of its own differ by these too.
    """
    early = []
    for several in pairs.values():
        ours, theirs = (
            np.array([series(row, "curve") for row in rows]).mean(0)
            for rows in zip(*several, strict=True)
        )
        at = share * (len(ours) - 1)
        early.append(float(np.interp(at, range(len(ours)), ours - theirs)))
    return early, list(gains(pairs).values())


def halves(pairs: Mapping[str, list[Pair]]) -> tuple[list[float], list[float]]:
    """Each recipe's gain over its even seeds, and over its odd ones: no run counts in both."""
    both = [
        gains({name: kept for name, several in pairs.items()
               if (kept := [p for p in several if int(p.ours["seed"]) % 2 == odd])})
        for odd in (0, 1)
    ]  # fmt: skip
    names = [name for name in both[0] if name in both[1]]
    return [both[0][name] for name in names], [both[1][name] for name in names]


def gains(pairs: Mapping[str, list[Pair]]) -> dict[str, float]:
    """Mean difference from grpo in pass@1, by recipe."""
    return {
        name: float(np.mean([float(a["pass@1"]) - float(b["pass@1"]) for a, b in several]))
        for name, several in pairs.items()
    }
