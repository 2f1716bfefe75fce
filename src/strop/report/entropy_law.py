"""Charts scores over entropy, with the law that they would follow if nothing controlled entropy."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from strop.evaluation.entropy_law import FEWEST, fit_entropy_law
from strop.report.charts import COLOURS, Chart
from strop.report.run_folder import Run

POINTS = 40  # of a curve


def entropy_law(runs: Sequence[Run], name: str, key: str, metric: str) -> Chart | None:
    """Evaluations of one set over entropy and the fit score = -a exp(entropy) + b of each run.

    A run is left out when it has fewer than three evaluations, or when all of its evaluations have
    the same entropy or the same score. Returns None when all runs are left out.
    """
    data, fits = [], []
    for index, run in enumerate(runs):
        entropy, score = pairs(run, key)
        if len(entropy) < FEWEST or 1 in (len(set(entropy)), len(set(score))):
            continue
        law = fit_entropy_law(entropy, score)
        colour = COLOURS[index % len(COLOURS)]
        label = run.name if len(runs) > 1 else "evaluations"
        marks: dict[str, Any] = {"x": entropy, "y": score, "name": label, "mode": "markers"}
        data.append({**marks, "marker": {"size": 6, "color": colour}})
        at = np.linspace(0.0, max(entropy), POINTS)
        line = {"color": colour, "width": 1.5, "dash": "dot"}
        curve: dict[str, Any] = {
            "x": at.tolist(),
            "y": law.score(at).tolist(),
            "mode": "lines",
            "line": line,
        }
        data.append({**curve, "name": f"{label}: fit", "showlegend": False, "hoverinfo": "skip"})
        whose = f"{run.name}: " if len(runs) > 1 else ""
        fits.append(
            f"{whose}{metric} = {law.b:.3f} - {law.a:.3f} exp(H), {law.ceiling:.3f} at H = 0, "
            f"R² {law.r_squared:.2f}"
        )
    if not data:
        return None
    text = f"{'; '.join(fits)}. The law holds for runs without entropy control (arXiv 2505.22617)."
    layout: dict[str, Any] = {
        "xaxis": {"title": {"text": "entropy, nats"}, "dtick": None, "rangemode": "tozero"},
        "yaxis": {"tickformat": ".2~%"},
        "showlegend": len(runs) > 1,
    }
    return Chart(f"Score over entropy: {name}", text, tuple(data), layout)


def pairs(run: Run, key: str) -> tuple[list[float], list[float]]:
    """Entropy and score of the weights at each evaluation.

    The weights after step s draw the rollouts of step s + 1, whose entropy is taken. After the
    last step, its own entropy is the nearest known one.
    """
    entropies = dict(zip(*(column.tolist() for column in run.series("entropy")), strict=True))
    found = []
    for step, score in zip(*(column.tolist() for column in run.series(key)), strict=True):
        entropy = entropies.get(step + 1, entropies.get(step))
        if entropy is not None:
            found.append((entropy, score))
    return [entropy for entropy, _ in found], [score for _, score in found]
