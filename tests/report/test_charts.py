"""Figures: their contents, and that plotly accepts them."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import plotly.graph_objects as go
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from runs import numbers_in

from strop.method.charts import Curve, LineChart
from strop.report import charts
from strop.report.charts import COLOURS, Chart, lines, moving_mean, stack
from strop.report.run_folder import Run, read_run
from strop.report.sections import GROUPS, sections

MakeRun = Callable[..., Path]


def run_of(name: str, **series: list[float]) -> Run:
    length = max(len(values) for values in series.values())
    rows = [
        {"step": i + 1, **{key: values[i] for key, values in series.items() if i < len(values)}}
        for i in range(length)
    ]
    return Run(name, *numbers_in(rows), None, (), ())


def charts_of(runs: list[Run]) -> dict[str, Chart]:
    return {chart.title: chart for _, charts in sections(runs) for chart in charts}


def test_every_figure_is_valid_and_in_order(make_run: MakeRun) -> None:
    runs = [read_run(make_run("a")), read_run(make_run("b", num_steps=7))]
    for some in (runs[:1], runs):
        found = sections(some)
        assert [title for title, _ in found] == [
            "Learning",
            "Exploration",
            "Completions",
            "Groups",
            "Stability",
            "Where the time went",
        ]
        for chart in charts_of(some).values():
            go.Figure({"data": chart.data, "layout": chart.layout})  # raises on unknown fields


def test_several_runs_share_a_chart_by_colour() -> None:
    runs = [run_of("a", reward=[0.1, 0.2]), run_of("b", reward=[0.3, 0.4])]
    chart = charts_of(runs)["Reward"]
    assert [trace["name"] for trace in chart.data] == ["a", "b"]
    assert [trace["line"]["color"] for trace in chart.data] == list(COLOURS[:2])
    assert chart.layout["showlegend"]
    assert not charts_of(runs[:1])["Reward"].layout["showlegend"]


def test_entropy_band_only_where_both_limits_are_recorded() -> None:
    limits = {"entropy_control/low": [0.4, 0.4], "entropy_control/high": [0.6]}
    with_band = charts_of([run_of("a", entropy=[1.0, 0.5], **limits)])["Entropy"]
    low, high, curve = with_band.data
    assert (low["y"], high["y"], curve["y"]) == ([0.4], [0.6], [1.0, 0.5])
    assert high["fill"] == "tonexty"
    assert "controller" in with_band.caption
    without = charts_of([run_of("a", entropy=[1.0, 0.5])])["Entropy"]
    assert len(without.data) == 1
    assert "controller" not in without.caption


def test_evaluation_sets_have_their_own_charts_with_intervals() -> None:
    keys = {
        "eval/easy/pass@1": [0.5],
        "eval/easy/pass@1/low": [0.4],
        "eval/easy/pass@1/high": [0.6],
        "eval/hard/set/maj@8": [0.2],
        "eval/hard/set/auc": [0.9],
    }
    found = charts_of([run_of("a", **keys)])
    assert list(found) == ["Evaluation: easy", "Evaluation: hard/set"]
    assert [trace["y"] for trace in found["Evaluation: easy"].data] == [[0.4], [0.6], [0.5]]
    assert [trace["name"] for trace in found["Evaluation: hard/set"].data] == ["maj@8"]
    named = charts_of([run_of("a", **{"eval/math_accuracy/pass@1": [0.5]})])  # no accuracy of pairs
    assert list(named) == ["Evaluation: math_accuracy"]


def test_stack_counts_a_missing_value_as_zero() -> None:
    run = run_of("a", **{"timing_s/rollout": [1.0, 2.0], "timing_s/eval": [0.5]})
    chart = charts_of([run])["Seconds of a step"]
    assert {trace["name"]: trace["y"] for trace in chart.data} == {
        "rollout": [1.0, 2.0],
        "eval": [0.5, 0.0],
    }
    assert len({trace["fillcolor"] for trace in chart.data}) == 2
    assert stack(run, "t", "c", GROUPS, percent=True) is None


def test_charts_without_numbers_are_left_out() -> None:
    assert lines([run_of("a", reward=[1.0])], LineChart("t", "c", (Curve("kl", "KL"),))) is None
    assert list(charts_of([run_of("a", reward=[1.0])])) == ["Reward"]
    assert sections([Run("a", {}, 0, None, (), ())]) == []


def test_parts_of_the_reward_are_drawn_where_there_are_several() -> None:
    one = {"rewards/exact/mean": [0.5, 0.6]}
    chart = charts_of([run_of("a", **one, **{"rewards/form/mean": [1.0, 0.9]})])["Reward parts"]
    assert [trace["name"] for trace in chart.data] == ["exact", "form"]
    assert "Reward parts" not in charts_of([run_of("a", **one)])


def test_axis_starts_at_zero_unless_values_are_negative() -> None:
    def mode(values: list[float]) -> str:
        return charts_of([run_of("a", reward=values)])["Reward"].layout["yaxis"]["rangemode"]

    assert (mode([0.5, 0.6]), mode([-0.5, 0.6])) == ("tozero", "normal")


def test_long_noisy_curves_get_their_mean() -> None:
    faint, mean = charts_of([run_of("a", reward=[0.0, 1.0] * 40)])["Reward"].data
    assert faint["y"] == [0.0, 1.0] * 40
    assert faint["showlegend"] is False
    assert mean["name"] == "reward (mean of 7)"
    assert mean["y"][10] == pytest.approx(4 / 7, rel=1e-5)  # entries 7 .. 13 are 1 0 1 0 1 0 1


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=30), st.sampled_from([1, 3, 7, 41]))
def test_moving_mean_matches_slow_loop(values: list[float], window: int) -> None:
    half = window // 2
    spans = [values[max(0, i - half) : i + half + 1] for i in range(len(values))]
    slow = [sum(span) / len(span) for span in spans]
    assert moving_mean(np.array(values), window) == pytest.approx(np.array(slow), abs=1e-9)


def test_a_long_band_keeps_its_widest_limits() -> None:
    steps = np.arange(1, 1201)
    low, high = -1.0 * (steps % 3), 1.0 * (steps % 3)
    x, lowest, highest = charts.thinned_band(steps, low, high)
    # 400 stretches of three: the middle one of each, and -2 to 2 of the second
    assert x.tolist() == [2 + 3 * n for n in range(400)]
    assert set(lowest.tolist()) == {-2.0}
    assert set(highest.tolist()) == {2.0}
    same = charts.thinned_band(steps[:400], low[:400], high[:400])
    assert [each.tolist() for each in same] == [each[:400].tolist() for each in (steps, low, high)]


def test_a_long_curve_is_thinned_and_keeps_its_peaks() -> None:
    values = [0.5] * 20_000
    values[7_777], values[13_131] = 3.0, -2.0
    faint, mean = charts_of([run_of("a", reward=values)])["Reward"].data
    for trace in (faint, mean):
        assert len(trace["x"]) == len(trace["y"]) <= charts.POINTS
        assert trace["x"] == sorted(set(trace["x"]))
    drawn = dict(zip(faint["x"], faint["y"], strict=True))
    assert (drawn[7_778], drawn[13_132]) == (3.0, -2.0)  # steps begin with 1
    assert sum(mean["y"]) / len(mean["y"]) == pytest.approx(sum(values) / len(values), abs=1e-3)


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=60), st.integers(2, 20))
@example([0.0, 1.0, 2.0, 3.0, 4.0, 5.0], 3)
def test_thinning_keeps_extremes_and_means(values: list[float], points: int) -> None:
    series = np.arange(len(values)), np.array(values)
    steps, kept = charts.thinned(series, points)
    assert len(kept) <= max(points, 2)
    assert (kept.min(), kept.max()) == (min(values), max(values))
    assert all(values[step] == value for step, value in zip(steps, kept, strict=True))
    middles, averages = charts.averaged(series, points)
    assert len(averages) == min(points, len(values))
    if len(values) % len(averages) == 0:  # stretches of equal length
        assert averages.mean() == pytest.approx(np.mean(values), abs=1e-9)
        each = len(values) // len(averages)
        assert middles.tolist() == [each * n + (each - 1) // 2 for n in range(len(averages))]
