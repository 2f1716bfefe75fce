"""Draws that start one by one, against a loop over decode steps."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from strop.planning import draws
from strop.planning.course import Speed
from strop.planning.rounds import SEED
from strop.planning.simulate import simulate
from strop.planning.work import Costs, Layout, Work
from strop.training.collect import in_flight

GROUPS = st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=3), min_size=1, max_size=4)


def slow(groups, num_groups, staleness, reward, rest, count):
    """When each step is trained, of one engine whose decode steps take a second, as a training
    step takes `rest` and an answer `reward`: the same as in_flight.py has it, token by token."""
    rng = np.random.default_rng(SEED)
    now, drawn, size, trained = 0, 0, 0, []
    left, rows = [], []  # rows: step, group, tokens left
    for step in range(count):
        graded = None
        while True:
            running = sum(tokens > 0 for *_, tokens in rows)
            while running <= draws.FULL * size:
                if not left:
                    needed = drawn - staleness - 1
                    if needed >= 0 and not (needed < len(trained) and trained[needed] <= now):
                        break
                    chosen = rng.integers(len(groups), size=num_groups)
                    left = [(drawn, place, groups[each]) for place, each in enumerate(chosen)]
                    size, drawn = sum(len(group) for *_, group in left), drawn + 1
                started = 0
                for number, place, group in left:
                    if running and running + len(group) > size:
                        break
                    rows += [[number, (number, place), tokens] for tokens in group]
                    running, started = running + len(group), started + 1
                del left[:started]
                if left:
                    break
            waits = drawn <= step or any(number == step for number, *_ in left)
            own = [tokens for number, _, tokens in rows if number == step]
            if graded is None and not waits and not any(own):
                graded = now + reward * len(own)
            if graded is not None and now >= graded:
                break
            if any(tokens for *_, tokens in rows):
                now += 1
                for row in rows:
                    row[2] = max(row[2] - 1, 0)
            else:
                later = [when for when in trained if when > now]
                now = min(later + ([] if graded is None else [graded]))
        rows = [row for row in rows if row[0] != step]
        trained.append(max(now, trained[-1] if trained else 0) + rest)
    return trained


@settings(max_examples=30)
@example([[2], [1, 1, 1]], 3, 1, 0, 0)  # a prompt that does not fit beside those under way
@given(GROUPS, st.integers(1, 5), st.integers(1, 3), st.integers(0, 3), st.integers(0, 60))
def test_as_a_loop_over_decode_steps(groups, num_groups, staleness, reward, rest):
    costs = Costs(Speed(1.0, 0.0, 0.0, 0.0), float(reward), 0.0, float(rest))
    work = Work(tuple(map(np.array, groups)), num_groups, 0.0, 1.0, 99)
    found = simulate(costs, work, Layout(1, 1, False, staleness), steps=6)
    expected = slow(groups, num_groups, staleness, reward, rest, len(found.trained))
    assert found.trained.tolist() == pytest.approx(expected)
    assert (found.started <= found.ended).all()
    assert (found.ended <= found.graded + 1e-6).all()
    assert (found.drawn[:, 0] <= found.ended + 1e-6).all()


def test_a_slow_group_leaves_no_engine_idle():
    costs = Costs(Speed(1.0, 0.0, 0.0, 0.0), 0.0, 0.0, 1.0)
    work = Work((np.array([4] * 2), np.array([4, 40])), 8, 0.0, 1.0, 99)
    one, rounds = (
        simulate(costs, work, Layout(1, 1, False, 1, renew=renew), steps=40).step_seconds
        for renew in (True, False)
    )
    assert rounds == pytest.approx(40, abs=1)  # nearly every step has a slow one
    assert one < 0.8 * rounds


def test_it_is_the_rule_of_runs():
    assert draws.FULL == in_flight.FULL


def test_rows_that_have_ended_are_no_load():
    """The first engine's two rows have ended, their step has not: what begins is spread evenly."""
    some = Work((np.array([5, 5]),), 2, 0.0, 1.0, 99)
    made = draws.Draws(
        Costs(Speed(1.0, 0.0, 0.0, 0.0), 0.0, 1.0, 0.0), some, Layout(2, 1, False, 1)
    )
    made.drawn = 1
    made.engine, made.length, made.done = (
        np.array(each) for each in ([0, 0, 1], [3, 3, 9], [3, 3, 4])
    )
    made.prompt, made.unread = np.zeros(3), np.zeros(3)
    made._add([np.array([5, 5, 5])])
    assert made.engine.tolist() == [0, 0, 1, 0, 0, 1]
