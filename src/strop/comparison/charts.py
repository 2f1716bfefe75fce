"""Charts of a comparison: curves with a band over seeds, paired differences, the entropy law."""

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strop.comparison.names import number_of
from strop.comparison.plan import NO_SCORE, Plan
from strop.comparison.scores import EVALUATION, axis
from strop.comparison.verdict import Compared
from strop.evaluation.entropy_law import FEWEST, fit_entropy_law
from strop.evaluation.seeds import SHARE, range_of
from strop.report.charts import COLOURS, DASHES, FEW_SEEDS, GREY, Chart, see_through, short, thin
from strop.report.entropy_law import pairs
from strop.report.run_folder import Run
from strop.report.seeds import mean_and_band

Runs = Mapping[str, Mapping[int, Run]]
MOST_LETTERS = 24  # characters in a line of a method's name beside a chart
FEW = 4  # methods; with more of them the bands are fainter
POINTS = 60  # of a curve: training numbers are means over a sixtieth of the axis
AXES = {
    "steps": "steps",
    "sampled": "tokens sampled",
    "trained": "tokens trained on",
    "seconds": "seconds",
}
TRAINING = (
    ("reward", "Reward", "Of the rollouts of training."),
    ("entropy", "Entropy", "Nats a token, of the rollouts of training."),
    ("completions/mean_length", "Length", "Tokens an answer, of the rollouts of training."),
    (
        "frac_reward_zero_std",
        "Groups without a difference",
        "A group baseline leaves them no signal.",
    ),
    ("grad_norm", "Gradient norm", "Before clipping, without bands, logarithmic."),
)
LOGARITHMIC = ("grad_norm",)  # different losses have gradients of different sizes


def curves(runs: Runs, labels: Sequence[str]) -> list[tuple[str, list[Chart]]]:
    """A section for each axis: validation scores and training numbers, mean and band over seeds.

    labels: of all methods; the position of a method's label decides its line style.
    """
    found = []
    for by, name in AXES.items():
        charts = [
            chart
            for key, title, caption in (*_scores(runs), *TRAINING)
            if (chart := _curve(runs, labels, by, key, title, f"{caption} Over {name}."))
            is not None
        ]
        if charts:
            found.append((by, charts))
    return found


def _scores(runs: Runs) -> list[tuple[str, str, str]]:
    """The validation scores that any run has recorded."""
    keys = dict.fromkeys(
        key for by_seed in runs.values() for run in by_seed.values() for key in run.numbers
    )
    names = ("pass@", "maj@", "nll")
    return [
        (key, key.removeprefix(EVALUATION), "Validation prompts.")
        for key in keys
        if key.startswith(EVALUATION)
        and key.removeprefix(EVALUATION).startswith(names)
        and not NO_SCORE.search(key)
    ]


def line_of(index: int) -> dict[str, Any]:
    """Colour and dash of a method; they repeat after 48."""
    dash = DASHES[index // len(COLOURS) % len(DASHES)]
    return {"color": COLOURS[index % len(COLOURS)], "width": 2, "dash": dash}


def marked(label: str) -> str:
    """A label escaped so that plotly, which reads some HTML, shows it unchanged."""
    return label.replace("&", "&amp;").replace("<", "&lt;")


def wrapped(label: str) -> list[str]:
    """The lines of a label beside a chart, broken after a bracket and between words."""
    lines = textwrap.wrap(label.replace("(", "( "), MOST_LETTERS)
    return [line.replace("( ", "(") for line in lines]


def _curve(
    runs: Runs, labels: Sequence[str], by: str, key: str, title: str, caption: str
) -> Chart | None:
    data: list[dict[str, Any]] = []
    alpha = 0.15 if len(labels) <= FEW else 0.07
    for index, label in enumerate(labels):
        drawn = [_points(run, by, key) for run in runs.get(label, {}).values()]
        drawn = [points for points in drawn if len(points[0])]
        if not drawn:
            continue
        x, low, mean, high = map(short, mean_and_band(drawn, range_of(key)))
        line = line_of(index)
        if 1 < len(drawn) < FEW_SEEDS and key not in LOGARITHMIC:
            data += [thin(*points, line["color"]) for points in drawn]
        elif len(drawn) > 1 and key not in LOGARITHMIC:
            edge = {"x": x, "mode": "lines", "line": {"width": 0}, "hoverinfo": "skip"}
            fill = {"fill": "tonexty", "fillcolor": see_through(line["color"], alpha)}
            data += [{**edge, "y": low}, {**edge, "y": high, **fill}]
        mode = "lines+markers" if len(x) <= 12 else "lines"
        data.append({"x": x, "y": mean, "name": marked(label), "mode": mode, "line": line})
    if not data:
        return None
    axis = {"title": {"text": AXES[by]}, "rangemode": "tozero"}
    scale: dict[str, Any] = {"type": "log"} if key in LOGARITHMIC else {}
    if range_of(key) == SHARE:
        scale = {"minallowed": 0, "maxallowed": 1}
    layout: dict[str, Any] = {"yaxis": scale, "xaxis": axis, "showlegend": False}
    return Chart(title, caption, tuple(data), layout)


def _points(run: Run, by: str, key: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """A number of a run over an axis; a training number as means over stretches of the axis."""
    steps, spent = axis(run, by)
    at, values = run.series(key)
    where = np.interp(at, np.r_[0, steps], np.r_[0.0, spent])
    if key.startswith(EVALUATION):
        return where, values
    where, values = where[at > 0], values[at > 0]
    if len(where) <= POINTS:
        return where, values
    edges = np.linspace(0, len(where), POINTS + 1).astype(int)
    return (np.add.reduceat(where, edges[:-1]) / np.diff(edges),
            np.add.reduceat(values, edges[:-1]) / np.diff(edges))  # fmt: skip


def differences(plan: Plan, compared: Sequence[Compared], metric: str) -> Chart | None:
    """Paired differences from the baseline with their intervals, one line for each method."""
    rows = [(c, c.difference) for c in compared if c.metric == metric and c.difference is not None]
    rows = [(c, difference) for c, difference in rows if difference.n_seeds > 1]
    if not rows:
        return None
    data, most = [], 1
    for row, (value, low, high, _) in reversed(rows):
        decided = row.verdict in ("higher", "lower")
        lines = wrapped(row.label)
        most = max(most, len(lines))
        interval = f" ({low:+.4g} to {high:+.4g})" if math.isfinite(low) else ""
        data.append({
            "x": [value], "y": ["<br>".join(map(marked, lines))], "mode": "markers",
            "marker": {"size": 9, "color": COLOURS[0] if decided else GREY},
            "error_x": {"type": "data", "symmetric": False, "array": [high - value],
                        "arrayminus": [value - low], "thickness": 1.5},
            "hovertemplate": f"{value:+.4g}{interval}<extra></extra>",
        })  # fmt: skip
    name = number_of(metric, plan.scoring).name
    text = f"Paired difference from {plan.baseline}, 95% interval; grey: not decided."
    axis = {"title": {"text": name}, "zeroline": True, "zerolinewidth": 2, "dtick": None}
    layout = {
        "xaxis": {**axis, "rangemode": "tozero", "nticks": 5},
        "yaxis": {"type": "category", "tickfont": {"size": 11}},
        "showlegend": False,
    }
    height = 80 + len(rows) * (14 + 14 * most)
    return Chart(f"{name} against the baseline", text, tuple(data), layout, height)


def laws(runs: Runs) -> list[tuple[str, int, float, float, float, float]]:
    """(method, seed, a, b, ceiling, R^2) of the fit pass@1 = -a exp(H) + b of every run that has
    three validations or more.
    """
    found = []
    for label, by_seed in runs.items():
        for seed, run in by_seed.items():
            entropy, score = pairs(run, f"{EVALUATION}pass@1")
            if len(entropy) >= FEWEST and max(entropy) > min(entropy):
                law = fit_entropy_law(entropy, score)
                found.append((label, seed, law.a, law.b, law.ceiling, law.r_squared))
    return found
