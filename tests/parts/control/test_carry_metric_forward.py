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
    state, carried = part.init(), []
    for entropy in (0.8, 0.4, 0.3):
        state = json.loads(json.dumps(state))
        result = part(metrics={"siren/entropy": entropy, "entropy": 9.0}, state=state)
        state = result.state
        assert result.metrics["entropy_control/carried"] == result.value[part.path]
        carried.append(result.value["terms.entropy.objective.anchor"])
    assert carried == pytest.approx(expected)


def test_the_engines_entropy_is_needed_where_it_is_carried():
    assert CarryMetricForward().needs == {"entropy"}
    assert CarryMetricForward(metric="siren/entropy").needs == set()


def test_a_step_without_the_metric_and_an_unknown_word():
    part = CarryMetricForward()
    state = {"sum": 0.8, "count": 1.0, "first": 0.8}
    assert part(metrics={}, state=state)[:2] == ({}, state)
    with pytest.raises(UserError, match="keep must be one of mean, first, last"):
        CarryMetricForward(keep="best")
