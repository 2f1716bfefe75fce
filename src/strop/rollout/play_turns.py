"""Play every drawn episode several times, turn by turn, all episodes at once."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch

from strop.errors import UserError
from strop.part import Draw, require
from strop.rollout._episode import Episode, Limits
from strop.rollout._sampling_fields import SamplingFields
from strop.rollout.assemble import COLUMNS, TURN_COLUMNS, assemble_turns, with_turns
from strop.rollout.commands import Command, Fork, Strategy, Submit
from strop.rollout.engines.base import Event, Request


@dataclass(frozen=True)
class PlayTurns(SamplingFields):
    """The policy learns from episodes: it acts, the environment answers, until the end.

        sequence = observation_0 action_0 observation_1 action_1 ...
        token of an action ~ softmax(logits / temperature), cut by top_k, top_p, min_p

    Reads: draws.   Writes: the token, turn, rollout and prompt tables, reward_K, done_K, state_K,
    role_K, valid_K, match_K.
    Source: none; rollouts over turns as in arXiv 2505.10978 (section 4).
    Differs from the source: one growing context, where its prompt is written anew each turn.
    Nearest part: sample_independently; equal to it for episodes of one turn.
    Edges: max_tokens is of all actions together; truncated is an episode cut by the limit of
    turns, tokens or context, or by the environment, never one that is done; what follows the last
    action is not in the sequence; nothing lasts between steps. A reminder follows observations from
    the second turn on; an episode that has used max_turns gets `extension` more, once
    (arXiv 2510.16786).
    """

    writes: ClassVar[tuple[str, ...]] = (*COLUMNS, *TURN_COLUMNS)
    facts: ClassVar[frozenset[str]] = frozenset({"plays_turns"})
    # Most actions of an episode; 0: the environment's. Default: ours (environments know).
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

    def limits(self, max_turns: int, max_action_tokens: int, context: int = 0) -> Limits:
        """The limits of an environment where the part has none of its own."""
        first = self.max_turns or max_turns
        action = self.max_action_tokens or max_action_tokens
        turns = first + self.extension
        return Limits(turns, action, self.max_tokens or turns * action, context, first)

    def __call__(self, draws: tuple[Draw, ...], services: Any, rng: torch.Generator) -> Strategy:
        uids = [draw.uid for draw in draws for _ in range(draw.num_rollouts)]
        seeds = torch.randint(2**62, (len(uids),), generator=rng).tolist()
        world = services.begin_episodes(uids)
        limits = self.limits(world.max_turns, world.max_tokens, services.context)
        episodes = [Episode(number, seed) for number, seed in enumerate(seeds)]
        commands: list[Command] = []
        for episode, uid, observation in zip(episodes, uids, world.reset(), strict=True):
            episode.show(observation, services.prompt_ids(uid))
            room = min(limits.action_tokens, limits.tokens)
            commands.append(Submit(self._request(services, episode, room)))
        playing: dict[int, Episode] = {}
        heard: dict[int, list[Event]] = {}
        starting = episodes
        while starting or playing:
            numbers, events = yield commands
            playing |= zip(numbers, starting, strict=True)
            heard |= {number: [] for number in numbers}
            for event in events:
                heard[event.request].append(event)
            ended = {e.request: playing.pop(e.request) for e in events if e.ended}
            answers = _act(ended, heard, services, world)
            commands, starting = [], []
            for (number, episode), observation in zip(ended.items(), answers, strict=True):
                command = self._go_on(number, episode, observation, services, limits)
                if command is not None:
                    commands.append(command)
                    starting.append(episode)
        services.keep_turns({episode.seed: episode.said for episode in episodes})
        rollouts = [episode.turns for episode in episodes]
        batch = assemble_turns(draws, seeds, rollouts, [e.truncated for e in episodes])
        return with_turns(batch, rollouts), None

    def _go_on(
        self, number: int, episode: Episode, observation: Any, services: Any, limits: Limits
    ) -> Command | None:
        """The next turn of an episode whose request `number` has ended; None: it is over."""
        if observation.done:
            return None
        before = len(episode.ids)
        observation = self._with_reminder(observation, len(episode.turns), limits)
        given = services.observation_ids(observation.text, episode.ids[-1])
        room = episode.room(limits, len(given))
        if observation.truncated or room == 0:
            episode.truncated = True
            return None
        episode.show(observation, given)
        if services.can_fork:
            return Fork(number, before, tuple(given), {"max_tokens": room})
        return Submit(self._request(services, episode, room))

    def _with_reminder(self, observation: Any, played: int, limits: Limits) -> Any:
        """An observation after `played` turns, as it is shown."""
        wanted = not self.reminder_turns or played + 1 in self.reminder_turns
        left = limits.left(played)
        if not self.reminder or not wanted or left == 0:
            return observation
        text = observation.text + self.reminder.replace("{left}", str(left))
        return replace(observation, text=text)

    def _request(self, services: Any, episode: Episode, room: int) -> Request:
        keep = services.can_fork
        return self.request(services, episode.ids, episode.seed, room, keep=keep)


def _act(
    ended: Mapping[int, Episode], heard: Mapping[int, list[Event]], services: Any, world: Any
) -> list[Any]:
    """Give the actions that have ended to the environments, all in one step; their answers."""
    if not ended:
        return []
    ids = [episode.action_ids(heard[number]) for number, episode in ended.items()]
    actions = services.action_texts(ids)
    answers: list[Any] = world.step([episode.number for episode in ended.values()], actions)
    for episode, action, answer in zip(ended.values(), actions, answers, strict=True):
        episode.judge(action, answer)
    return answers
