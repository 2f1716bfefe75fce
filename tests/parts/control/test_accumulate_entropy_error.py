import json

import pytest

from strop.parts.control.accumulate_entropy_error import AccumulateEntropyError

PATH = "advantage.weigh_signs_by_entropy_error.integral"


def test_worked_example():
    # target .5, H .8, .8, .3: the integral after each is .003, .006, .004
    part = AccumulateEntropyError()
    state, found = part.init(), []
    for number, entropy in enumerate((0.8, 0.8, 0.3)):
        if number == 2:  # a restart in between
            state = json.loads(json.dumps(state))
        result = part(metrics={"entropy_control/error": entropy - 0.5}, state=state)
        state = result.state
        found.append(result.value[PATH])
        assert result.metrics["entropy_control/integral"] == state["integral"] == found[-1]
    assert found == pytest.approx([0.003, 0.006, 0.004])


def test_equals_a_constant_without_gain():
    part = AccumulateEntropyError(gain=0.0, start=0.2)
    result = part(metrics={"entropy_control/error": 3.0}, state=part.init())
    assert result.value == {PATH: 0.2}


def test_a_step_without_the_metric_changes_nothing():
    part = AccumulateEntropyError(path="advantage.mine.integral", start=0.1)
    nothing = part(metrics={"loss": 1.0}, state=part.init())
    assert (nothing.value, nothing.state) == ({}, {"integral": 0.1})
    moved = part(metrics={"entropy_control/error": -1.0}, state=part.init())
    assert moved.value == {"advantage.mine.integral": pytest.approx(0.09)}
