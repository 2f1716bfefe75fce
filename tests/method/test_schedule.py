"""Numbers that change over a run."""

import dataclasses
import math

import pytest
import torch
from transformers import get_linear_schedule_with_warmup

from strop.method import notation, reading, writing
from strop.method.schedule import (
    SCHEDULES,
    Constant,
    Cosine,
    CosineRestarts,
    Decay,
    Linear,
    Points,
    Schedule,
    Stairs,
    Warmup,
    extreme_steps,
    rate_at,
)
from strop.recipes.grpo import grpo
from strop.support.errors import UserError
from strop.training.settings import config

DRAWN = Points(((0.0, 0.6), (0.5, 0.3), (1.0, 0.3)))


@pytest.mark.parametrize(
    ("schedule", "step", "expected"),
    [
        (Constant(0.3), 7, 0.3),
        # 0.6 + (0.1 - 0.6) * 25 / 100
        (Linear(0.6, 0.1), 25, 0.475),
        (Linear(0.6, 0.1), 100, 0.1),
        # 0.6 - 0.5 * (1 - cos(pi / 4)) / 2
        (Cosine(0.6, 0.1), 25, 0.6 - 0.25 * (1 - math.sqrt(0.5))),
        (Cosine(0.6, 0.1), 50, 0.35),
        (Cosine(0.6, 0.1), 100, 0.1),
        # over 200 steps of its own, whatever the run's: (cos(pi / 4) + 1) / 2, then 0
        (Cosine(1.0, 0.0, 200), 50, 0.8535533905932737),
        (Cosine(0.0, 1.0, 200), 50, 0.1464466094067263),
        (Cosine(1.0, 0.0, 200), 200, 0.0),
        (Cosine(1.0, 0.0, 40), 70, 0.0),
        (Warmup(2e-6, 10), 5, 1e-6),
        (Warmup(2e-6, 10), 11, 2e-6),
        # 1 - 0.6 * 6 / 30
        (Stairs(1.0, 0.5, 5, 10, 50), 50, 1.0),
        (Stairs(1.0, 0.5, 5, 10, 50), 51, 0.9),
        (Stairs(1.0, 0.5, 5, 10, 50), 60, 0.9),
        (Stairs(1.0, 0.5, 5, 10, 50), 61, 0.8),
        (Stairs(1.0, 0.5, 5, 10, 50), 120, 0.5),
        (Stairs(2.0, 3.0), 1, 3.0),
        (CosineRestarts(0.4, 1.0, 40, 30, 1.0), 6, 0.88),
        (CosineRestarts(0.4, 1.0, 40, 30, 1.0), 30, 0.4),
        (CosineRestarts(0.4, 1.0, 40, 30, 1.0), 31, 0.4),
        # 0.4 + 0.6 * (1 - cos(pi / 4)) / 2, in the second cycle as in the first
        (CosineRestarts(0.4, 1.0, 40, 30, 1.0), 41, 0.4 + 0.3 * (1 - math.sqrt(0.5))),
        (CosineRestarts(0.4, 1.0, 40, 30, 1.0), 81, 0.4 + 0.3 * (1 - math.sqrt(0.5))),
        (CosineRestarts(0.4, 1.0, 40, 30, 1.0), 71, 0.4),
        # 0.6 - 0.3 * 25 / 50
        (DRAWN, 25, 0.45),
        (DRAWN, 50, 0.3),
        (DRAWN, 100, 0.3),
        # before the first point and after the last one
        (Points(((0.2, 0.6), (0.4, 0.1))), 10, 0.6),
        (Points(((0.2, 0.6), (0.4, 0.1))), 25, 0.475),
        (Points(((0.2, 0.6), (0.4, 0.1))), 90, 0.1),
        # of two points at one place the second holds from there on
        (Points(((0.0, 0.6), (0.5, 0.6), (0.5, 0.2))), 49, 0.6),
        (Points(((0.0, 0.6), (0.5, 0.6), (0.5, 0.2))), 50, 0.2),
        # 1 + exp(-3 * 30 / 50)
        (Decay(2.0, 1.0, 3.0), 31, 1 + math.exp(-1.8)),
        (Decay(2.0, 1.0, 3.0), 1, 2.0),
    ],
)
def test_values(schedule, step, expected):
    assert schedule(step, 100) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("kind", SCHEDULES.values())
def test_every_schedule_is_a_frozen_value(kind):
    assert issubclass(kind, Schedule)
    assert kind() == kind()
    assert hash(kind()) == hash(kind())
    assert isinstance(kind()(1, 0), float)  # a run of no steps divides by nothing
    with pytest.raises(AttributeError):
        kind().start = 2.0


def test_whole_options_take_the_nearest_number_and_all_of_a_curve_is_checked():
    rises = grpo(num_rollouts=Linear(4, 16)).at_step(1, 10)
    assert rises.sampling[0].part.num_rollouts == 5  # of 5.2
    stairs = grpo(num_rollouts=Stairs(4, 8, 3, 5, 2))
    assert [stairs.at_step(n, 20).sampling[0].part.num_rollouts for n in (2, 3, 8, 13)] == [
        4, 5, 7, 8
    ]  # fmt: skip
    dips = grpo(clip_high=Points(((0, 0.2), (0.5, -0.1), (1, 0.2))))
    with pytest.raises(UserError, match="clip_high must be at least 0"):
        dips.check_schedules(10)
    assert extreme_steps(CosineRestarts(0.2, -0.1, 4), 10) == {1, 4}
    sections = {
        "recipe": "grpo",
        "training": {"lr": "points(((0, 1e-3), (0.5, -1e-3), (1, 1e-3)))"},
    }
    with pytest.raises(UserError, match=r"training\.lr"):
        config.make(sections).build()


def test_a_kind_of_ones_own_names_itself():
    @dataclasses.dataclass(frozen=True)
    class Saw(Schedule):
        high: float = 1.0

        def __call__(self, step, num_steps):
            return self.high * (step % 2)

    assert Saw(2.0)(3, 9) == 2.0
    with pytest.raises(UserError, match="Saw's high must be a number"):
        Saw("a")


def test_the_base_is_no_schedule():
    with pytest.raises(TypeError, match="constant, linear"):
        Schedule()(1, 2)


@pytest.mark.parametrize(
    "points",
    [(), ((0.5, 0.3), (0.2, 0.1)), ((0.0, 0.3), (1.5, 0.1)), (0.0, 0.3), ((0.0, math.nan),), 0.3],
)
def test_points_that_are_no_curve_are_refused(points):
    with pytest.raises(UserError, match="as in points"):
        Points(points)


@pytest.mark.parametrize("schedule", [DRAWN, Decay(2.0, 1.0, 3.0), Points(((0.5, 1.0),))])
def test_one_line_notation(schedule):
    text = writing.value_text(schedule)
    assert reading.value(text) == schedule
    band = notation.recipe(f"entrocraft(h_low={text})")
    assert reading.resolve(band, "selection.h_low") in band.paths()
    assert reading.value("points(((0, .6), (.5, .3), (1, .3)))") == DRAWN
    with pytest.raises(UserError, match="takes numbers"):
        reading.value("points(((0, 'x'),))")


@pytest.mark.parametrize("schedule", [Linear(2e-4, 0.0), Points(((0.0, 2e-4), (1.0, 0.0)))])
def test_a_rate_that_falls_to_zero_is_that_of_transformers(schedule):
    weight = torch.nn.Parameter(torch.zeros(1))
    optimiser = torch.optim.SGD([weight], lr=2e-4)
    theirs = get_linear_schedule_with_warmup(optimiser, 0, 8)
    for step in range(1, 9):
        assert rate_at(schedule, step, 8) == pytest.approx(theirs.get_last_lr()[0])
        assert rate_at(schedule, step, 8) > 0
        optimiser.step()
        theirs.step()


def test_a_rate_of_another_curve():
    # half a cosine over 4 steps, from where the step begins: (1 + cos(pi / 4)) / 2 at the second
    found = [rate_at(Cosine(1.0, 0.0), step, 4) for step in range(1, 5)]
    assert found == pytest.approx([1, 0.8535534, 0.5, 0.1464466])
    # steps are counted as they are: no step of the warmup is one without a rate
    assert [rate_at(Warmup(1.0, 4), step, 8) for step in (1, 4, 8)] == [0.25, 1, 1]
    assert rate_at(Decay(1.0, 0.0), 1, 8) == 1
    assert rate_at(3e-4, 5, 8) == 3e-4
