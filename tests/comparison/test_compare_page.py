"""The page: one file without a network, no label becomes HTML, verdicts and responses."""

import dataclasses
import json
import re
from html import escape
from pathlib import Path

import numpy as np
import pytest
from compared import Made, compare, words_for
from models import Lab
from test_plan_of_comparison import planned

from strop.comparison.charts import curves, differences, laws, wrapped
from strop.comparison.names import number_of
from strop.comparison.page import render, responses
from strop.comparison.plan import START, Entry, Plan, Scoring, read_plan
from strop.comparison.scores import Row
from strop.comparison.table import heading, judged, markdown, note, one_run
from strop.report.html import POLICY, plotly
from strop.report.run_folder import Run

EVIL = 'advantage="a | b" <script>alert(1)</script>'


def plan(labels: tuple[str, ...], seeds: int = 5, **more: object) -> Plan:
    entries = tuple(Entry(label, f"recipe = 'grpo'\nlr = {i}") for i, label in enumerate(labels))
    scoring = Scoring(at=(4,), ks=(1,), samples=1)
    return Plan(entries, tuple(range(seeds)), 4, scoring, labels[0], **more)  # type: ignore[arg-type]


def rows(labels: tuple[str, ...], seeds: int = 5) -> list[Row]:
    """Method i is i tenths above the first, with a little noise."""
    return [
        Row(label, seed, 4, {"pass@1": 0.1 * i + 0.01 * seed * (1 + i), "trained": 12345.0 + i})
        for i, label in enumerate(labels)
        for seed in range(seeds)
    ]


def test_the_page_needs_no_network(made: Made) -> None:
    page = (made.folder / "compare.html").read_text()
    own = page.replace(plotly(), "")
    assert f'http-equiv="Content-Security-Policy" content="{escape(POLICY)}"' in own
    assert not re.search(r"https?://|<link|<img|<iframe|@import|url\(", own)
    assert own.count('data-figure="') == own.count('type="application/json"') > 4
    places = re.findall(r'data-figure="([^"]+)"', own)
    assert len(set(places)) == len(places)
    for title in ("grpo, rloo training.lr=2e-3", "Held-out scores after step 2", "Over steps",
                  "Over tokens sampled", "Over tokens trained on", "Over seconds"):  # fmt: skip
        assert title in own
    assert "before training" in own
    assert "training.lr</th><td>0.01</td><td>0.002</td>" in own  # settings that differ
    assert '<th scope="row">grpo</th><td>0</td><td>2</td>' in own  # every run
    for block in re.findall(r'<script type="application/json"[^>]*>(.*?)</script>', own):
        json.loads(block)


def test_labels_are_text() -> None:
    labels = ("grpo", EVIL)
    page = render(plan(labels), rows(labels), {}, [f"{EVIL} seed 0: <b>no</b>"])
    assert "<script>alert" not in page
    assert "<b>no</b>" not in page
    assert escape(EVIL) in page
    assert '`advantage="a \\| b" <script>' in markdown(plan(labels), rows(labels))


def test_verdicts_stand_beside_differences() -> None:
    labels = ("a", "b")
    page = render(plan(labels), rows(labels), {}, [])
    # differences 0.1, 0.11, ..., 0.14: mean 0.12; 2.7764 x 0.0158114 / sqrt(5) = 0.0196325
    assert '<span>+0.120 (+0.100 to +0.140)</span> <i class="higher">higher</i>' in page
    assert "12,345" in page
    few = render(plan(labels, seeds=4), rows(labels, 4), {}, [])
    assert 'class="higher"' not in few
    assert "Fewer than 5 seeds decide nothing" in few


def test_equal_runs_leave_all_charts_of_the_page_readable() -> None:
    """A method that equals the baseline on every seed has a difference without an interval."""
    labels = ("a", "b", "c")
    given = [row for row in rows(labels) if row.label != "b"]
    given += [row._replace(label="b") for row in given if row.label == "a"]
    page = render(plan(labels), given, {}, []).replace(plotly(), "")
    blocks = re.findall(r'<script type="application/json"[^>]*>(.*?)</script>', page)
    assert blocks
    for block in blocks:
        json.loads(block, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def test_a_mean_over_fewer_seeds_than_planned_says_over_how_many() -> None:
    labels = ("a", "b")
    given = [row for row in rows(labels) if (row.label, row.seed) != ("b", 3)]
    lines = markdown(plan(labels), given).splitlines()
    (line,) = (line for line in lines if line.startswith("| pass@1"))
    assert (line.count("of 4 seeds"), line.count("seed")) == (1, 1)
    assert "of 4 seeds</span>" in render(plan(labels), given, {}, [])
    given = [row for row in rows(labels) if (row.label, row.seed) != ("a", 3)]  # no pair for one
    (line,) = (x for x in markdown(plan(labels), given).splitlines() if x.startswith("| pass@1"))
    assert line.split("; ")[1].split(")")[1].startswith(" of 4 seeds")
    assert line.count("of 4 seeds") == 2


def test_small_numbers_keep_their_digits() -> None:
    one, other = (
        [Row("a", seed, 4, {"pass@1": size * (1 + seed / 10)}) for seed in range(5)]
        for size in (1e-5, 0.1)
    )
    assert "0.0000120" in markdown(plan(("a",)), one)
    assert "| 0.120 (" in markdown(plan(("a",)), other)


def test_intervals_are_drawn_where_they_lie() -> None:
    labels = ("a", "b", "a_very_long_name_of_a_method(with=1, options=2, of=3, its=4, own=5)")
    the = plan(labels)
    chart = differences(the, judged(the, rows(labels))[4], "pass@1")
    assert chart is not None
    last, first = chart.data  # plotly draws from below
    assert abs(first["x"][0] - 0.12) < 1e-12
    for side in ("array", "arrayminus"):
        assert abs(first["error_x"][side][0] - 0.0196324) < 1e-6
    assert last["y"][0].count("<br>") >= 2
    assert differences(the, judged(the, rows(("a",)))[4], "pass@1") is None


def test_long_names_break_where_words_end() -> None:
    name = "adaptive_entropy_coef(target=0.35)"
    assert wrapped(name) == ["adaptive_entropy_coef(", "target=0.35)"]
    assert wrapped("clip(low=0.2, high=0.5)") == ["clip(low=0.2, high=0.5)"]
    page = render(plan(("f(x=1)",)), rows(("f(x=1)",)), {}, [])
    assert '<th scope="col">f(<wbr>x=1)</th>' in page
    many = tuple(f"f(x={n})" for n in range(6))  # too many beside each other: a line each
    assert '<th scope="row">f(<wbr>x=5)</th>' in render(plan(many), rows(many), {}, [])


def test_bands_are_fainter_for_many_methods_and_none_stand_on_a_logarithmic_axis() -> None:
    def run(seed: int) -> Run:
        at = np.arange(1, 5)
        numbers = {"reward": (at, at / 8 + seed), "grad_norm": (at, 10.0 ** (at + seed))}
        return Run("run", numbers, 4, None, (), ())

    for names, alpha in (("ab", "0.15"), ("abcde", "0.07")):
        few = dict(curves({"a": {0: run(0), 1: run(1)}}, ["a"]))["steps"][0]
        assert [t["line"]["width"] for t in few.data] == [1, 1, 2]  # the runs, not their band
        runs = {name: {seed: run(seed) for seed in range(5)} for name in names}
        charts = {chart.title: chart for chart in dict(curves(runs, list(names)))["steps"]}
        filled = [t["fillcolor"] for t in charts["Reward"].data if "fill" in t]
        assert len(filled) == len(names)
        assert all(colour.endswith(f" {alpha})") for colour in filled)
        steep = charts["Gradient norm"]
        assert len(steep.data) == len(names)
        assert steep.layout["yaxis"] == {"type": "log"}


def test_training_numbers_are_means_over_sixtieths_of_the_way() -> None:
    at = np.arange(1, 121)
    run = Run("run", {"reward": (at, at / 4), "step_time": (at, at / at)}, 120, None, (), ())
    (chart,) = (c for c in dict(curves({"a": {0: run}}, ["a"]))["steps"] if c.title == "Reward")
    (trace,) = chart.data
    # two steps each: 1 and 2, 3 and 4, ...
    assert trace["x"] == [1.5 + 2 * n for n in range(60)]
    assert trace["y"] == [(1.5 + 2 * n) / 4 for n in range(60)]


def test_a_response_has_a_point_a_value_and_a_line_a_second_value() -> None:
    grid = [(lr, n) for lr in ("1e-4", "1e-2", "1e-3") for n in ("4", "8")]
    labels = tuple(f"lr={lr} n={n}" for lr, n in grid)
    the = plan(labels, swept="grpo")
    entries = tuple(
        dataclasses.replace(entry, values=(("lr", lr), ("n", n)))
        for entry, (lr, n) in zip(the.entries, grid, strict=True)
    )
    the = dataclasses.replace(the, entries=entries)
    (chart,) = responses(the, judged(the, rows(labels))[4], ["pass@1"])
    assert [trace["name"] for trace in chart.data] == ["n=4", "n=8"]
    assert chart.data[0]["x"] == [1e-4, 1e-3, 1e-2]
    # the fifth method is 0.4 + 0.02 x 5, the third 0.2 + 0.02 x 3, the first 0.02
    assert chart.data[0]["y"] == [0.02, 0.5, 0.26]
    # five seeds 0.01 (1 + i) apart scatter by 0.0158114 (1 + i), of which 2.7764 / sqrt(5)
    above, below = (chart.data[0]["error_y"][side] for side in ("array", "arrayminus"))
    assert above == pytest.approx([0.0196325, 5 * 0.0196325, 3 * 0.0196325], abs=1e-4)
    assert below == pytest.approx(above, abs=1e-4)
    assert chart.layout["xaxis"]["type"] == "log"
    from_0 = dataclasses.replace(
        the, entries=tuple(dataclasses.replace(e, values=(("lr", str(i)),))
                           for i, e in enumerate(the.entries))
    )  # fmt: skip
    (chart,) = responses(from_0, judged(from_0, rows(labels))[4], ["pass@1"])
    assert "type" not in chart.layout["xaxis"]  # 0 has no logarithm
    drawn = dataclasses.replace(the, entries=entries[:5])  # no whole grid: a chart an option
    charts = responses(drawn, judged(drawn, rows(labels[:5]))[4], ["pass@1"])
    assert [chart.layout["xaxis"]["title"]["text"] for chart in charts] == ["lr", "n"]
    assert responses(plan(("a", "b")), [], ["pass@1"]) == []


def test_the_header_has_what_all_methods_share_and_many_settings_are_folded() -> None:
    def page(*configs: str) -> str:
        entries = tuple(Entry(name, text) for name, text in zip("ab", configs, strict=False))
        the = dataclasses.replace(plan(("a", "b")), entries=entries)
        return render(the, rows(("a", "b")[: len(configs)]), {}, [])

    both = page("recipe = 'grpo'\nmodel.name = 'm'", "recipe = 'rloo'\nmodel.name = 'm'")
    assert "<dt>Model</dt><dd>m</dd>" in both
    assert "<dt>Recipe</dt>" not in both
    assert "<dt>Baseline</dt><dd>a</dd>" in both
    assert "<dt>Baseline</dt>" not in page("recipe = 'grpo'")
    many, few = ("\n".join(f"x{n} = {{0}}" for n in range(number)) for number in (13, 12))
    assert "13 settings</summary>" in page(many.format(1), many.format(2))
    assert "12 settings</summary>" not in page(few.format(1), few.format(2))


def test_the_page_has_the_law_of_score_and_entropy() -> None:
    at = np.arange(5)
    entropy = 1.0 - at / 5
    numbers = {
        "entropy": (at, entropy), "eval/validation/pass@1": (at, 0.9 - 0.2 * np.exp(entropy))
    }  # fmt: skip
    run = Run("run", numbers, 4, None, (), ())
    ((*_, a, b, ceiling, r_squared),) = laws(runs := {"a": {0: run}})
    page = render(plan(("a",)), rows(("a",)), runs, [])
    assert "fitted to each run's validations" in page
    assert "".join(f"<td>{x:.3f}</td>" for x in (a, b, ceiling, r_squared)) in page


def test_what_is_said_of_seeds_steps_and_tokens() -> None:
    told = {number: note(plan(("a", "b"), seeds=number)) for number in (1, 4, 5)}
    assert told[1].startswith("1 seed: cells hold its numbers.")
    assert told[4].startswith("4 seeds; cells hold the mean over seeds")
    assert "Fewer than 5 seeds decide nothing" in told[4]
    assert "Fewer" not in told[5]
    the = plan(("a", "b"))
    assert heading(the, 4) == "Held-out scores after step 4"
    assert (
        heading(planned(by="sampled", k="1,16", steps=0), 4)
        == "Validation scores where all have the same tokens sampled"
    )
    assert number_of("sampled to pass@1=0.5", the.scoring).name == "tokens sampled to pass@1=0.5"
    assert number_of("steps to pass@1=0.5", the.scoring).name == "steps to pass@1=0.5"
    assert one_run(Row("a", 3, 4, {"x": 0.5}), ["x"]) == ["a", "3", "4", "0.5"]
    assert one_run(Row(START, 0, 0, {"x": 0.5}), ["x"]) == [START, "", "0", "0.5"]
    tokens = {"x": 12345678.0, "y": 0.123456789}
    assert one_run(Row("a", 0, 9, tokens), ["x", "y"])[3:] == ["12345678", "0.123457"]


def test_a_sweep_as_a_user_types_it(lab: Lab, tmp_path: Path) -> None:
    folder = tmp_path / "swept"
    words = [w for w in words_for(lab, "--seeds", "1", "grpo") if not w.startswith("training.lr")]
    result = compare([*words, "training.lr=grid(1e-3,1e-2)"], folder, "sweep").end()
    assert result.code == 0, result.err
    assert "loading" not in result.out  # which is no terminal
    the = read_plan(folder)
    assert [entry.values for entry in the.entries] == [
        (("training.lr", "1e-3"),), (("training.lr", "1e-2"),),
    ]  # fmt: skip
    assert "| `training.lr=1e-3` | `training.lr=1e-2` |" in result.out
    page = (folder / "compare.html").read_text()
    assert "pass@1 over training.lr" in page
    assert re.search(r'"x": \[0\.001, 0\.01\]', page)
    assert (folder / "runs/training_lr_1e_2-0").is_dir()
