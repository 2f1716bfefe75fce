"""Give every class of difficulty its own number of rollouts, with the total unchanged."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from strop.method.part import Draw, Result, require
from strop.support.errors import UserError


def log_shares(scores: Sequence[float], eta: float, gamma: float) -> list[float]:
    """log p of each arm, p = (1 - gamma) softmax(eta scores) + gamma / arms."""
    top = max(scores)
    weights = [math.exp(eta * (score - top)) for score in scores]
    total = sum(weights)
    return [math.log((1 - gamma) * weight / total + gamma / len(scores)) for weight in weights]


def split(
    sizes: Mapping[int, int], arms: Mapping[int, Sequence[float]], least: int, total: int
) -> dict[int, int]:
    """Rollouts n_b of each class: sum_b sizes_b n_b nearest to `total`, then the best score.

    arms: for each class the score of least, least + 1, ... rollouts; the sum of them is the score.
    Of two totals equally near, the better score wins; of equal scores the fewer rollouts first.
    """
    found: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, ())}
    for name, size in sizes.items():
        longer: dict[int, tuple[float, tuple[int, ...]]] = {}
        for spent, (score, chosen) in found.items():
            for place, gain in enumerate(arms[name]):
                num = least + place
                key, value = spent + size * num, score + gain
                if key not in longer or value > longer[key][0]:
                    longer[key] = (value, (*chosen, num))
        found = longer
    best = min(found, key=lambda spent: (abs(spent - total), -found[spent][0]))
    return dict(zip(sizes, found[best][1], strict=True))


@dataclass(frozen=True)
class AllocateByBins:
    """Classes whose rollouts have paid off get more, at the expense of the others.

        p_b(n) = (1 - gamma) softmax_n(eta scores_b(n)) + gamma / arms,  n in least..most
        every prompt of class b gets n_b rollouts: maximise sum_b log p_b(n_b) subject to
        sum_b prompts_b n_b = the draws' rollouts, exactly, by dynamic programming

    Metrics: bins/rollouts_{n} (n_b; 0 without a prompt), budget/target (the draws' rollouts per
    prompt), budget/spent (those given).

    Reads: draws (their bin_B).   Writes: draws.
    Source: arXiv 2601.19280 (rollout budget); code kishanpb/verl-gdro (group_dro_grpo.py).
    Differs from the source: its code matches the budgets with the last step's classes by position,
    so with other prompts.
    Nearest part: allocate_by_failures, which uses a prior of each prompt.
    Edges: no exact split -> the nearest total; prompts of class -1 keep theirs, outside the budget.
    """

    # Scores of least..most rollouts, class by class; none: all equal. Default: ours (its control).
    scores: tuple[float, ...] = ()
    # Fewest rollouts of a prompt. Default: released code (2).
    least: int = 2
    # Most rollouts of a prompt. Default: released code (three times the mean of 4).
    most: int = 12
    # How much a score counts. Default: released code (0.65).
    eta: float = 0.65
    # Share of the uniform distribution. Default: released code (0.01).
    gamma: float = 0.01

    def __post_init__(self) -> None:
        require(self, "least", low=1)
        require(self, "most", low=self.least)
        require(self, "eta", low=0.0)
        require(self, "gamma", low=1e-12, high=1.0)

    def __call__(self, draws: tuple[Draw, ...]) -> Result:
        if any("bin_B" not in draw.columns for draw in draws):
            raise UserError("allocate_by_bins: put sort_by_success before it")
        classed = [draw for draw in draws if draw.columns["bin_B"] >= 0]
        bins = [draw.columns["bin_B"] for draw in classed]
        total = sum(draw.num_rollouts for draw in classed)
        sizes = {b: bins.count(b) for b in sorted(set(bins))}
        width = self.most - self.least + 1
        num_bins = len(self.scores) // width or max(bins, default=0) + 1
        if self.scores and (len(self.scores) % width or num_bins <= max(bins, default=0)):
            raise UserError(
                f"allocate_by_bins.scores has {len(self.scores)} numbers: give {width} (least to "
                f"most) for each of the classes of sort_by_success"
            )
        scores = self.scores or (0.0,) * (width * num_bins)
        arms = {
            b: log_shares(scores[b * width : (b + 1) * width], self.eta, self.gamma) for b in sizes
        }
        given = split(sizes, arms, self.least, total) if sizes else {}
        resized = tuple(
            draw._replace(num_rollouts=given[b]).because(f"{given[b]} rollouts for class {b}")
            if (b := draw.columns["bin_B"]) >= 0
            else draw
            for draw in draws
        )
        spent = sum(size * given[b] for b, size in sizes.items())
        metrics = {f"bins/rollouts_{b}": float(given.get(b, 0)) for b in range(num_bins)}
        metrics["budget/target"] = total / max(len(classed), 1)
        metrics["budget/spent"] = spent / max(len(classed), 1)
        return Result(resized, metrics=metrics)
