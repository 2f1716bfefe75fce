import pytest

from strop.parts.control.accumulate_entropy_error import AccumulateEntropyError

PATH = "advantage.weigh_signs_by_entropy_error.integral"


def test_worked_example():
    # target .5, H .8, .8, .3: the integral after each is .003, .006, .004
    part = AccumulateEntropyError()
    knobs, found = {PATH: 0.0}, []
    for entropy in (0.8, 0.8, 0.3):
        result = part(metrics={"entropy_control/error": entropy - 0.5}, knobs=knobs)
        knobs = result.value
        found.append(knobs[PATH])
        assert result.metrics == {"entropy_control/integral": found[-1]}
    assert found == pytest.approx([0.003, 0.006, 0.004])


def test_equals_a_constant_without_gain():
    part = AccumulateEntropyError(gain=0.0)
    assert part(metrics={"entropy_control/error": 3.0}, knobs={PATH: 0.2}).value == {PATH: 0.2}


def test_a_step_without_the_metric_changes_nothing():
    part, knobs = (
        AccumulateEntropyError(path="advantage.mine.integral"),
        {"advantage.mine.integral": 0.1},
    )
    assert part(metrics={"loss": 1.0}, knobs=knobs).value == {}
    moved = part(metrics={"entropy_control/error": -1.0}, knobs=knobs)
    assert moved.value == {"advantage.mine.integral": pytest.approx(0.09)}
