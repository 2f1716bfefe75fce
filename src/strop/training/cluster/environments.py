"""Environments on other machines: episodes are distributed over Ray actors that play them."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from strop.environments.base import EnvironmentSource, Observation
from strop.environments.episodes import Episodes
from strop.support.loading import search_path
from strop.support.processes import Restarts
from strop.training.cluster.connect import (
    BEGIN_SECONDS,
    MOST_TRIES,
    connect,
    enter,
    first_line,
    reserve,
)
from strop.training.parallel.ranks import Ranks
from strop.training.settings.sections import RaySettings


class Begun(NamedTuple):
    """An episode so far: its seed, its actions, and the observations before each action and after
    the last.
    """

    seed: int
    actions: tuple[str, ...] = ()
    seen: tuple[str, ...] = ()


class Facts(NamedTuple):
    """The properties of an environment."""

    max_turns: int = 1
    max_tokens: int = 1
    roles: tuple[int, ...] = ()
    rewrites: bool = False


class There:
    """The actor: plays episodes in the working directory of the command."""

    def __init__(self, folder: str, search: list[str]) -> None:
        enter(folder, search)
        self.worlds: dict[str, tuple[Episodes, dict[int, int]]] = {}

    def play(
        self, name: str, source: EnvironmentSource, begun: Mapping[int, Begun]
    ) -> tuple[Facts, dict[int, Observation]]:
        """Start or restart episodes of a world, and return the observation of each."""
        episodes, places = self.worlds.setdefault(name, (Episodes(source, ()), {}))
        shown = {}
        for number, each in begun.items():
            places[number], shown[number] = episodes.begin(*each)
        facts = Facts(episodes.max_turns, episodes.max_tokens, episodes.roles, episodes.rewrites)
        return facts, shown

    def step(
        self, name: str, numbers: Sequence[int], actions: Sequence[str]
    ) -> list[Observation] | None:
        """Step these episodes; None when this process is new and does not have all of them."""
        episodes, places = self.worlds.get(name, (None, {}))
        if episodes is None or any(number not in places for number in numbers):
            return None
        return episodes.step([places[number] for number in numbers], actions)

    def end(self, name: str) -> None:
        """Close the unfinished episodes of a world."""
        if name in self.worlds:
            self.worlds.pop(name)[0].close()


class Stage:
    """`ray.num_environments` actors; Ray restarts one that dies. Raises UserError."""

    def __init__(self, settings: RaySettings) -> None:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        self.ray = connect(settings)
        self.limit = settings.timeout_seconds
        bundle = {"CPU": float(settings.cpus_per_environment)}
        self.group = reserve(self.ray, [bundle] * settings.num_environments, "the environments")
        self.actors = [
            self.ray.remote(There)
            .options(
                num_cpus=settings.cpus_per_environment,
                max_restarts=-1,
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    self.group, placement_group_bundle_index=number
                ),
            )
            .remote(str(Path.cwd()), search_path())
            for number in range(settings.num_environments)
        ]
        self.restarts = [
            Restarts(f"the process of environments {number} was lost")
            for number in range(settings.num_environments)
        ]
        self.turns = itertools.cycle(range(len(self.actors)))

    def play(self, at: int, *given: Any) -> Any:
        """Let an actor start episodes, and return its future answer; Ray retries when it dies."""
        return self.actors[at].play.options(max_task_retries=MOST_TRIES).remote(*given)

    def heard(self, at: int, ref: Any, limit: float = 0.0) -> Any:
        """Wait for an actor's answer; None when the actor is lost. Raises what the actor raised.

        Raises RunStopped when the actor keeps getting lost. limit: seconds to wait, at least.
        """
        try:
            found = self.ray.get(ref, timeout=max(self.limit, limit))
        except self.ray.exceptions.RayTaskError as error:
            raise error.cause from error
        except self.ray.exceptions.GetTimeoutError:
            self.ray.kill(self.actors[at], no_restart=False)
            self.restarts[at].count(f"no answer for {max(self.limit, limit):g} s")
            return None
        except self.ray.exceptions.RayError as error:
            self.restarts[at].count(first_line(error))
            return None
        return found

    def close(self) -> None:
        """End the actors and release their resources."""
        from ray.util.placement_group import remove_placement_group

        if self.ray.is_initialized():
            for actor in self.actors:
                self.ray.kill(actor)
            remove_placement_group(self.group)


@dataclass(eq=False)
class Player:
    """An episode. at: the number of its actor. over: whether it has ended."""

    seed: int
    at: int
    actions: list[str] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)
    over: bool = False

    def hear(self, shown: Observation) -> None:
        """Record an observation."""
        self.seen.append(shown.text)
        self.over = shown.done or shown.truncated

    def begun(self) -> Begun:
        """Returns what an actor needs to restart this episode."""
        return Begun(self.seed, tuple(self.actions), tuple(self.seen))


class RayEpisodes:
    """Plays episodes like strop.environments.base.Episodes, on the actors of a stage.

    An episode lost with its actor is restarted from its seed and replays the same actions. first:
    as Ranks.from_first; the first process has the stage and broadcasts what it receives.
    """

    awaited = False  # an actor awaits the steps of an asynchronous environment itself

    def __init__(
        self, stage: Stage | None, first: Callable[[Callable[[], Any]], Any],
        source: EnvironmentSource, seeds: Sequence[int],
    ) -> None:  # fmt: skip
        self.stage, self.first, self.source = stage, first, source
        self.name = uuid.uuid4().hex
        self.players: list[Player] = []
        answers = first(lambda: self._begin([Begun(seed) for seed in seeds]))
        facts, self.shown = [facts for facts, _ in answers], _in_order(answers)
        self.max_turns = max((each.max_turns for each in facts), default=1)
        self.max_tokens = max((each.max_tokens for each in facts), default=1)
        self.roles = facts[0].roles if facts else ()
        self.rewrites = any(each.rewrites for each in facts)
        self.count = len(self.shown)

    def reset(self) -> list[Observation]:
        """Returns the first observations of all episodes."""
        return self.shown

    def step(self, numbers: Sequence[int], actions: Sequence[str]) -> list[Observation]:
        """Step the episodes `numbers`; the observations are in their order."""
        if not numbers:
            return []
        found: list[Observation] = self.first(lambda: self._step(numbers, actions))
        return found

    def repeat(self, number: int, actions: Sequence[str], seen: Sequence[str]) -> int:
        """Start another episode with the seed of `number`, replay these actions, and return its
        number. Raises RunStopped when its observations differ from `seen`.
        """

        def begin() -> None:
            again = Begun(self.players[number].seed, tuple(actions), tuple(seen))
            self._begin([again])

        self.first(begin)
        self.count += 1
        return self.count - 1

    def close(self) -> None:
        """Close the unfinished episodes."""
        if self.stage is not None and self.stage.ray.is_initialized():
            for at in {player.at for player in self.players}:
                self.stage.actors[at].end.remote(self.name)

    # ---- implementation, in the process that has the stage

    @property
    def _stage(self) -> Stage:
        assert self.stage is not None, "the first process has the stage"
        return self.stage

    def _begin(self, begun: Sequence[Begun]) -> list[tuple[Facts, dict[int, Observation]]]:
        """Distribute further episodes over the actors, start them, and return the answers."""
        stage, by_actor = self._stage, dict[int, dict[int, Begun]]()
        for each in begun:
            at, number = next(stage.turns), len(self.players)
            self.players.append(Player(each.seed, at, list(each.actions), list(each.seen[:-1])))
            by_actor.setdefault(at, {})[number] = each
        refs = {at: stage.play(at, self.name, self.source, own) for at, own in by_actor.items()}
        answers = [self._played(at, ref, by_actor[at]) for at, ref in refs.items()]
        for _, shown in answers:
            for number, observation in shown.items():
                self.players[number].hear(observation)
        return answers

    def _played(self, at: int, ref: Any, own: Mapping[int, Begun]) -> Any:
        """Wait for an actor to start its episodes, and repeat the call when the actor is lost."""
        answers = self._stage.heard(at, ref, BEGIN_SECONDS)
        while answers is None:
            again = self._stage.play(at, self.name, self.source, own)
            answers = self._stage.heard(at, again, BEGIN_SECONDS)
        return answers

    def _step(self, numbers: Sequence[int], actions: Sequence[str]) -> list[Observation]:
        by_actor: dict[int, list[tuple[int, str]]] = {}
        for number, action in zip(numbers, actions, strict=True):
            by_actor.setdefault(self.players[number].at, []).append((number, action))
        refs = {at: self._call_step(at, own) for at, own in by_actor.items()}
        found = dict[int, Observation]()
        for at, own in by_actor.items():
            answers = self._stage.heard(at, refs[at])
            while answers is None:
                self._restore(at)
                answers = self._stage.heard(at, self._call_step(at, own))
            # Only now, because the episode itself may have crashed the actor.
            self._stage.restarts[at].worked()
            for (number, action), shown in zip(own, answers, strict=True):
                self.players[number].actions.append(action)
                self.players[number].hear(shown)
                found[number] = shown
        return [found[number] for number in numbers]

    def _call_step(self, at: int, own: Sequence[tuple[int, str]]) -> Any:
        numbers, actions = zip(*own, strict=True)
        return self._stage.actors[at].step.remote(self.name, list(numbers), list(actions))

    def _restore(self, at: int) -> None:
        """Restart the unfinished episodes that an actor has lost, up to their last step."""
        own = {
            number: player.begun()
            for number, player in enumerate(self.players)
            if player.at == at and not player.over
        }
        self._played(at, self._stage.play(at, self.name, self.source, own), own)


def _in_order(answers: Sequence[tuple[Facts, Mapping[int, Observation]]]) -> list[Observation]:
    shown = dict(pair for _, own in answers for pair in own.items())
    return [shown[number] for number in sorted(shown)]


class SharedStage(NamedTuple):
    """A stage that several training processes share; the first one has it."""

    stage: Stage | None
    ranks: Ranks

    def play(self, source: EnvironmentSource, seeds: Sequence[int]) -> RayEpisodes:
        """Start episodes."""
        return RayEpisodes(self.stage, self.ranks.from_first, source, seeds)

    def close(self) -> None:
        """End the actors."""
        if self.stage is not None:
            self.stage.close()


def open_stage(
    settings: RaySettings, source: EnvironmentSource | None, ranks: Ranks
) -> SharedStage | None:
    """Open the stage for episodes on Ray; None when the run plays none or plays them locally.

    Raises UserError.
    """
    if not settings.address or not settings.num_environments or source is None:
        return None
    stages: list[Stage] = []
    ranks.from_first(lambda: stages.append(Stage(settings)))
    return SharedStage(stages[0] if stages else None, ranks)
