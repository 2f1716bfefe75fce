"""Plays episodes in workers: processes of this machine, or actors of a Ray cluster.

A worker runs one step at a time, so a slow episode delays only those of its own worker. An
episode that a worker loses is restarted from its seed and replayed with its actions. A step that
hangs or dies fails only its own episode. The result of an episode depends on its seed and actions
alone, not on the worker that plays it.
"""

import asyncio
import itertools
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, Protocol

from strop.environments.base import EnvironmentSource, Observation
from strop.environments.episodes import CallLimits, Episodes, failed, over_time, step_of
from strop.support.exits import Exit


class WorkerLost(Exception):
    """A worker has died with all of its episodes; the next call finds an empty one."""


class Worker(Protocol):
    """Answers the calls of an `EpisodeHost`, one at a time, each from the same thread."""

    def call(self, method: str, *given: Any, seconds: float) -> Any:
        """Call a method of `EpisodeHost`. Raises WorkerLost, TimeoutError and its own errors."""
        ...

    def close(self) -> None:
        """End the worker, also while it is busy."""
        ...


class EpisodeSoFar(NamedTuple):
    """An episode so far: its seed, its actions, and the observations before each action and after
    the last.
    """

    seed: int
    actions: tuple[str, ...] = ()
    seen: tuple[str, ...] = ()


class EpisodeHost:
    """Plays the episodes that are sent to a worker."""

    def __init__(self) -> None:
        self.worlds: dict[str, tuple[Episodes, dict[int, int]]] = {}

    def begin(
        self,
        name: str,
        source: EnvironmentSource,
        limits: CallLimits,
        number: int,
        started: EpisodeSoFar,
    ) -> Observation:
        """Begin or restart an episode of a world and return its observation."""
        if name not in self.worlds:
            self.worlds[name] = Episodes(source, (), limits=limits), {}
        episodes, places = self.worlds[name]
        places[number], shown = episodes.begin(*started)
        return _plain(shown)

    def step(
        self, name: str, numbers: Sequence[int], actions: Sequence[str]
    ) -> list[Observation] | None:
        """Step these episodes; None where this worker is new and does not have all of them."""
        episodes, places = self.worlds.get(name, (None, {}))
        if episodes is None or any(number not in places for number in numbers):
            return None
        return [*map(_plain, episodes.step([places[number] for number in numbers], actions))]

    def end(self, name: str) -> None:
        """Close the unfinished episodes of a world."""
        if name in self.worlds:
            self.worlds.pop(name)[0].close()


def _plain(shown: Observation) -> Observation:
    """The observation as a plain `Observation`, which every process can unpickle."""
    values = {each.name: getattr(shown, each.name) for each in fields(Observation)}
    return Observation(**values | {"measures": dict(shown.measures)})  # any mapping was accepted


@dataclass(eq=False)
class Player:
    """An episode. at: the index of its worker."""

    seed: int
    at: int
    actions: list[str] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)


class EnvironmentWorkers:
    """The workers that play the episodes of an environment. Raises UserError for its options."""

    def __init__(
        self, source: EnvironmentSource, limits: CallLimits, workers: Sequence[Worker]
    ) -> None:
        self.source, self.limits, self.workers = source, limits, workers
        with source.opened() as made:
            self.max_turns, self.max_tokens, self.rewrites = (
                made.max_turns, made.max_tokens, made.rewrites
            )  # fmt: skip
            self.roles = made.roles if len(made.roles) > 1 else ()
        self.threads = [
            ThreadPoolExecutor(1, thread_name_prefix="strop-environment") for _ in workers
        ]
        self.turns = itertools.cycle(range(len(workers)))

    def play(self, seeds: Sequence[int]) -> "EpisodesInWorkers":
        """Begin an episode of each seed."""
        return EpisodesInWorkers(self, seeds)

    def close(self) -> None:
        """End the workers."""
        for worker in self.workers:
            worker.close()
        for thread in self.threads:
            thread.shutdown(wait=False, cancel_futures=True)


class EpisodesInWorkers:
    """Plays episodes like strop.environments.episodes.Episodes, in some workers."""

    def __init__(self, workers: EnvironmentWorkers, seeds: Sequence[int]) -> None:
        self.at, self.source, self.limits = workers, workers.source, workers.limits
        self.max_turns, self.max_tokens = workers.max_turns, workers.max_tokens
        self.roles, self.rewrites = workers.roles, workers.rewrites
        # Steps of an asynchronous environment go to a worker together, which awaits them all.
        self.awaited = not workers.source.is_asynchronous
        self.name = uuid.uuid4().hex
        self.players: list[Player] = []
        self.failed: dict[int, Observation] = {}
        self.shown = [each.result() for each in [self._add(EpisodeSoFar(seed)) for seed in seeds]]

    def reset(self) -> list[Observation]:
        """The first observations of all episodes."""
        return self.shown

    async def step_alone(self, number: int, action: str) -> Observation:
        """Step one episode while others continue."""
        thread = self.at.threads[self.players[number].at]
        return await asyncio.get_running_loop().run_in_executor(thread, self._step, number, action)

    def step(self, numbers: Sequence[int], actions: Sequence[str]) -> list[Observation]:
        """Step the episodes `numbers`; the observations are in their order."""
        by_worker: dict[int, dict[int, str]] = {}
        for number, action in zip(numbers, actions, strict=True):
            by_worker.setdefault(self.players[number].at, {})[number] = action
        futures = [
            self.at.threads[at].submit(self._steps, at, own) for at, own in by_worker.items()
        ]
        found = {number: o for future in futures for number, o in future.result().items()}
        return [found[number] for number in numbers]

    def repeat(self, number: int, actions: Sequence[str], seen: Sequence[str]) -> int:
        """Begin another episode with the seed of `number`, replay these actions, and return its
        number. Raises RunStopped when its observations differ from `seen`.
        """
        self._add(EpisodeSoFar(self.players[number].seed, tuple(actions), tuple(seen))).result()
        return len(self.players) - 1

    def close(self) -> None:
        """Close the unfinished episodes, at some later time."""
        for at in {player.at for player in self.players}:
            self.at.threads[at].submit(self._end, at)

    # ---- from here on: how, in the thread of a worker

    def _add(self, started: EpisodeSoFar) -> Future[Observation]:
        at, number = next(self.at.turns), len(self.players)
        self.players.append(
            Player(started.seed, at, list(started.actions), list(started.seen[:-1]))
        )
        return self.at.threads[at].submit(self._begin, number, started)

    def _call(self, at: int, method: str, *given: Any, number: int = 1) -> Any:
        seconds = self.limits.whole_seconds * number
        return self.at.workers[at].call(method, self.name, *given, seconds=seconds)

    def _begin(self, number: int, started: EpisodeSoFar) -> Observation:
        player = self.players[number]
        try:
            shown = self._tried(lambda: self._started(number, started))
        except (WorkerLost, TimeoutError) as error:
            where = f"the start of the episode of the seed {player.seed}"
            return self._fail(number, Exit.START_FAILED, where, self._why(error))
        return self._hear(number, shown)

    def _step(self, number: int, action: str) -> Observation:
        if number in self.failed:
            return self.failed[number]
        player = self.players[number]
        try:
            shown = self._tried(lambda: self._stepped(number, action))
        except (WorkerLost, TimeoutError) as error:
            exit = Exit.ENVIRONMENT_CRASH if isinstance(error, WorkerLost) else Exit.TIMEOUT
            return self._fail(number, exit, step_of(player.seed, action), self._why(error))
        player.actions.append(action)
        return self._hear(number, shown)

    def _stepped(self, number: int, action: str) -> Observation:
        """Step an episode in its worker, after replaying it there where the worker has lost it."""
        player = self.players[number]
        shown = self._call(player.at, "step", [number], [action])
        if shown is None:
            started = EpisodeSoFar(player.seed, tuple(player.actions), tuple(player.seen))
            again = self._started(number, started)
            if again.exit is not None:
                return again
            shown = self._call(player.at, "step", [number], [action])
        if shown is None:
            raise WorkerLost("its process was lost again")
        return shown[0]

    def _steps(self, at: int, actions: dict[int, str]) -> dict[int, Observation]:
        """Step a worker's episodes in one call or, if that fails, one by one to find the cause."""
        going = {n: a for n, a in actions.items() if n not in self.failed}
        together = None
        if len(going) > 1:
            with suppress(WorkerLost, TimeoutError):
                own = list(going), list(going.values())
                together = self._call(at, "step", *own, number=len(going))
        if together is None:
            return {number: self._step(number, action) for number, action in actions.items()}
        for (number, action), shown in zip(going.items(), together, strict=True):
            self.players[number].actions.append(action)
            self._hear(number, shown)
        return self.failed | dict(zip(going, together, strict=True))

    def _end(self, at: int) -> None:
        with suppress(WorkerLost, TimeoutError):  # the worker is gone, and its episodes with it
            self._call(at, "end")

    def _started(self, number: int, started: EpisodeSoFar) -> Observation:
        """Let a worker begin and replay an episode; the time limit counts each of its actions."""
        given, calls = (self.source, self.limits, number, started), 1 + len(started.actions)
        return self._call(self.players[number].at, "begin", *given, number=calls)

    def _tried(self, call: Callable[[], Observation]) -> Observation:
        """Return the result of a call, which is retried where the worker was lost."""
        for _ in self.limits.waits():
            try:
                return call()
            except WorkerLost:
                continue
        return call()

    def _hear(self, number: int, shown: Observation) -> Observation:
        self.players[number].seen.append(shown.text)
        if shown.why:
            self.failed[number] = shown
        return shown

    def _fail(self, number: int, exit: Exit, where: str, error: Exception) -> Observation:
        self.failed[number] = failed(self.source.name, exit, where, error)
        return self.failed[number]

    def _why(self, error: Exception) -> Exception:
        return over_time(self.limits) if isinstance(error, TimeoutError) else error


class BroadcastEpisodes:
    """Episodes that the first of several processes plays and broadcasts to the others.

    first: as Ranks.from_first. make: begins the episodes, in the first process alone.
    """

    awaited = False  # all processes receive the same steps in the same order

    def __init__(self, first: Callable[[Callable[[], Any]], Any], make: Callable[[], Any]) -> None:
        self.first = first
        self.world: Any = None  # in the first process

        def begin() -> tuple[Any, ...]:
            self.world = world = make()
            shown = world.reset()
            return shown, world.max_turns, world.max_tokens, world.roles, world.rewrites

        self.shown, self.max_turns, self.max_tokens, self.roles, self.rewrites = first(begin)

    def reset(self) -> list[Observation]:
        """The first observations of all episodes."""
        return self.shown

    def step(self, numbers: Sequence[int], actions: Sequence[str]) -> list[Observation]:
        """Step the episodes `numbers`; the observations are in their order."""
        if not numbers:
            return []
        return self.first(lambda: self.world.step(numbers, actions))

    def repeat(self, number: int, actions: Sequence[str], seen: Sequence[str]) -> int:
        """Begin another episode of the seed of `number`, replay the actions, return its number."""
        return self.first(lambda: self.world.repeat(number, actions, seen))

    def close(self) -> None:
        """Close the unfinished episodes."""
        if self.world is not None:
            self.world.close()
