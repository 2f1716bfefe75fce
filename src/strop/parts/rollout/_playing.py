"""What strategies that play episodes share: limits, one turn after another, the batch of them."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch

from strop.batch.batch import Batch
from strop.method.part import Draw, name_of, require
from strop.method.services import Episodes, Log, Sampling, Texts
from strop.parts.rollout._episode import Episode, Seat, SeatLimits
from strop.parts.rollout.assemble import (
    COLUMNS,
    TURN_COLUMNS,
    assemble_turns,
    with_contexts,
    with_turns,
)
from strop.parts.rollout.base import SamplingFields
from strop.parts.rollout.commands import Fork, Strategy, Submit
from strop.parts.rollout.listen import Heard, Start, converse
from strop.support.errors import UserError

PLAYED = (*COLUMNS, *TURN_COLUMNS, "player_B", "role_B", "episode_B")


class Scene(NamedTuple):
    """Episodes that are played together: the world that they are in, and what they are played with.

    room: most tokens of a first action.
    """

    texts: Texts
    sampling: Sampling
    episodes: Episodes
    world: Any
    limits: SeatLimits

    @property
    def room(self) -> int:
        return min(self.limits.answer_tokens, self.limits.episode_tokens)


@dataclass(frozen=True)
class PlayingFields(SamplingFields):
    """Limits of an episode, and how a strategy goes on after an action; see `SamplingFields`."""

    needs_environment: ClassVar[bool] = True

    # Most actions of a player; 0: the environment's. Default: ours (environments know).
    max_turns: int = 0
    # Most tokens of an action; 0: the environment's. Default: ours (environments know).
    max_action_tokens: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "max_turns", low=0)
        require(self, "max_action_tokens", low=0)

    def new_tokens(self, usual: int, environment: Any = None) -> tuple[int, int]:
        """Tokens of an action, and of all of a player's; the environment's where it has no own."""
        if environment is None:
            return super().new_tokens(usual)
        action = self.max_action_tokens or environment.max_tokens
        return action, self.max_tokens or self.turns(environment.max_turns) * action

    def turns(self, max_turns: int) -> int:
        """Most actions of a player in an environment that has max_turns."""
        return self.max_turns or max_turns

    @contextmanager
    def opened(
        self, uids: Sequence[int], texts: Texts, sampling: Sampling, episodes: Episodes,
        extension: int = 0,
    ) -> Iterator[Scene]:  # fmt: skip
        """An episode for each of the uids, closed at the end. extension: see SeatLimits."""
        with closing(episodes.begin_episodes(uids)) as world:
            limits = SeatLimits.of(sampling, self.turns(world.max_turns), extension)
            yield Scene(texts, sampling, episodes, world, limits)

    def shown(self, observation: Any, played: int, limits: SeatLimits) -> Any:
        """An observation after `played` turns of a seat, as the policy sees it."""
        return observation

    def submit(
        self, sampling: Sampling, seat: Seat, room: int, alone: bool = False, **asked: Any
    ) -> Submit:
        """The next action of a seat, as a request of its own. alone: nothing goes on from it;
        asked: further fields of the request.
        """
        keep = sampling.can_fork and not alone
        return Submit(self.request(sampling, seat.ids, seat.seed, room, keep=keep, **asked))

    def go_on(
        self, episode: Episode, observation: Any, scene: Scene, opens: bool = False, **asked: Any
    ) -> Start | None:
        """The next turn of an episode whose last action is done; None: it is over."""
        if observation.done:
            return None
        seat = episode.turn_to(observation)
        before = len(seat.ids)
        observation = self.shown(observation, len(seat.turns), scene.limits)
        given = seat.given(scene.episodes, observation.text, opens)
        room = seat.room(scene.limits, len(given), opens)
        if observation.truncated or room == 0:
            episode.cut()
            return None
        seat.show(observation, given, episode.role_of(observation), opens)
        if scene.sampling.can_fork and seat.request >= 0 and not opens:
            return Fork(seat.request, before, tuple(given), {"max_tokens": room})
        return self.submit(scene.sampling, seat, room, opens, **asked)

    def begin(
        self, uids: Sequence[int], seeds: Sequence[Sequence[int]], scene: Scene
    ) -> list[Episode]:
        """All of the world's episodes, at their first turns."""
        world = scene.world
        games = [Episode(n, uids[n], own, world.roles) for n, own in enumerate(seeds)]
        for game, observation in zip(games, world.reset(), strict=True):
            given = scene.texts.prompt_ids(game.uid)
            seat, role = game.turn_to(observation), game.role_of(observation)
            seat.show(observation, given, role, world.rewrites)
        return games

    def play(
        self, games: Mapping[int, Episode], starts: Mapping[int, Start], scene: Scene
    ) -> Strategy:
        """Play episodes to their ends, each from its next action on."""

        def follow(ended: Mapping[int, Heard]) -> Mapping[int, Start]:
            acted = {n: h for n, h in ended.items() if not games[n].lost(h.events)}
            playing = [games[number] for number in acted]
            answers = act(playing, list(acted.values()), scene)
            commands = [
                self.go_on(game, answer, scene, scene.world.rewrites)
                for game, answer in zip(playing, answers, strict=True)
            ]
            return {n: c for n, c in zip(acted, commands, strict=True) if c is not None}

        yield from converse(starts, follow)

    def play_all(
        self, uids: Sequence[int], seeds: Sequence[Sequence[int]], scene: Scene
    ) -> Strategy:
        """Play all of the world's episodes from their beginnings; returns them."""
        games = self.begin(uids, seeds, scene)
        room, alone = scene.room, scene.world.rewrites
        starts = {g.number: self.submit(scene.sampling, g.seat, room, alone) for g in games}
        yield from self.play(dict(enumerate(games)), starts, scene)
        return games


@dataclass(frozen=True)
class PlayingAlone(PlayingFields):
    """Limits of an episode of one player with one growing context."""

    def new_tokens(self, usual: int, environment: Any = None) -> tuple[int, int]:
        """As ever. Raises UserError for an environment of several players, or that rewrites."""
        many = environment is not None and len(environment.roles) > 1
        if many or (environment is not None and environment.rewrites):
            kind = "has several players" if many else "writes its context anew each turn"
            raise UserError(
                f"rollout: {name_of(self)} goes on from the middle of an episode, which needs one "
                f"player and one growing context, and the environment {kind}: take "
                "rollout=play_turns or another environment"
            )
        return super().new_tokens(usual, environment)


def act(games: Sequence[Episode], heard: Sequence[Heard], scene: Scene) -> list[Any]:
    """Give the actions that have ended to the environments, all in one step; their answers."""
    if not games:
        return []
    ids = []
    for game, (number, events) in zip(games, heard, strict=True):
        game.seat.request = number
        ids.append(game.seat.action_ids(events))
    actions = scene.episodes.action_texts(ids)
    answers: list[Any] = scene.world.step([game.number for game in games], actions)
    for game, action, answer in zip(games, actions, answers, strict=True):
        game.judge(action, answer)
    return answers


def written(draws: Sequence[Draw], episodes: Sequence[Episode], world: Any, log: Log) -> Batch:
    """The batch: the seats of a draw by role, then by player, then by episode.

    A draw has as many of the episodes, in their order, as it has rollouts.
    """
    roles = world.roles
    known = sorted(set(roles)) or [0]
    groups, seats = [], list[Seat]()
    begun = {seat.seed: next(iter(e.seats.values())).seed for e in episodes
             for seat in e.seats.values()}  # fmt: skip
    played = iter(episodes)
    for draw in draws:
        own = list(itertools.islice(played, draw.num_rollouts))
        for place, role in enumerate(known):
            players = [p for p, theirs in enumerate(roles) if theirs == role] or [0]
            found = [e.seats[p] for p in players for e in own if p in e.seats]
            number = draw.draw * len(known) + place
            groups += [draw._replace(num_rollouts=len(found), draw=number)] if found else []
            seats += found
    log_turns(log, seats)
    if roles:
        log.log_rollouts("player", {seat.seed: seat.player for seat in seats})
        log.log_rollouts("episode", begun)
    rollouts = [seat.turns for seat in seats]
    uids = [seat.seed for seat in seats]
    batch = assemble_turns(groups, uids, rollouts, [seat.truncated for seat in seats])
    if world.rewrites:
        batch = with_contexts(batch, rollouts)
    return with_turns(batch, rollouts).set(
        player_B=torch.tensor([seat.player for seat in seats]),
        role_B=torch.tensor([roles[seat.player] if roles else 0 for seat in seats]),
        episode_B=torch.tensor([begun[uid] for uid in uids]),
    )


def log_turns(log: Log, seats: Sequence[Seat]) -> None:
    """Keep what was shown and done in each turn, for the table of rollouts."""
    said: Mapping[int, Any] = {seat.seed: seat.said for seat in seats}
    log.log_rollouts("turns", said)
