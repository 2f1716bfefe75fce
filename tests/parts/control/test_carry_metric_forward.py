import json

import pytest

from strop.parts.control.carry_metric_forward import CarryMetricForward
from strop.support.errors import UserError


@pytest.mark.parametrize(
    ("keep", "expected"),
    [("mean", [0.8, 0.6, 0.5]), ("first", [0.8, 0.8, 0.8]), ("last", [0.8, 0.4, 0.3])],
)
def test_over_three_steps_with_a_restart(keep, expected):
    part = CarryMetricForward("terms.entropy.objective.anchor", "siren/entropy", keep)
    state, knobs, carried = part.init(), {part.path: -1.0}, []
    for entropy in (0.8, 0.4, 0.3):
        state = json.loads(json.dumps(state))
        told = {"siren/entropy": entropy, "entropy": 9.0}
        result = part(metrics=told, state=state, knobs=knobs)
        state, knobs = result.state, result.value
        assert result.metrics["entropy_control/carried"] == result.value[part.path]
        carried.append(result.value["terms.entropy.objective.anchor"])
    assert carried == pytest.approx(expected)


def test_a_number_of_the_option_stays_where_the_first_one_is_kept():
    part = CarryMetricForward(keep="first")
    state = {"sum": 0.8, "count": 1.0, "first": 0.8}  # of an older checkpoint
    for before in (part.init(), state):
        result = part(metrics={"entropy": 0.4}, state=before, knobs={part.path: 0.5})
        assert result.value == {part.path: 0.5}


def test_the_engines_entropy_is_needed_where_it_is_carried():
    assert CarryMetricForward().needs == {"entropy"}
    assert CarryMetricForward(metric="siren/entropy").needs == set()


def test_a_step_without_the_metric_and_an_unknown_word():
    part = CarryMetricForward()
    state = {"sum": 0.8, "count": 1.0}
    assert part(metrics={}, state=state, knobs={part.path: 0.8})[:2] == ({}, state)
    with pytest.raises(UserError, match="keep must be one of mean, first, last"):
        CarryMetricForward(keep="best")
