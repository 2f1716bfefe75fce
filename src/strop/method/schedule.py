"""Numbers that change over a run: `linear(0.6, 0.4)` may stand wherever a part takes a number.

A schedule is called with (step, num_steps), step counted from 1, and returns the number of that
step. Before every step all schedules of an algorithm are replaced by their numbers, so a part
never sees one.
"""

import math
from dataclasses import dataclass, fields

from strop.support.errors import UserError


@dataclass(frozen=True)
class Schedule:
    """Base of all schedules, which checks their numbers."""

    def __post_init__(self) -> None:
        for each in fields(self):
            value, whole = getattr(self, each.name), each.type in (int, "int")
            kinds = {kind: name for name, kind in SCHEDULES.items()}
            kind = kinds.get(type(self), type(self).__name__)  # a user's own has its class name
            name = f"{kind}'s {each.name}"
            if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
                raise UserError(f"{name} must be a number, it is {value!r}")
            if whole and (value != value // 1 or not 0 <= value < 2**53):
                raise UserError(f"{name} must be a whole number of steps, it is {value!r}")

    def __call__(self, step: int, num_steps: int) -> float:
        raise TypeError("use constant, linear, cosine or points")


@dataclass(frozen=True)
class Constant(Schedule):
    """The same value at every step."""

    value: float = 0.0

    def __call__(self, step: int, num_steps: int) -> float:
        return self.value


@dataclass(frozen=True)
class Linear(Schedule):
    """start + (end - start) * step / num_steps."""

    start: float = 0.0
    end: float = 0.0

    def __call__(self, step: int, num_steps: int) -> float:
        return _between(self.start, self.end, step / max(num_steps, 1))


@dataclass(frozen=True)
class Cosine(Schedule):
    """start + (end - start) * (1 - cos(pi * step / steps)) / 2, then end; steps 0: num_steps."""

    start: float = 0.0
    end: float = 0.0
    steps: int = 0

    def __call__(self, step: int, num_steps: int) -> float:
        last = self.steps or max(num_steps, 1)
        share = (1 - math.cos(math.pi * min(step, last) / last)) / 2
        return _between(self.start, self.end, share)


@dataclass(frozen=True)
class Warmup(Schedule):
    """peak * min(1, step / steps): rises over the first `steps` steps, then stays."""

    peak: float = 0.0
    steps: int = 1

    def __call__(self, step: int, num_steps: int) -> float:
        return self.peak * min(1.0, step / max(self.steps, 1))


@dataclass(frozen=True)
class CosineRestarts(Schedule):
    """`warmup` steps from first to start on a line, then start to end by a cosine each period."""

    # start + (end - start) * (1 - cos(pi * c / period)) / 2, c = (step - warmup - 1) mod period;
    # while step <= warmup: first + (start - first) * step / warmup
    start: float = 0.0
    end: float = 0.0
    period: int = 1
    warmup: int = 0
    first: float = 0.0

    def __call__(self, step: int, num_steps: int) -> float:
        if step <= self.warmup:
            return _between(self.first, self.start, step / self.warmup)
        place = (step - self.warmup - 1) % max(self.period, 1)
        share = (1 - math.cos(math.pi * place / max(self.period, 1))) / 2
        return _between(self.start, self.end, share)


@dataclass(frozen=True)
class Points(Schedule):
    """A curve drawn by hand: straight lines between ((share of the run, value), ...)."""

    # The value at x = step / num_steps is y_i + (y_{i+1} - y_i) (x - x_i) / (x_{i+1} - x_i). Before
    # the first point it is that point's value, after the last point that one's. Of two points with
    # the same x, the second applies from there on, so a curve may jump.
    points: tuple[tuple[float, float], ...] = ((0.0, 0.0),)

    def __post_init__(self) -> None:
        pairs = isinstance(self.points, tuple) and all(_is_pair(point) for point in self.points)
        if not pairs or not self.points:
            raise UserError(f"points takes (share, value) pairs, as in {EXAMPLE}: {self.points!r}")
        shares = [share for share, _ in self.points]
        if shares != sorted(shares) or not 0 <= shares[0] <= shares[-1] <= 1:
            raise UserError(f"points must rise from share 0 to 1, as in {EXAMPLE}: {self.points!r}")

    def __call__(self, step: int, num_steps: int) -> float:
        at = step / max(num_steps, 1)
        before = [point for point in self.points if point[0] <= at]
        after = [point for point in self.points if point[0] > at]
        if not before or not after:
            return float((before[-1] if before else after[0])[1])
        (left, low), (right, high) = before[-1], after[0]
        return float(_between(low, high, (at - left) / (right - left)))


@dataclass(frozen=True)
class Decay(Schedule):
    """end + (start - end) * exp(-rate * (step - 1) / half), half = num_steps // 2."""

    start: float = 0.0
    end: float = 0.0
    rate: float = 1.0

    def __call__(self, step: int, num_steps: int) -> float:
        return self.end + (self.start - self.end) * math.exp(
            -self.rate * (step - 1) / max(num_steps // 2, 1)
        )


@dataclass(frozen=True)
class Stairs(Schedule):
    """Goes from start to end in `num` equal stairs, one every `every` steps, after step `after`."""

    # start + (end - start) * min(num, ceil(max(step - after, 0) / every)) / num
    start: float = 0.0
    end: float = 0.0
    num: int = 1
    every: int = 1
    after: int = 0

    def __call__(self, step: int, num_steps: int) -> float:
        taken = math.ceil(max(step - self.after, 0) / max(self.every, 1))
        return _between(self.start, self.end, min(taken / max(self.num, 1), 1.0))


def before(schedule: Schedule, step: int) -> int:
    """The step at which a learning rate is looked up: one step back on a curve over the whole run.

    So the first step has the rate `start`, and the last step still trains where `end` is 0.
    """
    return step - isinstance(schedule, Linear | Cosine | Points)


def rate_at(rate: float | Schedule, step: int, num_steps: int) -> float:
    """The learning rate of a step."""
    return float(rate(before(rate, step), num_steps) if isinstance(rate, Schedule) else rate)


def extreme_steps(schedule: Schedule, num_steps: int, first: int = 1) -> set[int]:
    """The steps from `first` to the last at which the curve is lowest and highest."""
    if not isinstance(schedule, Points | CosineRestarts):  # others only rise, or only fall
        return {first, num_steps}
    numbers = [schedule(step, num_steps) for step in range(first, num_steps + 1)]
    return {first + numbers.index(end) for end in (min(numbers), max(numbers))}


def number_at(where: str, schedule: Schedule, step: int, num_steps: int) -> float:
    """The schedule's number at a step; UserError, naming the option `where`, if it has none."""
    try:
        number = schedule(step, num_steps)
    except OverflowError:
        number = math.nan
    if number != number:
        raise UserError(f"{where}: {schedule} has no number at step {step} of {num_steps}")
    return number


# The entropy target of a method: a number of nats, or a schedule of them.
EntropyTarget = float | Schedule
EXAMPLE = "points(((0, 0.6), (0.5, 0.3), (1, 0.3)))"


def _is_pair(point: object) -> bool:
    """Whether the point is a tuple of two finite numbers."""
    return (
        isinstance(point, tuple)
        and len(point) == 2
        and all(isinstance(n, int | float) and not isinstance(n, bool) for n in point)
        and all(math.isfinite(n) for n in point)
    )


def _between(start: float, end: float, share: float) -> float:
    """Interpolate: exactly start at share 0 and exactly end at share 1."""
    return start * (1 - share) + end * share


SCHEDULES: dict[str, type[Schedule]] = {
    "constant": Constant,
    "linear": Linear,
    "cosine": Cosine,
    "warmup": Warmup,
    "cosine_restarts": CosineRestarts,
    "points": Points,
    "decay": Decay,
    "stairs": Stairs,
}
