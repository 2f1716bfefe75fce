"""The chart of scores over entropy."""

import math

import plotly.graph_objects as go
import pytest
from runs import numbers_in

from strop.report.run_folder import Run
from strop.report.sections import sections

KEY = "eval/countdown/pass@1"
TITLE = "Score over entropy: countdown"


def run_on_the_law(name: str, evaluated: tuple[int, ...], last: int = 9) -> Run:
    """score = .7 - .2 exp(H) of the weights after a step; H is that of the step that follows."""
    entropy = {step: 1.0 - 0.1 * step for step in range(1, last + 1)}
    rows = [{"step": 0, KEY: 0.7 - 0.2 * math.exp(entropy[1])}] if 0 in evaluated else []
    for step in range(1, last + 1):
        row = {"step": step, "entropy": entropy[step]}
        if step in evaluated:
            drawn = entropy.get(step + 1, entropy[step])
            row[KEY] = 0.7 - 0.2 * math.exp(drawn)
        rows.append(row)
    return Run(name, *numbers_in(rows), None, (), ())


def charts(runs):
    return {chart.title: chart for _, found in sections(runs) for chart in found}


def test_the_fit_is_shown_from_three_evaluations_on():
    chart = charts([run_on_the_law("a", (0, 3, 6, 9))])[TITLE]
    marks, curve = chart.data
    assert marks["x"] == pytest.approx([0.9, 0.6, 0.3, 0.1])
    assert marks["y"] == pytest.approx([0.7 - 0.2 * math.exp(h) for h in marks["x"]])
    assert (curve["x"][0], curve["y"][0]) == pytest.approx((0.0, 0.5))
    assert "pass@1 = 0.700 - 0.200 exp(H), 0.500 at H = 0, R² 1.00" in chart.caption
    assert chart.layout["xaxis"]["title"]["text"] == "entropy, nats"
    go.Figure({"data": chart.data, "layout": chart.layout})
    assert TITLE not in charts([run_on_the_law("a", (3, 6))])


def test_several_runs_and_those_without_enough():
    runs = [
        run_on_the_law("a", (0, 3, 6)),
        run_on_the_law("b", (3,)),
        run_on_the_law("c", (0, 5, 9)),
    ]
    chart = charts(runs)[TITLE]
    assert [trace["name"] for trace in chart.data] == ["a", "a: fit", "c", "c: fit"]
    assert chart.layout["showlegend"]
    assert chart.caption.startswith("a: pass@1 = ")
    flat = Run(
        "d", *numbers_in({"step": s, "entropy": 0.5, KEY: 0.1 * s} for s in range(4)), None, (), ()
    )
    assert TITLE not in charts([flat])
    still = numbers_in({"step": s, "entropy": 0.1 * s, KEY: 0.2} for s in range(4))
    assert TITLE not in charts([Run("e", *still, None, (), ())])
