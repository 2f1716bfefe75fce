"""Schedules the steps whose rollouts a collector process has in flight, draw by draw.

    a step is drawn     when the weights of step - 1 - max_staleness have arrived
    a draw is started   in order, whenever a quarter of the rollouts in flight has ended; never are
                        more in flight than the draws of the step request
    a group has ended   when the strategy of its draw has; it is sent at once and waits for its step
    a step is whole     when all its groups have ended; steps are finished in order, and while one
                        step is graded the others continue

So the engine never idles because of a slow group, no group is staler than the bound when its step
trains on it, and a step trains on all prompts that it drew, including slow ones. Strategies whose
draws depend on each other (not `by_draw`) run one whole step at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from strop.batch.batch import Batch
from strop.engines.base import Ends
from strop.method.algorithm import Algorithm
from strop.method.chains import Chains, generators
from strop.method.part import Draw
from strop.parts.rollout.base import Crowd, RolledOut
from strop.training.collect.here import Collector, collector_of
from strop.training.learner.step_metrics import Clock
from strop.training.world import World

# Fraction of a step's rollouts: no draw starts while more are in flight, so that many prompts are
# prefilled together.
FULL = 0.75
DRAW_NUMBERS = 10_000  # curation rounds of a step have lower numbers than its single draws
Plain = dict[str, Any]  # of numbers, texts and tensors only, for messages and checkpoints


@dataclass
class Step:
    """A step whose rollouts are in flight. left: indices of the pieces that have not started."""

    number: int
    algorithm: Algorithm
    collector: Collector
    draws: tuple[Draw, ...]
    pieces: list[tuple[Draw, ...]]
    left: list[int]
    logged: dict[str, dict[int, Any]] = field(default_factory=dict)
    ended: dict[int, RolledOut] = field(default_factory=dict)
    requests: Ends = field(default_factory=Ends)

    @property
    def whole(self) -> bool:
        """Whether all its rollouts have ended."""
        return len(self.ended) == len(self.pieces)

    @property
    def size(self) -> int:
        """The number of rollouts that its draws request."""
        return _size(self.draws)

    def take(self, place: int, rolled: RolledOut, requests: Ends) -> None:
        """Keep the rollouts of a piece that has ended."""
        self.ended[place] = rolled
        failures = (*self.requests.failures, *requests.failures)
        self.requests = Ends(self.requests.num_well + requests.num_well, failures)


class InFlight:
    """Draws, starts and finishes steps on the engine of a world.

    state: of the collecting parts, read and written in place. by_draw: whether draws start and end
    one by one. on_group: called with each finished group and its step. drawn, held: draws and
    finished groups from before a restart, both by step, in plain form.
    """

    def __init__(
        self,
        world: World,
        algorithm: Algorithm,
        state: dict[str, Any],
        by_draw: bool,
        on_group: Callable[[int, Plain], None],
        drawn: Mapping[int, Sequence[Any]],
        held: Mapping[int, Sequence[Plain]],
    ) -> None:
        self.world, self.algorithm, self.state = world, algorithm, state
        self.by_draw, self.on_group = by_draw, on_group
        self.before = {step: tuple(Draw(*each) for each in draws) for step, draws in drawn.items()}
        self.held = dict(held)
        self.steps: list[Step] = []
        self.crowd = Crowd(world.engine, world.services)
        self.sizes: dict[tuple[int, int], int] = {}  # number of rollouts of each piece in flight

    def has_room(self) -> bool:
        """Returns whether the engine has room for draws of another step."""
        if not self.steps or not self.by_draw:
            return not self.steps
        return not self.steps[-1].left and self._running() <= FULL * self.steps[-1].size

    def begin(self) -> None:
        """Start the draws for which there is room."""
        step = self.steps[-1] if self.steps else None
        if step is None or self._running() > FULL * step.size:
            return
        while step.left:
            size = _size(step.pieces[step.left[0]])
            if self._running() and self._running() + size > step.size:
                return
            self._begin(step, step.left.pop(0))

    def draw(self, number: int) -> None:
        """Run the samplers of a step; `begin` starts its draws as room becomes available."""
        world = self.world
        rng_of = generators(world.seed, number)
        torch.manual_seed(rng_of("global", 0).initial_seed())
        algorithm = self.algorithm.at_step(number, world.num_steps)
        chains = Chains(rng_of, world.services, self.state)
        logged: dict[str, dict[int, Any]] = {}
        self._switch_to(number, algorithm, logged)
        collector = collector_of(world, algorithm, number, chains, Clock())
        if number in self.before:
            draws = self.before.pop(number)
            collector.drawn.update({draw.uid: draw.draw + 1 for draw in draws})
        else:
            draws = collector.draw(algorithm)
        pieces: list[tuple[Draw, ...]] = [draws]
        if self.by_draw:
            pieces = [(draw,) for draw in draws]
        left = list(range(len(pieces)))
        step = Step(number, algorithm, collector, draws, pieces, left, logged)
        self.steps.append(step)
        self._take_held(step)

    def tick(self) -> None:
        """Let the engine sample a token, or a few, of every rollout in flight."""
        for (number, place), rolled, requests in self.crowd.turn():
            del self.sizes[number, place]
            step = next(each for each in self.steps if each.number == number)
            step.take(place, rolled, requests)
            if self.by_draw:
                own = _pop_logged(self.world.services.log.logged, rolled.batch)
                _merge(own, into=step.logged)
                self.on_group(number, _plain(step.pieces[place][0], rolled, requests, own))

    def finish(self) -> tuple[Step, Batch]:
        """Remove the first step, which is whole, and return it with its curated batch."""
        step = self.steps[0]
        step.requests.check()
        if self.by_draw:  # draws of other steps have advanced the generator
            torch.manual_seed(generators(self.world.seed, step.number)("global", 1).initial_seed())
        self._switch_to(step.number, step.algorithm, step.logged)
        rolled = [step.ended[place] for place in range(len(step.pieces))]
        batch = step.collector.finish(step.algorithm, step.draws, rolled)
        self.steps.pop(0)
        return step, batch

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Lets the other steps continue inside `finish`, while the first step is graded."""
        first, last = self.steps[0], self.steps[-1]
        generator = torch.get_rng_state()
        self._switch_to(last.number, last.algorithm, last.logged)
        try:
            yield
        finally:
            self._switch_to(first.number, first.algorithm, first.logged)
            torch.set_rng_state(generator)

    def ahead(self) -> dict[int, tuple[Any, ...]]:
        """Returns the draws of the steps in flight, in plain form."""
        return {
            step.number: tuple((*draw[:2], dict(draw.columns), *draw[3:]) for draw in step.draws)
            for step in self.steps
        }

    def close(self) -> None:
        """End all rollouts in flight."""
        self.crowd.close()

    def _running(self) -> int:
        """Returns the number of rollouts in flight, without ended rollouts of unfinished groups."""
        return sum(self.crowd.left(key, size) for key, size in self.sizes.items())

    def _begin(self, step: Step, place: int) -> None:
        piece = step.pieces[place]
        number = (place + 1) * DRAW_NUMBERS if self.by_draw else 0
        self.crowd.begin(
            (step.number, place), step.collector.strategy(step.algorithm, piece, number)
        )
        self.sizes[step.number, place] = _size(piece)

    def _switch_to(self, number: int, algorithm: Algorithm, logged: dict[str, Any]) -> None:
        """Set the step that rewards and logs belong to from now on."""
        services = self.world.services
        services.grading.step = number
        services.log.turn_to(number, logged)
        self.world.act(algorithm)

    def _take_held(self, step: Step) -> None:
        """Reuse the groups that had ended before this process started."""
        held = {tuple(group["draw"]): group for group in self.held.pop(step.number, ())}
        for place, draw in enumerate(step.draws if self.by_draw else ()):
            group = held.get((draw.uid, draw.draw, draw.num_rollouts))
            if group is not None:
                rolled = RolledOut(
                    Batch(group["columns"]), None, group["thrown_away"], group["metrics"]
                )
                step.take(place, rolled, Ends(group["num_well"], tuple(group["failures"])))
                _merge(group["logged"], into=step.logged)
                step.left.remove(place)


def _size(draws: Sequence[Draw]) -> int:
    return sum(draw.num_rollouts for draw in draws)


def _plain(draw: Draw, rolled: RolledOut, requests: Ends, logged: Plain) -> Plain:
    """Returns a finished group with its draw, in plain form."""
    return {
        "draw": (draw.uid, draw.draw, draw.num_rollouts),
        "columns": dict(rolled.batch.columns),
        "thrown_away": rolled.num_discarded,
        "metrics": as_plain(rolled.metrics),
        "num_well": requests.num_well,
        "failures": requests.failures,
        "logged": as_plain(logged),
    }


def as_plain(value: Any) -> Any:
    """The value in types that any checkpoint can be read with: parsed actions become text, numbers
    of numpy become Python's, arrays become lists, and anything else becomes its text.
    """
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, Mapping):
        return {as_plain(key): as_plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [as_plain(each) for each in value]
    if hasattr(value, "tolist"):
        return as_plain(value.tolist())
    return str(value)


def _pop_logged(logged: Plain, batch: Batch) -> Plain:
    """Remove the log entries of a batch's rollouts from the table and return them."""
    own = set(batch["rollout_uid_B"].tolist())
    return {
        name: {uid: values.pop(uid) for uid in own & values.keys()}
        for name, values in logged.items()
    }


def _merge(columns: Plain, into: Plain) -> None:
    for name, values in columns.items():
        into.setdefault(name, {}).update(values)
