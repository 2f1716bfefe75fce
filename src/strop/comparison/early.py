"""The top k methods by scores of early steps, and their final scores."""

import math
from collections.abc import Sequence

from strop.comparison.plan import Plan
from strop.comparison.scores import Row, by_metric
from strop.evaluation.top_k import rank_correlation, sharpe_ratio_at_k

FEWEST = 4  # the fewest methods for which picking some is a choice
METRIC = "pass@1"
TITLE = "What early scores pick"
HEAD = ("after step", "rank correlation", "k", "best of k", "worst of k", "below the baseline",
        "SharpeRatio@k")  # fmt: skip


def meaning(plan: Plan) -> str:
    """A description of the table."""
    return (
        f"Methods are ranked by their mean {METRIC} after an early step, over the seeds that all "
        f"of them have; the k highest are judged by that after step {plan.scoring.at[-1]}. "
        f"SharpeRatio@k is (best of k - {plan.baseline}) over the k's deviation (arXiv "
        "2311.18207): large where little is risked by trying k, and of little use, or without a "
        "value, where all k are alike. Early and last scores are of the same runs, so a lucky seed "
        "counts in both."
    )


def lines_of(plan: Plan, rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """One line for each early step and k; none for few methods, or with a single scored step."""
    steps = plan.scoring.at
    labels = [entry.label for entry in plan.entries]
    if plan.scoring.by != "steps" or len(steps) < 2 or len(labels) < FEWEST:
        return []
    scores = {step: by_metric(rows, step).get(METRIC, {}) for step in steps}
    found = list[tuple[str, ...]]()
    for step in steps[:-1]:
        early, last = scores[step], scores[steps[-1]]
        seeds = {n: early[n].keys() & last[n].keys() for n in labels if n in early and n in last}
        known = [label for label in labels if seeds.get(label)]
        paired = set[int].intersection(*(seeds[label] for label in known)) if known else set[int]()
        if len(known) < FEWEST or plan.baseline not in known or not paired:
            continue
        estimates, values = (
            [sum(of[label][seed] for seed in paired) / len(paired) for label in known]
            for of in (early, last)
        )
        baseline = values[known.index(plan.baseline)]
        rho = rank_correlation(estimates, values)
        for k in range(1, len(known) // 2 + 1):
            top = sharpe_ratio_at_k(estimates, values, baseline, k)
            ratio = f"{top.sharpe_ratio:.2f}" if math.isfinite(top.sharpe_ratio) else ""
            found.append((str(step), f"{rho:.2f}", str(k), f"{top.best:.3f}", f"{top.worst:.3f}",
                          f"{top.below_baseline:.2f}", ratio))  # fmt: skip
    return found
