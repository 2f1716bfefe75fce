"""What a reward is called with and what it gives back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from strop.support.exits import Exit


@dataclass(frozen=True)
class Rollouts:
    """What one call of a reward sees; `rows` are the rollouts' places in the whole batch."""

    rows: Sequence[int]
    prompts: Sequence[Any]
    completions: Sequence[Any]
    completion_ids: Sequence[Sequence[int]]
    columns: Mapping[str, Sequence[Any]]
    step: int
    groups: Sequence[int] = ()  # the prompt group of each row; empty: all are one group
    prompt_texts: Sequence[str] = ()  # prompts as the model saw them; empty: not known
    truncated: Sequence[bool] = ()  # whether a limit cut the answer off; empty: not known
    strict: bool = False  # a result that is neither number nor None is the function's mistake


@dataclass(frozen=True)
class Unscored:
    """In place of a score: why this row has none, and what it comes from.

    A cause that the policy can have brought about counts `reward.on_failure`. With any other, which
    DECLARED is, the row takes part in nothing.
    """

    reason: str
    cause: Exit = Exit.DECLARED


@dataclass
class Scored:
    """What one call gave: a score, None or a failure for each row, and what was logged."""

    scores: list[float | None] = field(default_factory=list)
    # position in `scores` -> number of the cause, reason
    unscored: dict[int, tuple[int, str]] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    extra: dict[str, list[Any]] = field(default_factory=dict)
