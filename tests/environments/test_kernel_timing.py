"""The environment in which a model estimates the times of kernels, and its report on each."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strop.environments.base import EnvironmentSource, Observation
from strop.environments.built_in.kernel_timing import KernelTiming
from strop.environments.episodes import Episodes
from strop.support.errors import UserError


def program(costs=(5, 7, 9), best=2, **options):
    """An episode of a program of one's own; the library takes 3 * 6 + 21 = 39."""
    environment = KernelTiming(style="compact", **options)
    environment.reset(0)
    environment.costs, environment.best = costs, best
    return environment


@pytest.mark.parametrize(
    ("action", "correct", "time", "profiled"),
    [
        ("1*3", 1, 6 + 13, 1.0),  # 21 - 2 * 4 moved, the fitting tile
        ("1+2", 1, (6 + 8 * 2) + 15, 22 / 37),  # one tile off: twice the time to move 12 - 4
        ("2*2", 1, 13 + 26, 13 / 39),  # alone it is as fast as the library's
        ("3/1", 0, 6 + 13 * 2, 1.0),  # the wrong order
    ],
)
def test_worked_example(action, correct, time, profiled):
    answer = program().step(action)
    assert answer.valid
    assert answer.measures == pytest.approx({
        "correct": correct, "speedup": 39 / time, "profiled": profiled, "decoy": 0, "time": time,
    })  # fmt: skip
    assert answer.reward == float(correct and 39 / time >= 1.5)
    assert answer.text == f":{time},39="


def test_a_decoy_is_right_and_earns_nothing():
    answer = program(target=0.0).step("0*3")
    assert (answer.reward, answer.valid, answer.text) == (0.0, True, ":39,39=")
    assert answer.measures["decoy"] == answer.measures["correct"] == answer.measures["speedup"] == 1


@pytest.mark.parametrize("action", ["", "13", "1*4", "4*4", "1*0", "a", "1 * 3"])
def test_what_is_no_kernel_does_not_run(action):
    answer = program().step(action)
    assert (answer.valid, answer.reward, answer.text) == (False, 0.0, ":=")
    assert answer.measures == {"correct": 0.0, "decoy": 0.0}


def test_in_words():
    environment = KernelTiming()
    text = environment.reset(7).text
    assert f"costs {environment.costs[0]},{environment.costs[1]}," in text
    environment.costs, environment.best = (5, 7, 9), 2
    answer = environment.step("I would FUSE 1 to 3 tile 256.")
    assert answer.text == (
        "Right result. 19 against 39 of the library: speedup 2.05, 100% of the time in your "
        "kernel.\n"
    )
    assert not environment.step("fuse 1 to 2 tile 16, or fuse 1 to 3 tile 16").valid
    assert environment.step("fuse 1 to 2 tile 16").done


@given(seed=st.integers(0, 10**6), length=st.integers(2, 9))
def test_nothing_is_faster_than_the_whole_chain_with_the_fitting_tile(seed, length):
    environment = KernelTiming(length=length, style="compact")
    environment.reset(seed)
    best = environment.profile(1, environment.best, length)
    every = [environment.profile(first, tile, last) for first in range(length + 1)
             for tile in range(4) for last in range(1, length + 1)]  # fmt: skip
    assert best["speedup"] == max(found["speedup"] for found in every)
    assert all(0 <= found["profiled"] <= 1 for found in every)
    again = KernelTiming(length=length, style="compact")
    assert again.reset(seed) == environment.reset(seed)


class Unmeasured(KernelTiming):
    def step(self, action):
        return Observation("", measures={"speedup": float("nan")})


def test_measures_are_finite():
    source = EnvironmentSource(f"{__file__}:Unmeasured")
    episodes = Episodes(source, [1])
    episodes.reset()
    (shown,) = episodes.step([0], ["1*3"])
    assert "gave the measures {'speedup': nan}" in shown.why


@pytest.mark.parametrize("options", [{"length": 1}, {"max_turns": 0}, {"target": -1}])
def test_refuses_options(options):
    with pytest.raises(UserError, match="kernel_timing"):
        KernelTiming(**options)
