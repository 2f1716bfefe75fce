"""The behaviour of every control: new values for options that the method has."""

import math
from collections.abc import Mapping

from every import every
from staged import alike, copied, entries, restored

from strop.method.part import OUTSIDE

ENTRIES = entries("control")
every_part = every("entry", ENTRIES)


class Numbers(Mapping):
    """Every metric there may be: a number that depends on its name and the step."""

    def __init__(self, step):
        self.step = step

    def __getitem__(self, name):
        return (sum(map(ord, name)) + 3 * self.step) % 7 / 7

    def __iter__(self):
        raise AssertionError("a control asks for the metrics that it names")

    def __len__(self):
        return 1


def numbers(value):
    """Those of an option: one, or several."""
    return value if isinstance(value, tuple) else (value,)


def begun(place):
    """The first state, and the values of the options that the control moves."""
    known, part = place.algorithm.paths(), place.part
    state = part.init() if hasattr(part, "init") else None
    return state, {path: known[path] for path in part.moves if path in known}


def moved(place, state, step, knobs):
    return place.call(None, state, step=step, metrics=Numbers(step), knobs=knobs)


@every_part
def test_knobs_are_options_of_the_method_and_numbers(entry, stages):
    place = stages.of(entry)
    known = {*place.algorithm.paths(), *OUTSIDE}
    state, knobs = begin = begun(place)
    seen, changed = set(), False
    for step in range(1, 9):
        before = copied(state)
        outcome = moved(place, state, step, knobs)
        assert alike(state, before)
        assert set(outcome.value) <= set(place.part.moves) <= known
        assert all(math.isfinite(n) for value in outcome.value.values() for n in numbers(value))
        assert all(math.isfinite(value) for value in outcome.metrics.values())
        place.algorithm.with_knobs({k: v for k, v in outcome.value.items() if k not in OUTSIDE})
        seen |= set(outcome.value)
        state, knobs = outcome.state, {**knobs, **outcome.value}
        changed |= not alike(state, begin[0]) or knobs != begin[1]
    assert seen
    assert changed


@every_part
def test_a_state_that_was_saved_goes_on_as_it_would_have(entry, stages, tmp_path):
    place = stages.of(entry)
    state, knobs = begun(place)
    for step in range(1, 6):
        whole = moved(place, state, step, knobs)
        assert alike(moved(place, restored(state, tmp_path), step, knobs), whole)
        state, knobs = whole.state, {**knobs, **whole.value}
