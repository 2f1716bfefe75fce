"""When rows of engines end: by hand, and against a loop over decode steps."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strop.planning.course import Course, Speed

SPEED = Speed(step=1.0, row=0.5, cached=0.1, read=0.25)
NUMBERS = st.floats(0.0, 2.0)


def course(engine, left, held, read, slots=9, speed=SPEED, num_engines=None, fresh=None):
    whole = np.array(engine, np.int64), np.array(left, np.int64)
    tokens = np.array(held, float), np.array(read, float)
    fresh = np.ones(len(left), bool) if fresh is None else np.array(fresh, bool)
    return Course(*whole, *tokens, fresh, num_engines or max(engine) + 1, slots, speed)


def slow(left, held, read, fresh, slots, speed):
    """Ends of the rows of one engine, and (second, tokens of each row) after every decode step."""
    drawn, ends = [0] * len(left), [0.0] * len(left)
    now, seen = 0.0, [(0.0, tuple(drawn))]
    waiting, running = list(range(len(left))), []
    while waiting or running:
        reads = False
        while waiting and len(running) < slots:
            running.append(waiting.pop(0))
            now += speed.read * read[running[-1]] + speed.answer * fresh[running[-1]]
            reads |= read[running[-1]] > 0
        now += speed.begin * reads
        cached = sum(held[row] + drawn[row] for row in running)
        now += speed.step + speed.row * len(running) + speed.cached * cached
        for row in running:
            drawn[row] += 1
        for row in [row for row in running if drawn[row] == left[row]]:
            ends[row] = now
            running.remove(row)
        seen.append((now, tuple(drawn)))
    return ends, seen


def test_two_rows_by_hand():
    found = course([0, 0], [2, 6], [3, 3], [3, 3])
    # reading 2 * 3 * 0.25 = 1.5; with both 2.6 + 2.8, alone 2.0 + 2.1 + 2.2 + 2.3
    assert found.ends.tolist() == pytest.approx([6.9, 15.5])
    drawn, running = found.drawn(np.array([6.9 + 2.0 + 2.0]))  # in the fourth step
    assert (drawn.tolist(), running.tolist()) == ([2, 3], [False, True])


def test_engines_do_not_touch_each_other_and_a_row_waits_for_a_slot():
    found = course([1, 0, 1, 1], [2, 4, 5, 1], [0] * 4, [0] * 4, 2, Speed(1, 0, 0, 0), 3)
    assert found.ends.tolist() == [
        2,
        4,
        5,
        3,
    ]  # the last row of engine 1 begins when the first ends
    drawn, running = found.drawn(np.array([9.0, 2.5, 0.0]))
    assert (drawn.tolist(), running.tolist()) == ([2, 4, 2, 0], [False, False, True, True])


def test_rows_are_let_in_together_and_answers_handled_once():
    speed = Speed(step=1.0, row=0.0, cached=0.0, read=0.25, begin=10.0, answer=3.0)
    # two slots: the first two begin together, one of them anew; the third reads nothing
    found = course([0, 0, 0], [2, 4, 1], [4, 4, 4], [4, 4, 0], 2, speed, fresh=[True, False, True])
    first = 10 + 8 * 0.25 + 3
    assert found.ends.tolist() == pytest.approx([first + 2, first + 4 + 3, first + 2 + 3 + 1])


def test_no_rows():
    found = course([], [], [], [], num_engines=2)
    assert len(found.ends) == 0
    assert len(found.drawn(np.zeros(2))[0]) == 0


ROW = st.tuples(st.integers(1, 9), st.integers(0, 5), st.integers(0, 5), st.booleans())
ROWS = st.lists(ROW, max_size=6)


@given(st.lists(ROWS, min_size=1, max_size=3), st.integers(1, 4), NUMBERS, NUMBERS, NUMBERS)
def test_as_a_loop_over_decode_steps(engines, slots, row, cached, read):
    speed = Speed(0.5, row, cached, read, begin=read / 2, answer=row / 3)
    flat = [(number, *each) for number, rows in enumerate(engines) for each in rows]
    engine, left, held, reading, fresh = ([each[place] for each in flat] for place in range(5))
    found = course(engine, left, held, reading, slots, speed, len(engines), fresh)
    for number, rows in enumerate(engines):
        if not rows:
            continue
        ends, seen = slow(*(list(column) for column in zip(*rows, strict=True)), slots, speed)
        own = found.engine == number
        assert found.ends[own].tolist() == pytest.approx(ends)
        for before, after in pairwise(seen):
            when = np.full(len(engines), before[0] + 0.999 * (after[0] - before[0]))
            assert tuple(found.drawn(when)[0][own]) == before[1]
