"""The top k methods by scores of early steps, and their final scores."""

from collections.abc import Sequence

from strop.comparison.plan import START, Plan
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
        f"Methods are ranked by the mean {METRIC} over seeds of an early step; the k highest are "
        f"judged by that after step {plan.scoring.at[-1]}. SharpeRatio@k is (best of k - "
        f"{plan.baseline}) over the k's deviation (arXiv 2311.18207): large where little is risked "
        "by trying k, and of little use where all k are alike. Early and last scores are of the "
        "same runs, so a lucky seed counts in both."
    )


def lines_of(plan: Plan, rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """One line for each early step and k; none for few methods, or with a single scored step."""
    steps = plan.scoring.at
    labels = [entry.label for entry in plan.entries]
    if plan.scoring.by != "steps" or len(steps) < 2 or len(labels) < FEWEST:
        return []
    means = {step: _means(rows, step) for step in steps}
    last = means[steps[-1]]
    found = list[tuple[str, ...]]()
    for step in steps[:-1]:
        known = [label for label in labels if label in means[step] and label in last]
        if len(known) < FEWEST or plan.baseline not in last:
            continue
        early, values = [means[step][n] for n in known], [last[n] for n in known]
        rho = rank_correlation(early, values)
        for k in range(1, len(known) // 2 + 1):
            top = sharpe_ratio_at_k(early, values, last[plan.baseline], k)
            found.append((str(step), f"{rho:.2f}", str(k), f"{top.best:.3f}", f"{top.worst:.3f}",
                          f"{top.below_baseline:.2f}", f"{top.sharpe_ratio:.2f}"))  # fmt: skip
    return found


def _means(rows: Sequence[Row], step: int) -> dict[str, float]:
    by_label = by_metric(rows, step).get(METRIC, {})
    return {label: sum(found.values()) / len(found) for label, found in by_label.items()
            if label != START}  # fmt: skip
