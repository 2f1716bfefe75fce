"""The timeline of workers: bars whose seconds are known without a simulation."""

import numpy as np
import pytest

from strop.planning.course import Speed
from strop.planning.page import timeline
from strop.planning.simulate import simulate
from strop.planning.work import Costs, Layout, Work

# One token a second, a quarter for a reward, half a second a token to train on, one beside it.
COSTS = Costs(Speed(1.0, 0.0, 0.0, 0.0), reward=0.25, token=0.5, rest=1.0)


def chart_of(lengths: list[int], layout: Layout):
    work = Work((np.array(lengths),), 1, 0.0, 1.0, 99)
    return timeline(simulate(COSTS, work, layout))


def bars(chart) -> dict[str, list[tuple[str, float, float]]]:
    """Of each kind of work the workers with begin and end, in order."""
    found = {}
    for trace in chart.data:
        x, y = trace["x"], trace["y"]
        assert x[2::3] == y[2::3] == [None] * (len(x) // 3)
        assert y[0::3] == y[1::3]
        found[trace["name"]] = list(zip(y[0::3], x[0::3], x[1::3], strict=True))
    return found


def test_workers_that_take_turns():
    # answers of 2 and 6: 6 to draw, 0.25 to grade, then 3 for the longer one and 1
    chart = chart_of([2, 6], Layout(2, 2))
    starts, both = [10.25 * n for n in range(4)], ("worker 1", "worker 2")
    assert bars(chart) == {
        "generates": [(w, s, s + e) for s in starts for w, e in zip(both, (2, 6), strict=True)],
        "grades": [(w, s + 6, s + 6.25) for s in starts for w in both],
        "trains": [(w, s + 6.25, s + 10.25) for s in starts for w in both],
    }
    assert chart.layout["xaxis"]["range"] == [0, 41]
    assert chart.layout["yaxis"]["categoryarray"] == ["worker 2", "worker 1"]
    assert chart.caption == "29% idle over 4 steps and those after."


def test_engines_and_trainers_beside_each_other():
    # 6 to draw, 2 x 0.25 to grade, 8 / 2 + 1 to train
    chart = chart_of([2, 6], Layout(1, 1, False, 0))
    starts = [11.5 * n for n in range(4)]
    assert bars(chart) == {
        "generates": [("engine 1", s, s + 6) for s in starts],
        "grades": [("engine 1", s + 6, s + 6.5) for s in starts],
        "trains": [("trainer 1", s + 6.5, s + 11.5) for s in starts],
    }
    assert chart.layout["yaxis"]["categoryarray"] == ["trainer 1", "engine 1"]
    assert chart.caption.startswith("1 generate, 1 train; 50% idle")


@pytest.mark.parametrize(
    ("count", "numbers", "height"),
    [(2, [1, 2], 230), (8, [1, 2, 3, 4, 5, 6, 7, 8], 266), (15, [1, 3, 5, 7, 9, 11, 13, 15], 266)],
)
def test_a_line_for_each_of_some_workers(count, numbers, height):
    chart = chart_of([4] * count, Layout(count, count))
    names = [f"worker {number}" for number in numbers]
    assert chart.layout["yaxis"]["categoryarray"] == names[::-1]
    assert chart.height == height
