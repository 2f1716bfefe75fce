"""Episodes that are played elsewhere: in processes of this machine, or at whatever place there is.

A place plays one step after another, so a slow one holds up those of its own place alone. What a
place loses is begun again from its seed, with its actions. One that hangs or dies costs its own
episode. What comes of an episode depends on its seed and actions alone, not on where it is played.
"""

import asyncio
import itertools
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, Protocol

from strop.environments.base import EnvironmentSource, Observation
from strop.environments.episodes import (
    CallLimits,
    Episodes,
    failed,
    over_time,
    step_of,
)
from strop.support.exits import Exit


class Lost(Exception):
    """A place is gone with all that it had; the next call finds an empty one."""


class Place(Protocol):
    """Where a `There` answers calls, one at a time, each from the same thread."""

    def call(self, method: str, *given: Any, seconds: float) -> Any:
        """What a method of `There` gives. Raises Lost, TimeoutError, and what it raises."""
        ...

    def close(self) -> None:
        """End it, whatever it does."""
        ...


class Begun(NamedTuple):
    """An episode so far: its seed, its actions, and the observations before each action and after
    the last.
    """

    seed: int
    actions: tuple[str, ...] = ()
    seen: tuple[str, ...] = ()


class There:
    """Plays the episodes that are sent to a place."""

    def __init__(self) -> None:
        self.worlds: dict[str, tuple[Episodes, dict[int, int]]] = {}

    def begin(
        self, name: str, source: EnvironmentSource, limits: CallLimits, number: int, begun: Begun
    ) -> Observation:
        """Begin an episode of a world, or begin it again, and return what it shows."""
        if name not in self.worlds:
            self.worlds[name] = Episodes(source, (), limits=limits), {}
        episodes, places = self.worlds[name]
        places[number], shown = episodes.begin(*begun)
        return _plain(shown)

    def step(
        self, name: str, numbers: Sequence[int], actions: Sequence[str]
    ) -> list[Observation] | None:
        """Step these episodes; None where this place is new and does not have all of them."""
        episodes, places = self.worlds.get(name, (None, {}))
        if episodes is None or any(number not in places for number in numbers):
            return None
        return [*map(_plain, episodes.step([places[number] for number in numbers], actions))]

    def end(self, name: str) -> None:
        """Close the unfinished episodes of a world."""
        if name in self.worlds:
            self.worlds.pop(name)[0].close()


def _plain(shown: Observation) -> Observation:
    """An observation that every process can read, whatever class an environment has made of it."""
    if type(shown) is Observation:
        return shown
    return Observation(**{each.name: getattr(shown, each.name) for each in fields(Observation)})


@dataclass(eq=False)
class Player:
    """An episode. at: the number of its place."""

    seed: int
    at: int
    actions: list[str] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)


class Places:
    """Where the episodes of an environment are played. Raises UserError for its options."""

    def __init__(
        self, source: EnvironmentSource, limits: CallLimits, places: Sequence[Place]
    ) -> None:
        self.source, self.limits, self.places = source, limits, places
        with source.opened() as made:
            self.max_turns, self.max_tokens, self.rewrites = (
                made.max_turns, made.max_tokens, made.rewrites
            )  # fmt: skip
            self.roles = made.roles if len(made.roles) > 1 else ()
        self.threads = [ThreadPoolExecutor(1, thread_name_prefix="strop-place") for _ in places]
        self.turns = itertools.cycle(range(len(places)))

    def play(self, seeds: Sequence[int]) -> "EpisodesElsewhere":
        """Begin an episode of each seed."""
        return EpisodesElsewhere(self, seeds)

    def close(self) -> None:
        """End the places."""
        for place in self.places:
            place.close()
        for thread in self.threads:
            thread.shutdown(wait=False, cancel_futures=True)


class EpisodesElsewhere:
    """Plays episodes like strop.environments.episodes.Episodes, at some places."""

    def __init__(self, places: Places, seeds: Sequence[int]) -> None:
        self.at, self.source, self.limits = places, places.source, places.limits
        self.max_turns, self.max_tokens = places.max_turns, places.max_tokens
        self.roles, self.rewrites = places.roles, places.rewrites
        # Steps of an asynchronous environment go to a place together, which awaits them all.
        self.awaited = not places.source.is_asynchronous
        self.name = uuid.uuid4().hex
        self.players: list[Player] = []
        self.failed: dict[int, Observation] = {}
        self.shown = [each.result() for each in [self._add(Begun(seed)) for seed in seeds]]

    def reset(self) -> list[Observation]:
        """The first observations of all episodes."""
        return self.shown

    async def step_alone(self, number: int, action: str) -> Observation:
        """One step of an episode, while others go on."""
        thread = self.at.threads[self.players[number].at]
        return await asyncio.get_running_loop().run_in_executor(thread, self._step, number, action)

    def step(self, numbers: Sequence[int], actions: Sequence[str]) -> list[Observation]:
        """Step the episodes `numbers`; the observations are in their order."""
        by_place: dict[int, dict[int, str]] = {}
        for number, action in zip(numbers, actions, strict=True):
            by_place.setdefault(self.players[number].at, {})[number] = action
        futures = [self.at.threads[at].submit(self._steps, at, own) for at, own in by_place.items()]
        found = {number: o for future in futures for number, o in future.result().items()}
        return [found[number] for number in numbers]

    def repeat(self, number: int, actions: Sequence[str], seen: Sequence[str]) -> int:
        """Begin another episode with the seed of `number`, replay these actions, and return its
        number. Raises RunStopped when its observations differ from `seen`.
        """
        self._add(Begun(self.players[number].seed, tuple(actions), tuple(seen))).result()
        return len(self.players) - 1

    def close(self) -> None:
        """Close the unfinished episodes, at some later time."""
        for at in {player.at for player in self.players}:
            self.at.threads[at].submit(self._end, at)

    # ---- from here on: how, in the thread of a place

    def _add(self, begun: Begun) -> Future[Observation]:
        at, number = next(self.at.turns), len(self.players)
        self.players.append(Player(begun.seed, at, list(begun.actions), list(begun.seen[:-1])))
        return self.at.threads[at].submit(self._begin, number, begun)

    def _call(self, at: int, method: str, *given: Any, number: int = 1) -> Any:
        seconds = self.limits.seconds * number
        return self.at.places[at].call(method, self.name, *given, seconds=seconds)

    def _begin(self, number: int, begun: Begun) -> Observation:
        player = self.players[number]
        try:
            shown = self._tried(lambda: self._call(player.at, "begin", *self._given(number, begun)))
        except (Lost, TimeoutError) as error:
            where = f"the start of the episode of the seed {player.seed}"
            return self._fail(number, Exit.START_FAILED, where, self._why(error))
        return self._hear(number, shown)

    def _step(self, number: int, action: str) -> Observation:
        if number in self.failed:
            return self.failed[number]
        player = self.players[number]
        try:
            shown = self._tried(lambda: self._stepped(number, action))
        except (Lost, TimeoutError) as error:
            exit = Exit.ENVIRONMENT_CRASH if isinstance(error, Lost) else Exit.TIMEOUT
            return self._fail(number, exit, step_of(player.seed, action), self._why(error))
        player.actions.append(action)
        return self._hear(number, shown)

    def _stepped(self, number: int, action: str) -> Observation:
        """One step at its place, which gets the episode again where it has lost it."""
        player = self.players[number]
        shown = self._call(player.at, "step", [number], [action])
        if shown is None:
            begun = Begun(player.seed, tuple(player.actions), tuple(player.seen))
            again: Observation = self._call(player.at, "begin", *self._given(number, begun))
            if again.exit is not None:
                return again
            shown = self._call(player.at, "step", [number], [action])
        if shown is None:
            raise Lost("its process was lost again")
        found: Observation = shown[0]
        return found

    def _steps(self, at: int, actions: dict[int, str]) -> dict[int, Observation]:
        """Steps of a place; together where they are well, so that one that fails is found."""
        going = {n: a for n, a in actions.items() if n not in self.failed}
        together = None
        if len(going) > 1:
            try:
                own = list(going), list(going.values())
                together = self._call(at, "step", *own, number=len(going))
            except (Lost, TimeoutError):
                together = None
        if together is None:
            return {number: self._step(number, action) for number, action in actions.items()}
        for (number, action), shown in zip(going.items(), together, strict=True):
            self.players[number].actions.append(action)
            self._hear(number, shown)
        return self.failed | dict(zip(going, together, strict=True))

    def _end(self, at: int) -> None:
        try:
            self._call(at, "end")
        except (Lost, TimeoutError):  # they are gone, which closes them
            return

    def _given(self, number: int, begun: Begun) -> tuple[Any, ...]:
        return self.source, self.limits, number, begun

    def _tried(self, call: Callable[[], Observation]) -> Observation:
        """What a call gives; it is called again where the place was lost."""
        for _ in self.limits.waits():
            try:
                return call()
            except Lost:
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


class Told:
    """Episodes that the first of several processes plays, and tells the others of.

    first: as Ranks.from_first. make: begins the episodes, in the first process alone.
    """

    awaited = False  # all processes hear of the same steps in the same order

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
        shown: list[Observation] = self.shown
        return shown

    def step(self, numbers: Sequence[int], actions: Sequence[str]) -> list[Observation]:
        """Step the episodes `numbers`; the observations are in their order."""
        if not numbers:
            return []
        found: list[Observation] = self.first(lambda: self.world.step(numbers, actions))
        return found

    def repeat(self, number: int, actions: Sequence[str], seen: Sequence[str]) -> int:
        """A further episode of the seed of `number` behind these actions; its number."""
        found: int = self.first(lambda: self.world.repeat(number, actions, seen))
        return found

    def close(self) -> None:
        """Close the unfinished episodes."""
        if self.world is not None:
            self.world.close()
