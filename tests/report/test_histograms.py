"""Histograms of rewards and lengths: counts by hand, and their text on the page."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import plotly.graph_objects as go
import pytest
from runs import numbers_in

from strop.report.charts import BARS, histogram
from strop.report.recorded import Recorded
from strop.report.run_folder import Run, read_run
from strop.report.sections import sections

MakeRun = Callable[..., Path]


def run_of(*rewards: list[float]) -> Run:
    steps = [Recorded(10 * i + 10, (), np.array(r), np.array([])) for i, r in enumerate(rewards)]
    return Run("a", {}, 0, None, tuple(steps), ())


def test_the_first_and_the_last_step_stand_over_each_other() -> None:
    chart = histogram(run_of([0, 0, 0, 1.0], [0.5], [1.0, 1.0]), "t", "rewards", "reward")
    assert chart is not None
    early, late = chart.data
    assert (early["name"], late["name"]) == ("step 10", "step 30")
    assert early["x"] == late["x"] == [0.0, 1.0]
    assert (early["y"], late["y"]) == ([0.75, 0.25], [0.0, 1.0])
    assert chart.caption == "Share of rollouts: 4 of step 10, 2 of step 30."
    assert chart.layout["xaxis"]["dtick"] == 1  # whole numbers alone have a tick each
    halves = histogram(run_of([0, 0.5]), "t", "rewards", "reward")
    assert halves is not None
    assert halves.layout["xaxis"]["dtick"] is None
    go.Figure({"data": chart.data, "layout": chart.layout})


@pytest.mark.parametrize(
    "values",
    [[0.25], [0.5, 0.5 + 1e-12], [-1.0, 0.0, 0.1, 1.0], list(np.linspace(-3, 9, 200)), [-1e20] * 4],
)
def test_every_rollout_is_in_a_bar(values: list[float]) -> None:
    chart = histogram(run_of(values), "t", "rewards", "reward")
    assert chart is not None
    (bars,) = chart.data
    assert sum(bars["y"]) == pytest.approx(1, abs=1e-3)
    assert len(bars["x"]) == BARS if len(values) == 200 else len(bars["x"]) <= BARS
    assert not chart.layout["showlegend"]


def test_bars_of_whole_numbers_hold_as_many_of_them_each() -> None:
    chart = histogram(run_of(list(range(1, 49))), "t", "rewards", "reward")
    assert chart is not None
    assert chart.data[0]["x"] == [1.5 + 2 * i for i in range(24)]
    assert chart.data[0]["y"] == [pytest.approx(1 / 24, abs=1e-5)] * 24


def test_nothing_recorded_has_no_chart() -> None:
    assert histogram(run_of(), "t", "rewards", "reward") is None
    assert histogram(run_of([1.0]), "t", "lengths", "tokens") is None


def test_the_page_has_what_a_run_recorded_of_clips_age_and_tokens(make_run: MakeRun) -> None:
    titles = {c.title: c for _, charts in sections([read_run(make_run())]) for c in charts}
    assert "Rewards of a step" in titles
    assert not {"Age", "Effective sample", "Tokens of a step"} & set(titles)
    row = {
        "clip_ratio/region_mean": 0.3, "clip_ratio/low_mean": 0.1, "clip_ratio/high_mean": 0.2,
        "sampling/age_steps": 1.5, "correction/ess": 0.9, "num_rollouts": 8,
        "completions/mean_length": 4.5, "services/tokens_sampled": 12,
    }  # fmt: skip
    rows = [{"step": step, **row} for step in (1, 2)]
    run = Run("a", *numbers_in(rows), None, (), ())
    titles = {c.title: c for _, charts in sections([run]) for c in charts}
    assert [t["name"] for t in titles["Clipped tokens"].data] == [
        "on either side",
        "below",
        "above",
    ]
    assert titles["Age"].data[0]["y"] == [1.5, 1.5]
    assert [(t["name"], t["y"]) for t in titles["Tokens of a step"].data] == [
        ("answers", [36.0, 36.0]), ("drawn for parts", [12.0, 12.0]),
    ]  # fmt: skip
    fresh = Run("a", *numbers_in([{**rows[0], "sampling/age_steps": 0}]), None, (), ())
    assert "Age" not in {c.title for _, charts in sections([fresh]) for c in charts}
