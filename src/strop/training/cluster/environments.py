"""Environments on other machines: actors that play the episodes, which are dealt out among them."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from strop._loading import search_path
from strop.errors import RunStopped
from strop.tasks.environment import EnvironmentSource, Episodes, Observation
from strop.training.cluster.connect import BEGIN_SECONDS, connect, enter, first_line, reserve
from strop.training.ranks import Ranks
from strop.training.settings import RaySettings

MOST_LOSSES = 3  # of one actor in a row, without an answer between them


class Begun(NamedTuple):
    """An episode: its seed, the actions that it has come through, and what it showed before each
    and after the last.
    """

    seed: int
    actions: tuple[str, ...] = ()
    seen: tuple[str, ...] = ()


class Facts(NamedTuple):
    """What an environment says of itself."""

    max_turns: int = 1
    max_tokens: int = 1
    roles: tuple[int, ...] = ()
    rewrites: bool = False


class There:
    """The actor: plays episodes, in the folder that the command was given in."""

    def __init__(self, folder: str, search: list[str]) -> None:
        enter(folder, search)
        self.worlds: dict[str, tuple[Episodes, dict[int, int]]] = {}

    def play(
        self, name: str, source: EnvironmentSource, begun: Mapping[int, Begun]
    ) -> tuple[Facts, dict[int, Observation]]:
        """Begin episodes of a world, or begin them anew; what each shows."""
        episodes, places = self.worlds.setdefault(name, (Episodes(source, ()), {}))
        shown = {}
        for number, each in begun.items():
            places[number], shown[number] = episodes.begin(*each)
        facts = Facts(episodes.max_turns, episodes.max_tokens, episodes.roles, episodes.rewrites)
        return facts, shown

    def step(
        self, name: str, numbers: Sequence[int], actions: Sequence[str]
    ) -> list[Observation] | None:
        """One step of these episodes; None where this process is new and has not begun them all."""
        episodes, places = self.worlds.get(name, (None, {}))
        if episodes is None or any(number not in places for number in numbers):
            return None
        return episodes.step([places[number] for number in numbers], actions)

    def end(self, name: str) -> None:
        """Close the episodes of a world that are not over."""
        if name in self.worlds:
            self.worlds.pop(name)[0].close()


class Stage:
    """`ray.num_environments` actors; Ray begins one anew where it dies. Raises UserError."""

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
        self.losses = [0] * len(self.actors)
        self.turns = itertools.cycle(range(len(self.actors)))

    def play(self, at: int, *given: Any) -> Any:
        """Let an actor begin episodes; what will be its answer. Its death is waited out."""
        return self.actors[at].play.options(max_task_retries=MOST_LOSSES).remote(*given)

    def heard(self, at: int, ref: Any, limit: float = 0.0) -> Any:
        """What an actor answers, None where it is lost. Raises what it raised.

        RunStopped where it is lost again and again. limit: seconds for it, at least.
        """
        try:
            found = self.ray.get(ref, timeout=max(self.limit, limit))
        except self.ray.exceptions.RayTaskError as error:
            raise error.cause from error
        except self.ray.exceptions.GetTimeoutError:
            self.ray.kill(self.actors[at], no_restart=False)
            return self._lost(at, f"no answer for {max(self.limit, limit):g} s")
        except self.ray.exceptions.RayError as error:
            return self._lost(at, first_line(error))
        return found

    def _lost(self, at: int, why: str) -> None:
        self.losses[at] += 1
        if self.losses[at] >= MOST_LOSSES:
            raise RunStopped(
                f"the process of environments {at} was lost {MOST_LOSSES} times in a row ({why})"
            )

    def close(self) -> None:
        """End the actors, and give their room back."""
        from ray.util.placement_group import remove_placement_group

        if self.ray.is_initialized():
            for actor in self.actors:
                self.ray.kill(actor)
            remove_placement_group(self.group)


@dataclass(eq=False)
class Player:
    """An episode. at: the actor that plays it. over: nothing comes any more."""

    seed: int
    at: int
    actions: list[str] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)
    over: bool = False

    def hear(self, shown: Observation) -> None:
        """Keep what it showed."""
        self.seen.append(shown.text)
        self.over = shown.done or shown.truncated

    def begun(self) -> Begun:
        """As it is to be begun anew."""
        return Begun(self.seed, tuple(self.actions), tuple(self.seen))


class RayEpisodes:
    """Episodes as strop.tasks.environment.Episodes plays them, on a stage.

    What is lost with an actor is begun again from its seed and comes through the same actions.
    first: as Ranks.from_first; the first process has the stage, and all hear what it hears.
    """

    def __init__(
        self, stage: Stage | None, first: Callable[[Callable[[], Any]], Any],
        source: EnvironmentSource, seeds: Sequence[int],
    ) -> None:  # fmt: skip
        self.stage, self.first, self.source = stage, first, source
        self.name = uuid.uuid4().hex
        self.players: list[Player] = []
        told = first(lambda: self._begin([Begun(seed) for seed in seeds]))
        facts, self.shown = [facts for facts, _ in told], _in_order(told)
        self.max_turns = max((each.max_turns for each in facts), default=1)
        self.max_tokens = max((each.max_tokens for each in facts), default=1)
        self.roles = facts[0].roles if facts else ()
        self.rewrites = any(each.rewrites for each in facts)
        self.count = len(self.shown)

    def reset(self) -> list[Observation]:
        """What all episodes began with."""
        return self.shown

    def step(self, numbers: Sequence[int], actions: Sequence[str]) -> list[Observation]:
        """One step of the episodes `numbers`, in their order."""
        if not numbers:
            return []
        found: list[Observation] = self.first(lambda: self._step(numbers, actions))
        return found

    def repeat(self, number: int, actions: Sequence[str], seen: Sequence[str]) -> int:
        """A further episode of the seed of `number` that has come through these actions; its
        number. Raises RunStopped where it does not show what was `seen`.
        """

        def begin() -> None:
            again = Begun(self.players[number].seed, tuple(actions), tuple(seen))
            self._begin([again])

        self.first(begin)
        self.count += 1
        return self.count - 1

    def close(self) -> None:
        """Close the episodes that are not over."""
        if self.stage is not None and self.stage.ray.is_initialized():
            for at in {player.at for player in self.players}:
                self.stage.actors[at].end.remote(self.name)

    # ---- from here on: how, in the process that has the stage

    @property
    def _stage(self) -> Stage:
        assert self.stage is not None, "the first process has the stage"
        return self.stage

    def _begin(self, begun: Sequence[Begun]) -> list[tuple[Facts, dict[int, Observation]]]:
        """Deal out further episodes, and begin them; what every actor tells of its own."""
        stage, dealt = self._stage, dict[int, dict[int, Begun]]()
        for each in begun:
            at, number = next(stage.turns), len(self.players)
            self.players.append(Player(each.seed, at, list(each.actions), list(each.seen[:-1])))
            dealt.setdefault(at, {})[number] = each
        refs = {at: stage.play(at, self.name, self.source, own) for at, own in dealt.items()}
        told = [self._played(at, ref, dealt[at]) for at, ref in refs.items()]
        for _, shown in told:
            for number, observation in shown.items():
                self.players[number].hear(observation)
        return told

    def _played(self, at: int, ref: Any, own: Mapping[int, Begun]) -> Any:
        """What an actor tells of episodes that it began, though it may be lost meanwhile."""
        told = self._stage.heard(at, ref, BEGIN_SECONDS)
        while told is None:
            again = self._stage.play(at, self.name, self.source, own)
            told = self._stage.heard(at, again, BEGIN_SECONDS)
        return told

    def _step(self, numbers: Sequence[int], actions: Sequence[str]) -> list[Observation]:
        dealt: dict[int, list[tuple[int, str]]] = {}
        for number, action in zip(numbers, actions, strict=True):
            dealt.setdefault(self.players[number].at, []).append((number, action))
        refs = {at: self._ask(at, own) for at, own in dealt.items()}
        found = dict[int, Observation]()
        for at, own in dealt.items():
            answers = self._stage.heard(at, refs[at])
            while answers is None:
                self._restore(at)
                answers = self._stage.heard(at, self._ask(at, own))
            self._stage.losses[at] = 0  # not before: what it plays may be what ends it
            for (number, action), shown in zip(own, answers, strict=True):
                self.players[number].actions.append(action)
                self.players[number].hear(shown)
                found[number] = shown
        return [found[number] for number in numbers]

    def _ask(self, at: int, own: Sequence[tuple[int, str]]) -> Any:
        numbers, actions = zip(*own, strict=True)
        return self._stage.actors[at].step.remote(self.name, list(numbers), list(actions))

    def _restore(self, at: int) -> None:
        """Begin anew what an actor has lost, up to where it was."""
        own = {
            number: player.begun()
            for number, player in enumerate(self.players)
            if player.at == at and not player.over
        }
        self._played(at, self._stage.play(at, self.name, self.source, own), own)


def _in_order(told: Sequence[tuple[Facts, Mapping[int, Observation]]]) -> list[Observation]:
    shown = dict(pair for _, own in told for pair in own.items())
    return [shown[number] for number in sorted(shown)]


class SharedStage(NamedTuple):
    """A stage of several processes, of which the first has it."""

    stage: Stage | None
    ranks: Ranks

    def play(self, source: EnvironmentSource, seeds: Sequence[int]) -> RayEpisodes:
        """Begin episodes."""
        return RayEpisodes(self.stage, self.ranks.from_first, source, seeds)

    def close(self) -> None:
        """End the actors."""
        if self.stage is not None:
            self.stage.close()


def open_stage(
    settings: RaySettings, source: EnvironmentSource | None, ranks: Ranks
) -> SharedStage | None:
    """Where episodes are played on Ray; None where there is none, or it is not to.

    Raises UserError.
    """
    if not settings.address or not settings.num_environments or source is None:
        return None
    stages: list[Stage] = []
    ranks.from_first(lambda: stages.append(Stage(settings)))
    return SharedStage(stages[0] if stages else None, ranks)
