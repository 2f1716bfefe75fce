"""Shared by strategies that play episodes: limits, the loop over turns, and the batch."""

import asyncio
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from strop.batch.batch import Batch
from strop.engines.asynchronous import AsyncEngine, gather
from strop.engines.base import Answer, Request
from strop.method.part import Draw, name_of, require
from strop.method.services import Episodes, Log, Sampling, Texts
from strop.parts.rollout._episode import Episode, Seat, SeatLimits
from strop.parts.rollout.base import (
    COLUMNS,
    TURN_COLUMNS,
    SamplingFields,
    assemble_turns,
    with_contexts,
    with_turns,
)
from strop.support.errors import UserError
from strop.support.exits import Exit

PLAYED = (*COLUMNS, *TURN_COLUMNS, "player_B", "role_B", "episode_B")


@dataclass
class Scene:
    """Episodes that are played together: their environment and the resources to play them.

    prepared: changes an action before the environment gets it. openings: tokens in place of the
    prompt's own, by uid. room: most tokens of a first action. most_turns: of a player, by the
    episode's prompt, where its draw carries a limit of its own.
    """

    engine: AsyncEngine
    texts: Texts
    sampling: Sampling
    episodes: Episodes
    world: Any
    limits: SeatLimits
    prepared: Callable[[Episode, Any], Any] = lambda game, action: action
    openings: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    waiting: list[tuple[Episode, Answer, asyncio.Future[Any]]] = field(default_factory=list)
    most_turns: Mapping[int, int] = field(default_factory=dict)

    def limits_of(self, episode: Episode) -> SeatLimits:
        """The options of each player of an episode."""
        turns = self.most_turns.get(episode.uid, self.limits.turns)
        return self.limits if turns >= self.limits.turns else self.limits.shorter(turns)

    @property
    def room(self) -> int:
        return min(self.limits.answer_tokens, self.limits.episode_tokens)

    @property
    def opens(self) -> bool:
        """Whether a rollout may have several contexts, so that its first turn opens one."""
        return bool(self.world.rewrites or self.episodes.drops_thoughts)

    async def act(self, game: Episode, answer: Answer) -> Any:
        """Give an action to the environment, in one call with all others that are ready; returns
        the next observation. One that is asynchronous steps each episode by itself.
        """
        if self.world.awaited:
            (action,) = self.episodes.action_texts([game.seat.action_ids(answer.events)])
            sent = self.prepared(game, action)
            observation = await self.world.step_alone(game.number, sent)
            game.judge(action, observation)
            return observation
        future = asyncio.get_running_loop().create_future()
        self.waiting.append((game, answer, future))
        if len(self.waiting) == 1:
            await self.engine.settled()
            waiting, self.waiting = sorted(self.waiting, key=lambda each: each[0].number), []
            self._act(waiting)
        return await future

    def _act(self, waiting: Sequence[tuple[Episode, Answer, asyncio.Future[Any]]]) -> None:
        ids = [game.seat.action_ids(answer.events) for game, answer, _ in waiting]
        actions = self.episodes.action_texts(ids)
        sent = [self.prepared(each[0], a) for each, a in zip(waiting, actions, strict=True)]
        shown = self.world.step([game.number for game, _, _ in waiting], sent)
        for (game, _, future), action, observation in zip(waiting, actions, shown, strict=True):
            game.judge(action, observation)
            future.set_result(observation)


@dataclass(frozen=True)
class PlayingFields(SamplingFields):
    """Limits of an episode, and how a strategy continues after an action; see `SamplingFields`."""

    needs_environment: ClassVar[bool] = True

    # Most actions of a player; 0: the environment's. Default: ours (environments know).
    max_turns: int = 0
    # Most tokens of an action; 0: the environment's. Default: ours (environments know).
    max_action_tokens: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "max_turns", "max_action_tokens", low=0)

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
        self, uids: Sequence[int], draws: Sequence[Draw], engine: AsyncEngine, texts: Texts,
        sampling: Sampling, episodes: Episodes, extension: int = 0,
    ) -> Iterator[Scene]:  # fmt: skip
        """An episode for each of the uids, closed at the end. draws: whose they are, with their
        limits of turns. extension: see SeatLimits.
        """
        own = {d.uid: d.columns["max_turns"] for d in draws if "max_turns" in d.columns}
        with closing(episodes.begin_episodes(uids)) as world:
            limits = SeatLimits.of(sampling, self.turns(world.max_turns), extension)
            yield Scene(engine, texts, sampling, episodes, world, limits, most_turns=own)

    def shown(self, observation: Any, played: int, limits: SeatLimits) -> Any:
        """An observation after `played` turns of a seat, as the policy sees it."""
        return observation

    def action(
        self, sampling: Sampling, seat: Seat, room: int, alone: bool = False, **asked: Any
    ) -> Request:
        """The request for the next action of a seat. alone: nothing continues from it; asked:
        further fields of the request.
        """
        weights = seat.turns[-1].player.weights
        return self.request(
            sampling, seat.ids, seat.seed_now, room, keep=not alone, weights=weights, **asked
        )

    def next_turn(
        self, episode: Episode, observation: Any, scene: Scene, opens: bool = False, **asked: Any
    ) -> Request | None:
        """The next turn of an episode whose last action is done; None: it is over."""
        if observation.done:
            return None
        if observation.truncated:
            episode.cut(observation.exit or Exit.TURN_LIMIT, observation.why)
            return None
        seat, limits = episode.turn_to(observation), scene.limits_of(episode)
        observation = self.shown(observation, len(seat.turns), limits)
        given: tuple[int, ...] = ()
        if scene.episodes.drops_thoughts and not opens:
            given = seat.rewritten(scene.episodes, observation) if seat.turns else ()
            opens = bool(given) or not seat.turns
        given = given or seat.given(scene.episodes, observation, opens)
        room = seat.room(limits, len(given), opens)
        if room == 0:
            used_up = len(seat.turns) >= limits.turns
            episode.cut(Exit.TURN_LIMIT if used_up else Exit.TOKEN_LIMIT)
            return None
        role = episode.role_of(observation)
        seat.show(observation, given, role, opens, episode.players(role))
        return self.action(scene.sampling, seat, room, scene.world.rewrites, **asked)

    def begin(
        self, uids: Sequence[int], seeds: Sequence[Sequence[int]], scene: Scene
    ) -> list[Episode]:
        """All episodes of the environment, at their first turns."""
        world, opens = scene.world, scene.opens
        games = [
            Episode(n, uids[n], own, world.roles, players=scene.sampling.players(own[0]))
            for n, own in enumerate(seeds)
        ]
        for game, observation in zip(games, world.reset(), strict=True):
            ids = scene.openings.get(game.uid) or scene.texts.prompt_ids(game.uid)
            game.started(observation, ids, opens)
        return games

    def first_turn(self, game: Episode, scene: Scene) -> Request | None:
        """The request for the first action of an episode; None where it could not begin."""
        rewrites = scene.world.rewrites
        if game.exit is not None:
            return None
        return self.action(scene.sampling, game.seat, scene.room, rewrites)

    async def play(self, game: Episode, request: Request | None, scene: Scene) -> None:
        """Play an episode to its end, from its next action on."""
        while request is not None:
            answer = await scene.engine.generate(request)
            if game.lost(answer.events):
                return
            observation = await scene.act(game, answer)
            request = self.next_turn(game, observation, scene, scene.world.rewrites)

    async def play_all(
        self, uids: Sequence[int], seeds: Sequence[Sequence[int]], scene: Scene
    ) -> list[Episode]:
        """Play all episodes of the environment from their start; returns them."""
        games = self.begin(uids, seeds, scene)
        await gather(self.play(game, self.first_turn(game, scene), scene) for game in games)
        return games


@dataclass(frozen=True)
class PlayingAlone(PlayingFields):
    """Limits of an episode of one player with one growing context."""

    @contextmanager
    def opened(
        self, uids: Sequence[int], draws: Sequence[Draw], engine: AsyncEngine, texts: Texts,
        sampling: Sampling, episodes: Episodes, extension: int = 0,
    ) -> Iterator[Scene]:  # fmt: skip
        """As in the base class. Raises UserError if thoughts of earlier turns are dropped."""
        if episodes.drops_thoughts:
            raise UserError(
                f"data.thinking=template: {name_of(self)} continues from the middle of an episode, "
                "which needs one growing context: take rollout=play_turns or data.thinking=all"
            )
        with super().opened(uids, draws, engine, texts, sampling, episodes, extension) as scene:
            yield scene

    def new_tokens(self, usual: int, environment: Any = None) -> tuple[int, int]:
        """As in the base class. Raises UserError for an environment that has several players, or
        that rewrites.
        """
        many = environment is not None and len(environment.roles) > 1
        if many or (environment is not None and environment.rewrites):
            kind = "has several players" if many else "rewrites its context each turn"
            raise UserError(
                f"rollout: {name_of(self)} continues from the middle of an episode, which needs "
                f"one player and one growing context, and the environment {kind}: take "
                "rollout=play_turns or another environment"
            )
        return super().new_tokens(usual, environment)


def written(draws: Sequence[Draw], episodes: Sequence[Episode], world: Any, log: Log) -> Batch:
    """The batch: the seats of a draw by role, then by player, then by episode.

    A draw has as many of the episodes, in their order, as it has rollouts. Seats that only
    weights that are not trained have played are left out.
    """
    roles = world.roles
    known = sorted(set(roles)) or [0]
    groups, seats, ends = [], list[Seat](), list[Episode]()
    started = {seat.seed: next(iter(e.seats.values())).seed for e in episodes
             for seat in e.seats.values()}  # fmt: skip
    played = iter(episodes)
    for draw in draws:
        own = list(itertools.islice(played, draw.num_rollouts))
        for place, role in enumerate(known):
            players = [p for p, theirs in enumerate(roles) if theirs == role] or [0]
            found = [
                (e.seats[p], e) for p in players for e in own
                if p in e.seats and e.seats[p].learns
            ]  # fmt: skip
            number = draw.draw * len(known) + place
            groups += [draw._replace(num_rollouts=len(found), draw=number)] if found else []
            seats += [seat for seat, _ in found]
            ends += [episode for _, episode in found]
    log_turns(log, seats)
    exits = [episode.exit or Exit.DONE for episode in ends]
    if failures := {s.seed: e.why for s, e in zip(seats, ends, strict=True) if e.why}:
        log.log_rollouts("exit_why", failures)
    if roles:
        log.log_rollouts("player", {seat.seed: seat.player for seat in seats})
        log.log_rollouts("episode", started)
    log_players(log, seats, ends)
    rollouts = [seat.turns for seat in seats]
    uids = [seat.seed for seat in seats]
    batch = assemble_turns(groups, uids, rollouts, [seat.truncated for seat in seats])
    if world.rewrites or any(turns[0].opens for turns in rollouts):
        batch = with_contexts(batch, rollouts)
    return with_turns(batch, rollouts).set(
        player_B=torch.tensor([seat.player for seat in seats]),
        role_B=torch.tensor([roles[seat.player] if roles else 0 for seat in seats]),
        episode_B=torch.tensor([started[uid] for uid in uids]),
        exit_B=torch.tensor([int(exit) for exit in exits]),
    )


def log_players(log: Log, seats: Sequence[Seat], ends: Sequence[Episode]) -> None:
    """Log whose adapter played each rollout and, of players that are not trained, who they were,
    what they did and, where nothing failed, whether this side earned more.
    """
    if not any(turn.player.weights for seat in seats for turn in seat.turns):
        return
    log.log_rollouts("adapter", {seat.seed: names_of([seat]) for seat in seats})
    against = {
        seat.seed: (episode, others)
        for seat, episode in zip(seats, ends, strict=True)
        if (others := [each for each in episode.seats.values() if not each.learns])
    }
    log.log_rollouts("opponents", {
        uid: [{"player": each.player, "adapter": names_of([each]), "turns": each.turn_log}
              for each in others]
        for uid, (_, others) in against.items()
    })  # fmt: skip
    log.log_rollouts("opponent", {uid: names_of(others) for uid, (_, others) in against.items()})
    log.log_rollouts("score", {
        uid: score(episode, others)
        for uid, (episode, others) in against.items() if not episode.unscored
    })  # fmt: skip


def tokens_of_others(episodes: Sequence[Episode]) -> int:
    """Number of tokens in the actions of weights that are not trained."""
    return sum(
        len(event.ids)
        for episode in episodes
        for seat in episode.seats.values()
        for turn in seat.turns
        if turn.player.number < 0
        for event in turn.events
    )


def names_of(seats: Sequence[Seat]) -> str:
    """The weights that played these seats, each once."""
    return ", ".join(dict.fromkeys(turn.player.weights for seat in seats for turn in seat.turns))


def score(episode: Episode, others: Sequence[Seat]) -> float:
    """1 where the seats that learn earned more on average than others, 0 where less, else 1/2."""
    own = [seat.earned for seat in episode.seats.values() if seat.learns]
    theirs = [seat.earned for seat in others]
    gap = sum(own) / len(own) - sum(theirs) / len(theirs)
    return 0.5 + 0.5 * ((gap > 0) - (gap < 0))


def log_turns(log: Log, seats: Sequence[Seat]) -> None:
    """Log what was shown and done in each turn, for the table of rollouts."""
    turns: Mapping[int, Any] = {seat.seed: seat.turn_log for seat in seats}
    log.log_rollouts("turns", turns)
