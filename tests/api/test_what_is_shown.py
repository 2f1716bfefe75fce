"""How results look in a notebook: numbers with their intervals, and plots of curves."""

import math
import re
from typing import Any

from strop.api.audit import _shown
from strop.api.evaluate import interval
from strop.api.plot import picture, ticks
from strop.evaluation.samples import Estimate
from strop.report.charts import Chart


def test_a_value_has_three_digits_and_its_interval_where_it_has_one() -> None:
    assert interval(Estimate(0.25, 0.125, 0.5, 4)) == "0.250 (0.125 to 0.500)"
    assert interval(Estimate(0.25, math.nan, math.nan, 4)) == "0.250"
    assert interval(Estimate(0.25, 0.25, 0.25, 4)) == "0.250"
    assert interval(Estimate(8.0, 8.0, 8.0, 4)) == "8"  # a count
    assert interval(Estimate(1.0, 0.5, 1.0, 4)) == "1.000 (0.500 to 1.000)"
    assert interval(Estimate(math.nan, math.nan, math.nan, 4)) == "-"


def test_an_audited_number_has_the_digits_that_its_error_leaves() -> None:
    # two of the error's: its first stands at 10^-4, 10^-2, 10^-1, 10^0 and 10^1
    assert [_shown((1.23456, within)) for within in (0.00025, 0.025, 0.25, 2.5, 25.0)] == [
        "1.235±0.000", "1.235±0.025", "1.23±0.25", "1.2±2.5", "1±25",
    ]  # fmt: skip
    assert [_shown(number) for number in (0.1254, (1234.5, 0.0), math.nan)] == [
        "0.125", "1.23e+03", "-",
    ]  # fmt: skip


def test_the_places_of_an_axis_are_round_numbers() -> None:
    assert ticks(0, 10) == [0, 5, 10]
    assert ticks(100, 110) == [100, 105, 110]
    assert ticks(1, 3) == [1, 1.5, 2, 2.5, 3]
    assert ticks(3, 3) == [3]


def chart(x: list[int], y: list[float]) -> Chart:
    line: dict[str, Any] = {"color": "blue", "width": 2}
    return Chart("A title", "", ({"x": x, "y": y, "line": line},), {})


def places_of(text: str) -> list[str]:
    return re.findall(r'<polyline points="([^"]+)"', text)


def test_a_curve_goes_from_margin_to_margin() -> None:
    # 460 x 270, of which 52, 12, 34 and 44 are margins; y goes from 0 to 1.05
    text = picture([chart([1, 2, 3], [0.0, 1.0, 0.5])])
    assert places_of(text) == ["52.0,226.0 250.0,43.1 448.0,134.6"]
    # lines lie at 0, 0.5 and 1; without 0 the axis goes from 1.9 to 4.1, unless it is to begin at 0
    assert 'd="M52 43.1H448"' in text
    above = chart([1, 2], [2.0, 4.0])
    assert places_of(picture([above])) == ["52.0,217.3 448.0,42.7"]
    above.layout["yaxis"] = {"rangemode": "tozero"}
    assert places_of(picture([above])) == ["52.0,134.6 448.0,43.1"]
    # a single step: the axis goes on to the next one
    single = picture([chart([7], [0.0])])
    assert places_of(single) == ["52.0,226.0"]
    assert [f">{x}</text>" in single for x in (6, 7, 8, 9)] == [False, True, True, False]


def test_two_charts_stand_beside_each_other_and_a_third_below() -> None:
    one = chart([1, 2], [0.0, 1.0])
    for count, size, where in (
        (1, 'width="460" height="270"', ["0 0"]),
        (2, 'width="920" height="270"', ["0 0", "460 0"]),
        (3, 'width="920" height="540"', ["0 0", "460 0", "0 270"]),
    ):
        text = picture([one] * count)
        assert size in text
        assert re.findall(r"translate\(([^)]+)\)", text) == where
