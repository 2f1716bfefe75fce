"""Play every drawn episode several times, turn by turn, all episodes at once."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch

from strop.engines.asynchronous import AsyncEngine
from strop.method.part import Draw, require
from strop.method.services import Episodes, Log, Sampling, Texts
from strop.parts.rollout._episode import SeatLimits
from strop.parts.rollout._playing import PLAYED, PlayingFields, tokens_of_others, written
from strop.parts.rollout.base import OF_OTHERS, Rollouts
from strop.support.errors import UserError


@dataclass(frozen=True)
class PlayTurns(PlayingFields):
    """The policy learns from episodes: it acts, the environment answers, until the end.

        sequence = observation_0 action_0 observation_1 action_1 ...
        token of an action ~ softmax(logits / temperature), cut by top_k, top_p, min_p

    Of several players the policy plays all, each in a rollout of its own with what that player saw
    and did; episode_B links them, and rollouts of one prompt and one role form a group. Roles may
    have weights of their own (`roles.play`); those that are not trained have no rollout.

    Reads: draws (their max_turns, if any).   Writes: the token, turn, rollout and prompt tables,
    player_B, episode_B and what the environment said of each turn.
    Source: none; rollouts over turns as in arXiv 2505.10978 (section 4), self-play 2510.15414.
    Differs from the source: one growing context, where its prompt is rewritten each turn, unless
    the environment rewrites.
    Nearest part: sample_independently; equal to it for episodes of one turn and player.
    Edges: max_tokens is of all of a player's actions; truncated is an episode cut by the limit of
    turns, tokens or context, or by the environment, never one that is done; what follows the last
    action is not in the sequence, nor a player who never acted. A reminder follows observations
    from the second turn on; an episode that has used max_turns gets `extension` more, once
    (arXiv 2510.16786). draw_P is draw * roles + role.
    """

    writes: ClassVar[tuple[str, ...]] = PLAYED
    by_draw: ClassVar[bool] = True
    knows_roles: ClassVar[bool] = True
    # Turns granted, once, to an episode that is not over at max_turns. Default: ours (none).
    extension: int = 0
    # Text after each observation; {left} in it is the turns left. Default: ours (none).
    reminder: str = ""
    # Turns, counted from 1, whose observations have the reminder, the first never; none: all.
    # Default: ours (arXiv 2510.07777 reminds at 4 and 7).
    reminder_turns: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "extension", low=0)
        if any(turn <= 0 for turn in self.reminder_turns):
            raise UserError("play_turns.reminder_turns are turns, counted from 1")

    def turns(self, max_turns: int) -> int:
        """Most actions of a player in an environment that has max_turns."""
        return super().turns(max_turns) + self.extension

    def shown(self, observation: Any, played: int, limits: SeatLimits) -> Any:
        """An observation after `played` turns of a seat, with its reminder."""
        wanted = played > 0 and (not self.reminder_turns or played + 1 in self.reminder_turns)
        left = limits.left(played)
        if not self.reminder or not wanted or left == 0:
            return observation
        reminder = self.reminder.replace("{left}", str(left))
        *answers, last = observation.answers or (None,)
        if last is not None:
            answers.append(replace(last, text=f"{last.text}\n{reminder}"))
        return replace(observation, text=observation.text + reminder, answers=tuple(answers))

    async def __call__(
        self, draws: tuple[Draw, ...], engine: AsyncEngine, texts: Texts, sampling: Sampling,
        episodes: Episodes, log: Log, rng: torch.Generator,
    ) -> Rollouts:  # fmt: skip
        uids = [draw.uid for draw in draws for _ in range(draw.num_rollouts)]
        with self.opened(uids, draws, engine, texts, sampling, episodes, self.extension) as scene:
            shape = (len(uids), max(len(scene.world.roles), 1))
            seeds = torch.randint(2**62, shape, generator=rng).tolist()
            games = await self.play_all(uids, seeds, scene)
        metrics = {OF_OTHERS: number} if (number := tokens_of_others(games)) else {}
        return written(draws, games, scene.world, log), None, metrics
