"""Play every drawn episode several times, turn by turn, all episodes at once."""

import itertools
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch

from strop.batch import Batch
from strop.errors import UserError
from strop.part import Draw, require
from strop.rollout._episode import Episode, Seat, SeatLimits
from strop.rollout.assemble import (
    COLUMNS,
    TURN_COLUMNS,
    assemble_turns,
    with_contexts,
    with_turns,
)
from strop.rollout.base import SamplingFields
from strop.rollout.commands import Fork, Strategy, Submit
from strop.rollout.listen import Heard, Start, converse
from strop.services import Episodes, Log, Sampling, Texts

PLAYER_COLUMNS = ("player_B", "role_B", "episode_B")


@dataclass(frozen=True)
class PlayTurns(SamplingFields):
    """The policy learns from episodes: it acts, the environment answers, until the end.

        sequence = observation_0 action_0 observation_1 action_1 ...
        token of an action ~ softmax(logits / temperature), cut by top_k, top_p, min_p

    Of several players the policy plays all, each in a rollout of its own with what that player saw
    and did; episode_B links them, and rollouts of one prompt and one role form a group.

    Reads: draws.   Writes: the token, turn, rollout and prompt tables, player_B, episode_B and what
    the environment said of each turn.
    Source: none; rollouts over turns as in arXiv 2505.10978 (section 4), self-play 2510.15414.
    Differs from the source: one growing context, where its prompt is written anew each turn, unless
    the environment rewrites.
    Nearest part: sample_independently; equal to it for episodes of one turn and player.
    Edges: max_tokens is of all of a player's actions; truncated is an episode cut by the limit of
    turns, tokens or context, or by the environment, never one that is done; what follows the last
    action is not in the sequence, nor a player who never acted. A reminder follows observations
    from the second turn on; an episode that has used max_turns gets `extension` more, once
    (arXiv 2510.16786). draw_P is draw * roles + role.
    """

    writes: ClassVar[tuple[str, ...]] = (*COLUMNS, *TURN_COLUMNS, *PLAYER_COLUMNS)
    needs_environment: ClassVar[bool] = True
    # Most actions of a player; 0: the environment's. Default: ours (environments know).
    max_turns: int = 0
    # Most tokens of an action; 0: the environment's. Default: ours (environments know).
    max_action_tokens: int = 0
    # Turns granted, once, to an episode that is not over at max_turns. Default: ours (none).
    extension: int = 0
    # Text after each observation; {left} in it is the turns left. Default: ours (none).
    reminder: str = ""
    # Turns, counted from 1, whose observations have the reminder, the first never; none: all.
    # Default: ours (arXiv 2510.07777 reminds at 4 and 7).
    reminder_turns: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "max_turns", low=0)
        require(self, "max_action_tokens", low=0)
        require(self, "extension", low=0)
        if any(turn <= 0 for turn in self.reminder_turns):
            raise UserError("play_turns.reminder_turns are turns, counted from 1")

    def plain(self) -> "PlayTurns":
        """Itself."""
        return self

    def new_tokens(self, usual: int, environment: Any = None) -> tuple[int, int]:
        """Tokens of an action, and of all of a player's; the environment's where it has no own."""
        if environment is None:
            return super().new_tokens(usual)
        action = self.max_action_tokens or environment.max_tokens
        return action, self.max_tokens or self.turns(environment.max_turns) * action

    def turns(self, max_turns: int) -> int:
        """Most actions of a player in an environment that has max_turns."""
        return (self.max_turns or max_turns) + self.extension

    def __call__(
        self, draws: tuple[Draw, ...], texts: Texts, sampling: Sampling, episodes: Episodes,
        log: Log, rng: torch.Generator,
    ) -> Strategy:  # fmt: skip
        uids = [draw.uid for draw in draws for _ in range(draw.num_rollouts)]
        world = episodes.begin_episodes(uids)
        with closing(world):
            shape = (len(uids), max(len(world.roles), 1))
            seeds = torch.randint(2**62, shape, generator=rng).tolist()
            limits = SeatLimits.of(sampling, self.turns(world.max_turns), self.extension)
            games = [Episode(n, uids[n], own, world.roles) for n, own in enumerate(seeds)]
            for game, observation in zip(games, world.reset(), strict=True):
                given = texts.prompt_ids(game.uid)
                seat, role = game.turn_to(observation), game.role_of(observation)
                seat.show(observation, given, role, world.rewrites)

            def go_on(ended: Mapping[int, Heard]) -> Mapping[int, Start]:
                acted = {n: h for n, h in ended.items() if not games[n].lost(h.events)}
                playing = [games[number] for number in acted]
                answers = _act(playing, list(acted.values()), episodes, world)
                commands = [
                    self._go_on(game, answer, sampling, episodes, limits, world.rewrites)
                    for game, answer in zip(playing, answers, strict=True)
                ]
                return {n: c for n, c in zip(acted, commands, strict=True) if c is not None}

            room = min(limits.answer_tokens, limits.episode_tokens)
            alone = world.rewrites
            starts = {game.number: self._submit(sampling, game.seat, room, alone) for game in games}
            yield from converse(starts, go_on)
        return _written(draws, games, world, log), None

    def _go_on(
        self, episode: Episode, observation: Any, sampling: Sampling, episodes: Episodes,
        limits: SeatLimits, opens: bool,
    ) -> Start | None:  # fmt: skip
        """The next turn of an episode whose last action is done; None: it is over."""
        if observation.done:
            return None
        seat = episode.turn_to(observation)
        before = len(seat.ids)
        observation = self._with_reminder(observation, len(seat.turns), limits)
        given = seat.given(episodes, observation.text, opens)
        room = seat.room(limits, len(given), opens)
        if observation.truncated or room == 0:
            episode.cut()
            return None
        seat.show(observation, given, episode.role_of(observation), opens)
        if sampling.can_fork and seat.request >= 0 and not opens:
            return Fork(seat.request, before, tuple(given), {"max_tokens": room})
        return self._submit(sampling, seat, room, opens)

    def _with_reminder(self, observation: Any, played: int, limits: SeatLimits) -> Any:
        """An observation after `played` turns of a seat, as it is shown."""
        wanted = played > 0 and (not self.reminder_turns or played + 1 in self.reminder_turns)
        left = limits.left(played)
        if not self.reminder or not wanted or left == 0:
            return observation
        text = observation.text + self.reminder.replace("{left}", str(left))
        return replace(observation, text=text)

    def _submit(self, sampling: Sampling, seat: Seat, room: int, alone: bool) -> Submit:
        keep = sampling.can_fork and not alone
        return Submit(self.request(sampling, seat.ids, seat.seed, room, keep=keep))


def _act(
    games: Sequence[Episode], heard: Sequence[Heard], episodes: Episodes, world: Any
) -> list[Any]:
    """Give the actions that have ended to the environments, all in one step; their answers."""
    ids = []
    for game, (number, events) in zip(games, heard, strict=True):
        game.seat.request = number
        ids.append(game.seat.action_ids(events))
    actions = episodes.action_texts(ids)
    answers: list[Any] = world.step([game.number for game in games], actions)
    for game, action, answer in zip(games, actions, answers, strict=True):
        game.judge(action, answer)
    return answers


def _written(draws: tuple[Draw, ...], episodes: list[Episode], world: Any, log: Log) -> Batch:
    """The batch: the seats of a draw by role, then by player, then by episode."""
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
    log.log_rollouts("turns", {seat.seed: seat.said for seat in seats})
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
