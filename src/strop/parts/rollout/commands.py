"""The commands that a strategy yields; each names the answer that the strategy is sent."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from strop.engines.base import Event, Request

if TYPE_CHECKING:
    from strop.batch.batch import Batch


@dataclass(frozen=True)
class Submit:
    """Queue a request, once the engine is not full. Answer: its id, int."""

    request: Request


@dataclass(frozen=True)
class Fork:
    """Continue the first `at` tokens (prompt included) of a request. Answer: the new id, int."""

    id: int
    at: int
    forced: tuple[int, ...] = ()
    changes: Mapping[str, Any] = field(default_factory=dict)  # fields of the Request to replace


@dataclass(frozen=True)
class Resume:
    """Continue a paused request. Answer: None."""

    id: int
    changes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Abort:
    """End a request now. Answer: Finished."""

    id: int


@dataclass(frozen=True)
class Score:
    """Columns of a batch under a policy ("current", "old", "ref"). Answer: dict of tensors."""

    batch: Batch
    policy: str
    names: tuple[str, ...]


@dataclass(frozen=True)
class Reward:
    """Rewards of a batch's rollouts. Answer: tensor [B]."""

    batch: Batch


# The metric of tokens that were drawn for a strategy and are in no rollout.
THROWN_AWAY = "rollout/tokens_thrown_away"
Command: TypeAlias = Submit | Fork | Resume | Abort | Score | Reward
# yields commands, is sent (their answers in order, events of its own requests), returns a value
Strategy: TypeAlias = Generator[list[Command], tuple[list[Any], list[Event]], Any]
