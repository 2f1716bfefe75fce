"""The course of a metric: its first value, and means, whose number stays small."""

import pytest

from strop.api.progress import CELLS, Course, Progress, _scores, spark


def course(values):
    first, *rest = values
    found = Course(first)
    for value in rest:
        found.add(value)
    return found


def test_worked_example():
    """Up to CELLS values each is a stretch; one more pair of all of them is a stretch of two."""
    few = course(range(CELLS - 1))
    assert (few.means, few.size, few.open) == ([*range(CELLS - 1)], 1, [])
    more = course(range(CELLS + 1))
    assert more.means == [2 * n + 0.5 for n in range(CELLS // 2)]
    assert (more.size, more.open) == (2, [CELLS])
    assert more.first == 0


def test_a_short_course_is_shown_as_it_is():
    assert course([0.0, 1.0, 0.5]).line(40) == spark([0.0, 1.0, 0.5]) == "▁█▄"


@pytest.mark.parametrize("steps", [1000, 100_000])
def test_a_long_one_is_small_and_keeps_its_shape(steps):
    found = course([n / steps for n in range(steps)])
    assert len(found.means) < CELLS
    assert len(found.open) < found.size <= 2 * steps / CELLS * 2
    line = found.line(8)
    assert (len(line), line[0], line[-1]) == (8, "▁", "█")
    assert line == "".join(sorted(line))
    assert len(set(line)) >= 6
    mean = (sum(found.means) * found.size + sum(found.open)) / steps
    assert mean == pytest.approx(0.5, abs=1e-3)


def test_what_is_not_finite_leaves_a_number_as_it_was():
    progress = Progress()
    for value in (0.5, None, float("nan")):
        progress._take({"entropy": value})
    assert (progress.shown["entropy"], progress.history["entropy"].line(9)) == (0.5, "▁")


def test_a_parts_metric_may_have_at_and_a_word():
    assert _scores(["mine/pass@best", "eval/a/pass@8", "eval/a/pass@1/low", "eval/a/pass@1"]) == [
        "eval/a/pass@1", "eval/a/pass@8",
    ]  # fmt: skip
