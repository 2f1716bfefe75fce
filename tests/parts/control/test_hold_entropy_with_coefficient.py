import json

import pytest

from strop.method.schedule import Points
from strop.parts.control.hold_entropy_with_coefficient import HoldEntropyWithCoefficient
from strop.recipes.adaptive_entropy_coef import adaptive_entropy_coef
from strop.support.errors import UserError

PATH = "terms.entropy.coef"


def test_worked_example():
    # start .01, floor .2: applied 0, 0, .01, .015, 0 and c after each .005 .01 .015 .01 .015
    part = HoldEntropyWithCoefficient(start=0.01)
    state, applied, carried = part.init(), [0.0], []
    for number, entropy in enumerate((0.3, 0.19, 0.18, 0.25, 0.1)):
        if number == 3:  # a restart in between
            state = json.loads(json.dumps(state))
        result = part(metrics={"entropy": entropy}, state=state)
        state = result.state
        applied.append(result.value[PATH])
        carried.append(state["coef"])
        assert result.metrics["entropy_control/coef"] == state["coef"]
        assert result.metrics["entropy_control/applied_coef"] == result.value[PATH]
    assert applied == pytest.approx([0, 0, 0.01, 0.015, 0, 0.015])
    assert carried == pytest.approx([0.005, 0.01, 0.015, 0.01, 0.015])


def test_equals_a_constant_bonus_without_steps_and_with_an_infinite_floor():
    part = HoldEntropyWithCoefficient(start=0.03, delta=0.0, target=1e9)
    state = part.init()
    for entropy in (0.1, 5.0):
        result = part(metrics={"entropy": entropy}, state=state)
        state = result.state
        assert result.value == {PATH: 0.03}


def test_edges():
    part = HoldEntropyWithCoefficient(delta=0.4, bounds=(-0.1, 0.5), path="terms.bonus.coef")
    up = part(metrics={"entropy": 0.2}, state={"coef": 0.3})  # at the floor counts as scarce
    assert up.value == {"terms.bonus.coef": 0.5}
    assert part(metrics={"entropy": 0.3}, state={"coef": 0.1}).state == {"coef": -0.1}
    nothing = part(metrics={"loss": 1.0}, state={"coef": 0.3})  # a step without rollouts
    assert (nothing.value, nothing.state) == ({}, {"coef": 0.3})
    fixed = HoldEntropyWithCoefficient(start=0.1, bounds=(0.1, 0.1))
    assert fixed(metrics={"entropy": 0.0}, state=fixed.init()).state == {"coef": 0.1}
    for bounds in ((1.0, 0.0), (0.0, 0.5, 1.0)):
        with pytest.raises(UserError, match="bounds"):
            HoldEntropyWithCoefficient(bounds=bounds)
    with pytest.raises(UserError, match="delta"):
        HoldEntropyWithCoefficient(delta=-0.1)
    for field in ("start", "target"):
        with pytest.raises(UserError, match=field):
            HoldEntropyWithCoefficient(**{field: "high"})


def test_the_floor_may_be_drawn_over_the_run():
    curve = Points(((0.0, 0.6), (0.5, 0.3), (1.0, 0.3)))
    algorithm = adaptive_entropy_coef(target=curve)
    state = HoldEntropyWithCoefficient().init()
    applied = []
    for step in (1, 25, 50, 75):  # floors 0.594, 0.45, 0.3 and 0.3 around an entropy of 0.4
        (control,) = algorithm.at_step(step, 100).control
        result = control.part(metrics={"entropy": 0.4}, state=state)
        state = result.state
        applied.append(result.value[PATH])
        assert result.metrics["entropy_control/target"] == pytest.approx(curve(step, 100))
    assert applied == pytest.approx([0.005, 0.01, 0.0, 0.0])
    assert algorithm.paths()["control.hold_entropy_with_coefficient.target"] == curve
