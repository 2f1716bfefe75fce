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


def moved(place, state, step):
    return place.call(None, state, step=step, metrics=Numbers(step))


@every_part
def test_knobs_are_options_of_the_method_and_numbers(entry, stages):
    place = stages.of(entry)
    known = {*place.algorithm.paths(), *OUTSIDE}
    state, seen, changed = place.part.init(), set(), False
    for step in range(1, 9):
        before = copied(state)
        outcome = moved(place, state, step)
        assert alike(state, before)
        assert set(outcome.value) <= set(place.part.moves) <= known
        assert all(math.isfinite(n) for value in outcome.value.values() for n in numbers(value))
        assert all(math.isfinite(value) for value in outcome.metrics.values())
        place.algorithm.with_knobs({k: v for k, v in outcome.value.items() if k not in OUTSIDE})
        seen |= set(outcome.value)
        state = outcome.state
        changed |= not alike(state, place.part.init())
    assert seen
    assert changed


@every_part
def test_a_state_that_was_saved_goes_on_as_it_would_have(entry, stages, tmp_path):
    place = stages.of(entry)
    state = place.part.init()
    for step in range(1, 6):
        whole = moved(place, state, step)
        assert alike(moved(place, restored(state, tmp_path), step), whole)
        state = whole.state
