"""Charts and panel lines that parts add: in a run's folder, on its page, on a terminal."""

import dataclasses
import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
from rich.console import Console
from runs import numbers_in

from strop.api.progress import Progress
from strop.method.charts import (
    Curve,
    LineChart,
    as_objects,
    charts_of,
    from_objects,
    not_logged,
    panel_of,
)
from strop.method.part import Use
from strop.parts.control.carry_metric_forward import CarryMetricForward
from strop.report.charts import Chart
from strop.report.page import parts, render
from strop.report.run_folder import Run, read_run
from strop.report.sections import sections
from strop.report.seeds import by_method
from strop.support.errors import UserError

MakeRun = Callable[..., Path]
BUDGET = LineChart("Budget", "Tokens.", (Curve("budget/mean", "mean"),))
LONG = LineChart("Length", "Beside ours.", (Curve("budget/most"),), section="Completions")


@dataclass(frozen=True)
class Brings:
    charts: ClassVar[Any] = (BUDGET, LONG)
    panel: ClassVar[Any] = ("budget/mean",)


@dataclass(frozen=True)
class BringsWrongly:
    charts: ClassVar[Any] = BUDGET  # no tuple
    panel: ClassVar[Any] = ("budget/mean", 3)


def charts_of_run(*charts: LineChart, config: str | None = None, name: str = "a") -> Run:
    keys = ("completions/mean_length", "budget/mean", "budget/most", "ess/ratio", "correction/ess")
    numbers = numbers_in([{"step": step, **dict.fromkeys(keys, 0.5)} for step in (1, 2)])
    return Run(name, *numbers, config, (), (), charts=charts)


def shown(*runs: Run) -> dict[str, dict[str, Chart]]:
    return {title: {c.title: c for c in charts} for title, charts in sections(runs)}


def test_each_is_brought_once_and_anything_else_is_refused() -> None:
    placed = [("probes.one", Use(Brings())), ("advantage.two", Use(Brings(), label="again"))]
    assert charts_of(placed) == (BUDGET, LONG)
    assert panel_of(placed) == ("budget/mean",)
    for read, message in ((charts_of, "charts must be a tuple of LineChart"),
                          (panel_of, "panel must be a tuple of str")):  # fmt: skip
        with pytest.raises(UserError, match=f"part brings_wrongly: {message}"):
            read([("probes.one", Use(BringsWrongly()))])


def test_metrics_that_no_step_logs_are_named() -> None:
    placed = [("probes.one", Use(Brings())), ("advantage.two", Use(Brings()))]
    assert not_logged(placed, {"budget/mean", "budget/most"}) == []
    (sentence,) = not_logged(placed, {"budget/mean", "budget/moost"})
    assert sentence.startswith("brings shows 'budget/most', which no step has logged, did you mean")
    carry = Use(CarryMetricForward(metric="entropi"))
    (sentence,) = not_logged([("control.carry_metric_forward", carry)], {"entropy"})
    assert sentence.startswith("carry_metric_forward follows 'entropi', which no step has logged, ")


def test_a_metric_without_a_name_is_not_the_one_that_chooses_a_checkpoint() -> None:
    run = Run("a", *numbers_in([{"step": 1, "": 0.5}]), 'recipe = "grpo"', (), ())
    assert "Best checkpoint" not in parts([run])["header"]


def test_another_spelling_of_a_section_of_the_page_joins_it() -> None:
    """Both have one anchor on the page, so that one of them was lost."""
    spelled = [dataclasses.replace(BUDGET, section=name) for name in ("completions", "SETTINGS")]
    found = parts([charts_of_run(*spelled, config='recipe = "grpo"')])
    assert found["completions"].count("<figure>") == 2
    assert "Budget" in found["settings"]
    assert "<pre>" in found["settings"]


def test_a_chart_has_a_section_of_its_own_or_joins_one() -> None:
    found = shown(charts_of_run(BUDGET, LONG))
    assert list(found) == ["Completions", "Method"]
    assert [trace["name"] for trace in found["Method"]["Budget"].data] == ["mean"]
    length = found["Completions"]["Length"]
    assert [trace["name"] for trace in length.data] == ["mean length", "budget/most"]
    assert length.caption.startswith("Tokens per completion")


@pytest.mark.parametrize("name", ["Numbers", "Settings"])
def test_a_chart_in_a_section_of_the_pages_own_stands_beside_its_content(
    name: str, make_run: MakeRun
) -> None:
    folder = make_run(num_steps=2, config="seed = 3\n")
    plain = parts([read_run(folder)])[name.lower()]
    chart = LineChart("Beside it", "Tokens.", (Curve("reward", "mean"),), section=name)
    (folder / "charts.json").write_text(json.dumps(as_objects((chart,))))
    found = parts([read_run(folder)])[name.lower()]
    assert "Beside it" in found
    assert len(found) > len(plain) > 0


def test_runs_of_different_methods_share_a_chart() -> None:
    one, other = (
        LineChart("Effective sample", "Share.", (Curve(key, key),), "Stability", percent=True)
        for key in ("ess/ratio", "correction/ess")
    )
    found = shown(charts_of_run(one), charts_of_run(other, name="b"))["Stability"]
    assert [trace["name"] for trace in found["Effective sample"].data] == [
        "a · ess/ratio", "a · correction/ess", "b · ess/ratio", "b · correction/ess",
    ]  # fmt: skip


def test_seeds_keep_the_charts_of_their_method() -> None:
    runs = [charts_of_run(BUDGET, config=f"seed = {n}\n", name=str(n)) for n in (1, 2)]
    (mean,) = by_method(runs)
    assert mean.charts == (BUDGET,)
    assert shown(mean)["Method"]["Budget"].title == "Budget"


def test_a_folder_keeps_them_and_another_file_is_a_note(make_run: MakeRun) -> None:
    folder = make_run(num_steps=1)
    assert from_objects(json.loads(json.dumps(as_objects((BUDGET, LONG))))) == (BUDGET, LONG)
    (folder / "charts.json").write_text(json.dumps(as_objects((BUDGET, LONG))))
    assert read_run(folder).charts == (BUDGET, LONG)
    whole = as_objects((BUDGET,))[0]
    for wrong in (
        {}, 3, None, [3], [{}], [{**whole, "title": 3}], [{**whole, "curves": [[1]]}],
        [{**whole, "curves": "x"}], [{**whole, "more": "x"}], [{**whole, "smooth": "yes"}],
    ):  # fmt: skip
        (folder / "charts.json").write_text(json.dumps(wrong))
        run = read_run(folder)
        assert run.charts == (), wrong
        assert "charts.json cannot be read and was left out." in run.notes
    (folder / "charts.json").write_text("[" * 100_000)
    assert read_run(folder).charts == ()


def test_markup_in_a_folder_stays_text() -> None:
    evil = LineChart('<img src="x">', "<b>", (Curve("budget/mean", "</script>"),), '"><script>')
    page = render([charts_of_run(evil)])
    assert "<img" not in page
    assert '"><script>' not in page
    assert "&lt;img src=&quot;x&quot;&gt;" in page


def test_the_panel_has_a_line_and_so_has_what_a_file_gets() -> None:
    progress = Progress(quiet=True)
    progress.console = Console(width=80, record=True, file=io.StringIO())
    progress.brought = panel_of([("probes.one", Use(Brings()))])
    progress.steps = 2
    for value in (0.25, 0.75):
        progress._take({"reward": 0.5, "entropy": 0.7, "grad_norm": 1.0, "budget/mean": value})
    progress.console.print(progress._panel(2))
    lines = progress.console.export_text().splitlines()
    assert [line.split()[0] for line in lines[:4]] == [
        "reward",
        "entropy",
        "budget/mean",
        "grad_norm",
    ]
    assert lines[2].split()[1:] == ["0.750", "▁█"]
    assert "entropy 0.700  budget/mean 0.750" in progress._line(2)
