"""Numbers that change over a run: `linear(0.6, 0.4)` stands wherever a part takes a number.

A schedule is called with (step, num_steps), step counted from 1, and returns the number of that
step. Before every step all schedules of an algorithm are replaced by their numbers, so a part
never sees one.
"""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Schedule:
    """Base of all schedules; only its type matters."""

    def __call__(self, step: int, num_steps: int) -> float:
        raise TypeError("use constant, linear or cosine")


@dataclass(frozen=True)
class Constant(Schedule):
    """value at every step."""

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
    """start + (end - start) * (1 - cos(pi * step / num_steps)) / 2."""

    start: float = 0.0
    end: float = 0.0

    def __call__(self, step: int, num_steps: int) -> float:
        share = (1 - math.cos(math.pi * step / max(num_steps, 1))) / 2
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


def _between(start: float, end: float, share: float) -> float:
    """start at share 0 and end at share 1, both exactly."""
    return start * (1 - share) + end * share


SCHEDULES: dict[str, type[Schedule]] = {
    "constant": Constant,
    "linear": Linear,
    "cosine": Cosine,
    "warmup": Warmup,
    "cosine_restarts": CosineRestarts,
}
