"""Runs that differ only by their seed are one method: its mean, and a Student-t band."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import plotly.graph_objects as go
import pytest
from runs import numbers_in

from strop.report.charts import Chart
from strop.report.page import parts, write_report
from strop.report.recorded import Recorded
from strop.report.run_folder import Run, read_run
from strop.report.sections import sections
from strop.report.seeds import by_method, mean_and_band

MakeRun = Callable[..., Path]
T_2 = 4.302652729911275  # 97.5% quantile of Student's t with two degrees of freedom


def run_of(name: str, seed: int, rewards: list[float], more: str = "", **kept: object) -> Run:
    rows = [{"step": i + 1, "reward": reward} for i, reward in enumerate(rewards)]
    config = f'recipe = "grpo"\nseed = {seed}\n{more}'
    return Run(name, *numbers_in(rows), config, (), (), **kept)


def charts_of(runs: list[Run]) -> dict[str, Chart]:
    return {chart.title: chart for _, charts in sections(runs) for chart in charts}


def test_the_band_is_students_interval_as_far_as_every_seed_has_come() -> None:
    at = np.array([1, 2, 3])
    drawn = [(at, np.array([0.0, 1.0, 5.0])), (at[:2], np.array([3.0, 1.0])),
             (at[:2], np.array([6.0, 1.0]))]  # fmt: skip
    x, low, mean, high = mean_and_band(drawn)
    assert x.tolist() == [1, 2]
    assert mean.tolist() == [3.0, 1.0]
    half = T_2 * 3 / math.sqrt(3)  # the deviation of 0, 3, 6 is 3
    assert low == pytest.approx([3 - half, 1])
    assert high == pytest.approx([3 + half, 1])
    assert [list(map(float, each)) for each in mean_and_band(drawn[:1])] == [
        [1, 2, 3], [0, 1, 5], [0, 1, 5], [0, 1, 5],
    ]  # fmt: skip


def test_the_mean_begins_where_every_seeds_curve_has_begun() -> None:
    at = np.array([1, 2, 3, 4])
    late = (at[2:], np.array([5.0, 7.0]))
    x, _, mean, _ = mean_and_band([(at, np.array([1.0, 2.0, 3.0, 4.0])), late])
    assert x.tolist() == [3, 4]
    assert mean.tolist() == [4.0, 5.5]
    # one value of each seed, at other numbers of tokens: a point
    x, _, mean, _ = mean_and_band([(at[:1], np.array([1.0])), (at[1:2], np.array([3.0]))])
    assert (x.tolist(), mean.tolist()) == ([1], [2.0])


def test_only_runs_that_differ_by_seed_alone_are_one() -> None:
    runs = [
        run_of("a", 0, [1.0]), run_of("b", 1, [3.0]),
        run_of("c", 0, [1.0], "[training]\nlr = 1.0\n"),
        run_of("d", 0, [1.0], "[training]\nlr = 2.0\n"),
        run_of("e", 0, [1.0], "[training]\nlr = 2.0\n"),  # no other seed: a copy
        Run("f", {}, 0, None, (), ()), Run("g", {}, 0, None, (), ()),
    ]  # fmt: skip
    found = by_method(runs)
    assert [run.name for run in found] == ["grpo (2 seeds): a, b", "c", "d", "e", "f", "g"]
    assert found[0].members == tuple(runs[:2])
    assert found[1:] == runs[2:]
    assert by_method(runs[:2])[0].name == "grpo (2 seeds)"  # no other method of that recipe


def test_a_method_has_the_mean_of_its_runs() -> None:
    hundred = [Recorded(s, (), np.array([s / 2.0]), np.array([s])) for s in (10, 20)]
    runs = [run_of("a", 0, [1.0, 2.0]), run_of("b", 1, [3.0, 2.0, 5.0])]
    runs = [Run(**{**vars(r), "rollouts": tuple(hundred[: 2 - i])}) for i, r in enumerate(runs)]
    (mean,) = by_method(runs)
    assert mean.series("reward")[1].tolist() == [2.0, 2.0]
    assert mean.num_steps == 2
    assert [(r.step, r.rewards.tolist()) for r in mean.rollouts] == [(10, [5.0, 5.0])]


def test_the_chart_shows_each_of_few_seeds_and_a_band_of_many(make_run: MakeRun) -> None:
    folders = [make_run(f"r{s}", config=f'recipe = "grpo"\nseed = {s}\n') for s in (1, 2, 3)]
    runs = [read_run(folder) for folder in folders]
    methods = by_method(runs)
    charts = charts_of(methods)
    *seeds, mean = charts["Reward"].data
    assert mean["name"] == "reward (mean of 5)"
    assert [each["line"]["width"] for each in (*seeds, mean)] == [1, 1, 1, 2]
    assert "a thin line is a seed" in charts["Evaluation: countdown"].caption
    five = [make_run(f"r{s}", config=f'recipe = "grpo"\nseed = {s}\n') for s in (4, 5)]
    many = charts_of(by_method([*runs, *map(read_run, five)]))
    low, high, mean = many["Reward"].data
    assert low["y"] == high["y"] == mean["y"]  # the made-up runs are equal
    assert "over seeds" in many["Evaluation: countdown"].caption
    for chart in charts.values():
        go.Figure({"data": chart.data, "layout": chart.layout})
    other = read_run(make_run("dapo", config='recipe = "dapo"\nseed = 1\n'))
    beside = charts_of(by_method([*runs, other]))["Reward"]
    names = {trace["name"] for trace in beside.data if trace.get("showlegend", True)}
    assert names == {"grpo (3 seeds) (mean of 5)", "dapo (mean of 5)"}


def test_the_page_names_seeds_and_leaves_them_out_of_the_differences(make_run: MakeRun) -> None:
    names = [("a", 'recipe = "grpo"\nseed = 1\n'), ("b", 'recipe = "grpo"\nseed = 2\n'),
             ("c", 'recipe = "rloo"\nseed = 5\n')]  # fmt: skip
    folders = [make_run(name, config=config) for name, config in names]
    found = parts([read_run(folder) for folder in folders])
    assert "<dt>Runs</dt><dd>a, b</dd></div><div><dt>Seeds</dt><dd>1, 2</dd>" in found["header"]
    assert "Each trained" in found["header"]
    differing = found["settings"][: found["settings"].index("<details>")]
    assert "recipe" in differing
    assert "seed" not in differing.replace("grpo (2 seeds)", "")
    assert found["every-recorded-number"].count("<summary>") == 2
    assert "<td>60.0%</td>" in found["numbers"]  # equal seeds have no interval
    assert "60.0% [54.0%, 66.0%]" in found["numbers"]  # of one run, over prompts


def test_forty_runs_have_a_page_that_is_small(make_run: MakeRun, tmp_path: Path) -> None:
    folders = [
        make_run(f"{m}-{s}", 40, config=f'recipe = "grpo"\nseed = {s}\n[training]\nlr = {m}.0\n')
        for m in range(8)
        for s in range(5)
    ]
    page = write_report(folders, tmp_path / "r.html").read_text(encoding="utf-8")
    assert len(page.encode()) < 2_000_000
    assert page.count("(5 seeds)") > 8
