"""One episode on its way: its turns so far, its tokens, and what may still be played."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from strop.rollout.assemble import Turn
from strop.rollout.engines.base import Event


@dataclass(frozen=True)
class Limits:
    """Most turns of an episode, most tokens of an action and of all actions, of the sequence.

    `first_turns` of the turns are all that the policy is told of until they are used.
    """

    turns: int
    action_tokens: int
    tokens: int
    context: int
    first_turns: int = 0  # 0: all of them

    def left(self, played: int) -> int:
        """Turns left after `played`, as far as the policy is told."""
        first = self.first_turns or self.turns
        return (first if played < first else self.turns) - played


@dataclass
class Episode:
    """A rollout that is being played. `said` is what each turn showed, heard and was worth."""

    number: int  # its place among the episodes that are played together
    seed: int  # of its draws
    turns: list[Turn] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)  # the sequence
    used: int = 0  # tokens of the actions
    truncated: bool = False
    said: list[dict[str, Any]] = field(default_factory=list)

    def show(self, observation: Any, given: Sequence[int]) -> None:
        """Begin a turn with an observation and its tokens."""
        key = state_key(observation.state) if observation.state else self._history_key(observation)
        self.turns.append(Turn(given, [], key, observation.role))
        self.said.append({"observation": observation.text})
        self.ids += given

    def action_ids(self, events: Sequence[Event]) -> list[int]:
        """End the turn's action; its token ids."""
        self.turns[-1].events = events
        ids = [id for event in events for id in event.ids]
        self.ids += ids
        self.used += len(ids)
        return ids

    def judge(self, action: str, observation: Any) -> None:
        """What came of the action."""
        turn = self.turns[-1]
        turn.reward, turn.done = float(observation.reward), bool(observation.done)
        turn.valid, turn.match = bool(observation.valid), bool(observation.match)
        turn.action = state_key(action.strip())
        self.said[-1] |= {"action": action, "reward": turn.reward, "valid": turn.valid}

    def room(self, limits: Limits, num_given: int) -> int:
        """Most tokens of the next action after `num_given` more tokens; 0: none may follow."""
        if len(self.turns) >= limits.turns:
            return 0
        left = min(limits.tokens - self.used, limits.context - len(self.ids) - num_given)
        return max(min(limits.action_tokens, left), 0)

    def _history_key(self, observation: Any) -> int:
        """The key of everything that was shown and done before, where no state is given."""
        before = f"{self.turns[-1].state}|{self.said[-1]['action']}|" if self.turns else ""
        return state_key(before + observation.text)


def state_key(text: str) -> int:
    """A 63-bit number for a text, the same on every machine."""
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
