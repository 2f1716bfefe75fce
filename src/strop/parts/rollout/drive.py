"""Runs strategies: answers their commands, steps the engine, hands every event to its owner."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from strop.engines.base import Engine, Event, Finished, Request
from strop.method.services import Services
from strop.parts.rollout.commands import (
    THROWN_AWAY,
    Abort,
    Command,
    Fork,
    Resume,
    Reward,
    Score,
    Strategy,
    Submit,
)
from strop.parts.rollout.listen import listen
from strop.support.errors import UserError

if TYPE_CHECKING:
    from strop.batch.batch import Batch

Progress = Callable[[int, int], None]  # (requests ended, requests submitted) so far
NEEDS = {"rules": "rules", "num_top": "top", "pause_every": "pause"}  # field -> capability


def drive(
    strategy: Strategy,
    engine: Engine,
    services: Services | None = None,
    on_progress: Progress | None = None,
) -> Any:
    """Run one strategy to its end and return the value that it returns.

    A yield with commands is answered, with the events that had come until then; a yield of an empty
    list waits until there is an event. Requests wait to be submitted while the engine is full, and
    it generates meanwhile. All requests of the strategy are released at the end.
    Nested use, as when a reward samples from the same engine, keeps the outer strategy's events.

    services: needed for Score and Reward, which its scoring and its grading answer.
    A request that fails ends, and the strategy goes on with the others. Raises UserError when none
    came to its end, for a command that the engine lacks the capability for or that names another
    strategy's request; RuntimeError when a strategy waits and nothing runs.
    """
    return drive_all([strategy], engine, services, on_progress)[0]


def drive_all(
    strategies: Sequence[Strategy],
    engine: Engine,
    services: Services | None = None,
    on_progress: Progress | None = None,
) -> list[Any]:
    """Run several strategies on one engine until all have ended; their values, in order."""
    return _finish([_Run(each, engine, services) for each in strategies], engine, on_progress)


class RolledOut(NamedTuple):
    """What a strategy of rollouts came to."""

    batch: Batch
    state: Any
    num_thrown_away: int  # tokens that the engine drew for it and that are not in the batch
    metrics: Mapping[str, float] = {}


def roll_out(strategy: Strategy, engine: Engine, services: Services | None = None) -> RolledOut:
    """Run a strategy that returns a batch, its part's state and, if any, metrics; see `drive`.

    A strategy whose tokens are of other steps too tells `rollout/tokens_thrown_away` itself.
    """
    run = _Run(strategy, engine, services)
    _finish([run], engine)
    return _rolled_out(run)


class Crowd:
    """Strategies of rollouts on one engine, each of which begins and ends for itself."""

    def __init__(self, engine: Engine, services: Services | None = None) -> None:
        self.engine, self.services = engine, services
        self.runs: dict[Any, _Run] = {}  # under way, by what `begin` was told
        self.owners: dict[int, _Run] = {}

    def begin(self, key: Any, strategy: Strategy) -> None:
        """Run a strategy beside the others from the next turn on."""
        self.runs[key] = _Run(strategy, self.engine, self.services)

    def left(self, key: Any, size: int) -> int:
        """Rollouts that one under way has yet to end, of `size`; it may have more requests open.

        A request whose end it has not heard of is open: what follows it, such as an episode's next
        turn, is asked for then.
        """
        run = self.runs[key]
        num_open = len(run.open) + run.num_held_back()
        return max(size - (len(run.ids) - len(run.open)), num_open)

    def turn(self) -> list[tuple[Any, RolledOut, Heard]]:
        """Let the engine step once; those that have ended by then, with their keys."""
        runs = [*self.runs.values()]
        while not any(run.done for run in runs):
            if _turn(runs, self.owners, self.engine) is not None:
                break
        ended = [key for key, run in self.runs.items() if run.done]
        return [self._end(key) for key in ended]

    def _end(self, key: Any) -> tuple[Any, RolledOut, Heard]:
        run = self.runs.pop(key)
        run.close()
        self.owners = {id: owner for id, owner in self.owners.items() if owner is not run}
        return key, _rolled_out(run), Heard(run.num_well, tuple(run.failures))

    def close(self) -> None:
        """End all that are under way."""
        for run in self.runs.values():
            run.close()
        self.runs, self.owners = {}, {}


class Heard(NamedTuple):
    """Of some requests: how many came to an end or a pause, and why the others failed."""

    num_well: int = 0
    failures: tuple[str, ...] = ()

    def check(self) -> None:
        """Raise UserError where requests failed and none did not."""
        if self.failures and not self.num_well:
            number = len(self.failures)
            every = (
                "a request failed" if number == 1 else f"all {number} requests failed, the first"
            )
            raise UserError(f"{every}: {self.failures[0]}")


def _rolled_out(run: _Run) -> RolledOut:
    """What a strategy that has ended came to. Raises UserError where that is none of it."""
    returned = run.value
    if not isinstance(returned, tuple) or len(returned) not in (2, 3):
        raise UserError(
            f"the strategy returned {type(returned).__name__}; it returns its batch and its state, "
            "which is None where it keeps none"
        )
    batch, state, metrics = (*returned, {})[:3]
    thrown_away = int(metrics.get(THROWN_AWAY, max(run.num_drawn - _drawn_in(batch), 0)))
    told = {name: value for name, value in metrics.items() if name != THROWN_AWAY}
    return RolledOut(batch, state, thrown_away, told)


def _drawn_in(batch: Batch) -> int:
    """Tokens of a batch that an engine drew, those that rollouts share counted once."""
    drawn_T = batch["mask_T"] & (batch["origin_T"] == 0)
    return int(drawn_T.sum() - batch["fork_at_B"].clamp(min=0).sum())


def _finish(runs: Sequence[_Run], engine: Engine, on_progress: Progress | None = None) -> list[Any]:
    """Run until all have ended; their values."""
    owners: dict[int, _Run] = {}
    ended = 0
    try:
        while any(not run.done for run in runs):
            new = _turn(runs, owners, engine)
            if new is None:
                continue
            ended += new
            if on_progress is not None:
                on_progress(ended, len(owners) + sum(run.num_held_back() for run in runs))
        for run in runs:
            Heard(run.num_well, tuple(run.failures)).check()
        return [run.value for run in runs]
    finally:
        for run in runs:
            run.close()


def _turn(runs: Sequence[_Run], owners: dict[int, _Run], engine: Engine) -> int | None:
    """Answer commands; where none could be, step the engine: how many requests ended then."""
    ready = [run for run in runs if not run.done and (run.commands or run.inbox)]
    moved = [run.advance() for run in ready]
    for run in ready:
        owners.update(dict.fromkeys(run.new_ids(), run))
    if any(moved):
        return None
    return _deliver(_next_events(runs, engine, owners), owners, engine)


def sample(engine: Engine, requests: Sequence[Request]) -> list[Finished]:
    """Run requests to their ends, beside whatever else the engine runs; answers in their order.

    The last event of one that failed says so. Raises UserError when all did.
    """
    heard = drive(listen(requests), engine)
    return [
        Finished(request, tuple(events)) for request, events in zip(requests, heard, strict=True)
    ]


class _Run:
    """One strategy on its way: its commands to answer, the events that it has not heard yet."""

    def __init__(self, strategy: Strategy, engine: Engine, services: Services | None) -> None:
        self.strategy = strategy
        self.engine = engine
        self.services = services
        self.ids: set[int] = set()
        self.open: set[int] = set()  # of these, the ones of whose end it has not heard
        self.unknown: list[int] = []  # those of its requests that nobody was told of
        self.commands: list[Command] = []
        self.answers: list[Any] = []  # to the first commands, while the engine is full
        self.heard: list[Event] | None = None  # what had come when these commands were yielded
        self.inbox: list[Event] = []
        self.num_well = 0  # requests that came to an end or a pause
        self.failures: list[str] = []
        self.num_drawn = 0  # new tokens of all its requests, known once it is closed
        self.done = False
        self.value: Any = None
        self._receive(None)

    def advance(self) -> bool:
        """Answer commands as far as the engine takes requests; whether that was any."""
        if self.heard is None:
            self.heard, self.inbox = self.inbox, []
            self.open -= {e.request for e in self.heard if e.ended and e.ended != "paused"}
        before = len(self.answers)
        while len(self.answers) < len(self.commands):
            command = self.commands[len(self.answers)]
            if isinstance(command, Submit | Fork) and self.engine.full():
                return len(self.answers) > before
            self.answers.append(self._answer(command))
        self._receive((self.answers, self.heard))
        return True

    def new_ids(self) -> list[int]:
        """Its requests since the last call."""
        new, self.unknown = self.unknown, []
        return new

    def num_held_back(self) -> int:
        """Requests that are still to be submitted."""
        left = self.commands[len(self.answers) :]
        return sum(isinstance(command, Submit | Fork) for command in left)

    def hear(self, event: Event) -> None:
        self.inbox.append(event)
        if event.ended == "failed":
            self.failures.append(event.why)
            if self.services is not None:
                self.services.sampling.failures.append(event.why)
        else:
            self.num_well += bool(event.ended)

    def close(self) -> None:
        self.strategy.close()
        for id in self.ids:
            self.num_drawn += sum(len(event.ids) for event in self.engine.abort(id).events)
            self.engine.release(id)
        self.ids = set()

    def _receive(self, message: tuple[list[Any], list[Event]] | None) -> None:
        self.answers, self.heard = [], None
        try:
            self.commands = next(self.strategy) if message is None else self.strategy.send(message)
        except StopIteration as stop:
            self.done, self.value, self.commands = True, stop.value, []

    def _answer(self, command: Command) -> Any:
        if isinstance(command, Submit):
            self._require(_uses(vars(command.request)))
            return self._own(self.engine.submit(command.request))
        if isinstance(command, Fork):
            self._require({"fork"} | _uses(command.changes))
            self._check_owner(command.id)
            id = self.engine.fork(command.id, command.at, command.forced, **command.changes)
            return self._own(id)
        if isinstance(command, Resume):
            self._require({"pause"} | _uses(command.changes))
            self._check_owner(command.id)
            return self.engine.resume(command.id, **command.changes)
        if isinstance(command, Abort):
            self._check_owner(command.id)
            for unheard in (self.heard or [], self.inbox, self.engine.parked):
                unheard[:] = [event for event in unheard if event.request != command.id]
            self.open.discard(command.id)
            return self.engine.abort(command.id)
        if not isinstance(command, Score | Reward):
            raise UserError(f"a strategy yielded {command!r}, which is no command")
        if self.services is None:
            raise UserError(f"a strategy yields {type(command).__name__}; give drive services")
        if isinstance(command, Score):
            return self.services.scoring.score(command.batch, command.policy, command.names)
        return self.services.grading.grade(command.batch).outcome_B

    def _own(self, id: int) -> int:
        self.ids.add(id)
        self.open.add(id)
        self.unknown.append(id)
        return id

    def _check_owner(self, id: int) -> None:
        if id not in self.ids:
            raise UserError(f"a strategy names request {id}, which it did not submit")

    def _require(self, needed: set[str]) -> None:
        lacking = sorted(needed - self.engine.capabilities)
        if lacking:
            raise UserError(
                f"the strategy needs an engine with {lacking[0]!r}; "
                f"{type(self.engine).__name__} has {sorted(self.engine.capabilities)}"
            )


def _uses(fields: Mapping[str, Any]) -> set[str]:
    wanted = frozenset(fields.get("want", ()))
    return {capability for name, capability in NEEDS.items() if fields.get(name)} | wanted


def _next_events(runs: Sequence[_Run], engine: Engine, owners: dict[int, _Run]) -> list[Event]:
    mine = [event for event in engine.parked if event.request in owners]
    if mine:
        engine.parked[:] = [event for event in engine.parked if event.request not in owners]
        return mine
    if not engine.busy():
        number = sum(not run.done for run in runs)
        raise RuntimeError(
            f"{number} strategies wait for events, but the engine has nothing to run: submit, fork "
            "or resume something, or return"
        )
    return engine.step()


def _deliver(events: list[Event], owners: dict[int, _Run], engine: Engine) -> int:
    """Put events into their strategies' inboxes; return how many requests ended."""
    ended = 0
    for event in events:
        owner = owners.get(event.request)
        if owner is None:
            engine.parked.append(event)
        elif not owner.done:
            owner.hear(event)
            ended += event.ended in ("stop", "length", "failed")
    return ended
