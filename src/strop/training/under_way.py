"""The steps whose rollouts a collecting process has under way, draw by draw.

    a step is drawn     when the weights are there that begin it: of step - 1 - max_staleness
    a draw is begun     in order, as far as no more rollouts are under way than the step's draws ask
                        for, whenever a quarter of them has ended
    a group has ended   when its draw's strategy has: it is told at once, and waits for its step
    a step is whole     when all its groups have ended; steps are finished in order, and while one
                        is graded the others go on

So the engine is never without work for the sake of a slow group, no group is older than the bound
when its step trains on it, and a step trains on the prompts that it drew, slow ones too. Strategies
whose draws depend on each other (not `by_draw`) are run whole, one step at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from strop.algorithm import Algorithm
from strop.batch import Batch
from strop.chains import Chains
from strop.part import Draw
from strop.rollout.drive import Crowd, Heard, RolledOut
from strop.training.clock import Clock
from strop.training.collect import Collector, collector_of
from strop.training.seeds import generators
from strop.training.world import World

# Of a step's rollouts: while more are under way none begin, so that many prompts are read at once.
FULL = 0.75
APART = 10_000  # numbers of a step's sampling rounds; a draw's own are beyond
Plain = dict[str, Any]  # of numbers, texts and tensors alone, for letters and checkpoints


@dataclass
class Step:
    """A step whose rollouts are under way. left: places of the pieces that are not begun."""

    number: int
    algorithm: Algorithm
    collector: Collector
    draws: tuple[Draw, ...]
    pieces: list[tuple[Draw, ...]]
    left: list[int]
    logged: dict[str, dict[int, Any]] = field(default_factory=dict)
    ended: dict[int, RolledOut] = field(default_factory=dict)
    heard: Heard = field(default_factory=Heard)

    @property
    def whole(self) -> bool:
        """Whether all its rollouts are there."""
        return len(self.ended) == len(self.pieces)

    @property
    def size(self) -> int:
        """Rollouts that its draws ask for."""
        return _size(self.draws)

    def take(self, place: int, rolled: RolledOut, heard: Heard) -> None:
        """Keep what a piece came to."""
        self.ended[place] = rolled
        failures = (*self.heard.failures, *heard.failures)
        self.heard = Heard(self.heard.num_well + heard.num_well, failures)


class UnderWay:
    """Draws, begins, and finishes steps on the engine of a world.

    state: of the collecting parts, read and written in place. by_draw: whether draws begin and end
    one by one. tell: is given each group that has ended, with its step. drawn: what steps have
    drawn before, held: groups that had ended then, both by step, in their plain form.
    """

    def __init__(
        self,
        world: World,
        algorithm: Algorithm,
        state: dict[str, Any],
        by_draw: bool,
        tell: Callable[[int, Plain], None],
        drawn: Mapping[int, Sequence[Any]],
        held: Mapping[int, Sequence[Plain]],
    ) -> None:
        self.world, self.algorithm, self.state = world, algorithm, state
        self.by_draw, self.tell = by_draw, tell
        self.before = {step: tuple(Draw(*each) for each in draws) for step, draws in drawn.items()}
        self.held = dict(held)
        self.steps: list[Step] = []
        self.crowd = Crowd(world.engine, world.services)
        self.sizes: dict[tuple[int, int], int] = {}  # rollouts of what is under way

    def has_room(self) -> bool:
        """Whether the engine has room for draws of another step."""
        if not self.steps or not self.by_draw:
            return not self.steps
        return not self.steps[-1].left and self._running() <= FULL * self.steps[-1].size

    def begin(self) -> None:
        """Begin the draws for which there is room."""
        step = self.steps[-1] if self.steps else None
        if step is None or self._running() > FULL * step.size:
            return
        while step.left:
            size = _size(step.pieces[step.left[0]])
            if self._running() and self._running() + size > step.size:
                return
            self._begin(step, step.left.pop(0))

    def draw(self, number: int) -> None:
        """Run the samplers of a step; `begin` begins its draws by and by."""
        world = self.world
        rng_of = generators(world.seed, number)
        torch.manual_seed(rng_of("global", 0).initial_seed())
        algorithm = self.algorithm.at_step(number, world.num_steps)
        chains = Chains(rng_of, world.services, self.state)
        logged: dict[str, dict[int, Any]] = {}
        self._turn_to(number, algorithm, logged)
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

    def turn(self) -> None:
        """Let the engine draw a token, or a few, of all that is under way."""
        for (number, place), rolled, heard in self.crowd.turn():
            del self.sizes[number, place]
            step = next(each for each in self.steps if each.number == number)
            step.take(place, rolled, heard)
            if self.by_draw:
                own = _taken(self.world.services.log.logged, rolled.batch)
                _merge(own, into=step.logged)
                self.tell(number, _plain(step.pieces[place][0], rolled, heard, own))

    def finish(self) -> tuple[Step, Batch]:
        """The first step, which is whole, and its curated batch."""
        step = self.steps[0]
        step.heard.check()
        if self.by_draw:  # what is drawn beside it has moved the generator
            torch.manual_seed(generators(self.world.seed, step.number)("global", 1).initial_seed())
        self._turn_to(step.number, step.algorithm, step.logged)
        rolled = [step.ended[place] for place in range(len(step.pieces))]
        batch = step.collector.finish(step.algorithm, step.draws, rolled)
        self.steps.pop(0)
        return step, batch

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Inside `finish`, while the first step is graded: the others go on."""
        first, last = self.steps[0], self.steps[-1]
        generator = torch.get_rng_state()
        self._turn_to(last.number, last.algorithm, last.logged)
        try:
            yield
        finally:
            self._turn_to(first.number, first.algorithm, first.logged)
            torch.set_rng_state(generator)

    def ahead(self) -> dict[int, tuple[Any, ...]]:
        """What the steps under way have drawn, in plain form."""
        return {
            step.number: tuple((*draw[:2], dict(draw.columns), *draw[3:]) for draw in step.draws)
            for step in self.steps
        }

    def close(self) -> None:
        """End all that is under way."""
        self.crowd.close()

    def _running(self) -> int:
        """Rollouts that have not ended; those of a group that have make room before the others."""
        return sum(self.crowd.left(key, size) for key, size in self.sizes.items())

    def _begin(self, step: Step, place: int) -> None:
        piece = step.pieces[place]
        number = (place + 1) * APART if self.by_draw else 0
        self.crowd.begin(
            (step.number, place), step.collector.strategy(step.algorithm, piece, number)
        )
        self.sizes[step.number, place] = _size(piece)

    def _turn_to(self, number: int, algorithm: Algorithm, logged: dict[str, Any]) -> None:
        """Work for a step from now on."""
        services = self.world.services
        services.grading.step = number
        services.log.turn_to(number, logged)
        self.world.act(algorithm)

    def _take_held(self, step: Step) -> None:
        """What had ended of a step before this process was begun is not drawn again."""
        held = {tuple(group["draw"]): group for group in self.held.pop(step.number, ())}
        for place, draw in enumerate(step.draws if self.by_draw else ()):
            group = held.get((draw.uid, draw.draw, draw.num_rollouts))
            if group is not None:
                rolled = RolledOut(
                    Batch(group["columns"]), None, group["thrown_away"], group["metrics"]
                )
                step.take(place, rolled, Heard(group["num_well"], tuple(group["failures"])))
                _merge(group["logged"], into=step.logged)
                step.left.remove(place)


def _size(draws: Sequence[Draw]) -> int:
    return sum(draw.num_rollouts for draw in draws)


def _plain(draw: Draw, rolled: RolledOut, heard: Heard, logged: Plain) -> Plain:
    """A group that has ended: whose it is, and all of it."""
    return {
        "draw": (draw.uid, draw.draw, draw.num_rollouts),
        "columns": dict(rolled.batch.columns),
        "thrown_away": rolled.num_thrown_away,
        "metrics": dict(rolled.metrics),
        "num_well": heard.num_well,
        "failures": heard.failures,
        "logged": logged,
    }


def _taken(logged: Plain, batch: Batch) -> Plain:
    """What is logged of a batch's rollouts, taken out of the table."""
    own = set(batch["rollout_uid_B"].tolist())
    return {
        name: {uid: values.pop(uid) for uid in own & values.keys()}
        for name, values in logged.items()
    }


def _merge(columns: Plain, into: Plain) -> None:
    for name, values in columns.items():
        into.setdefault(name, {}).update(values)
