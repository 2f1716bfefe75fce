"""What a reward is called with and what it gives back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


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


@dataclass(frozen=True)
class Unscored:
    """In place of a score: the reward failed on this row, which then takes part in nothing."""

    reason: str


@dataclass
class Scored:
    """What one call gave: a score, None or a failure for each row, and what was logged."""

    scores: list[float | None] = field(default_factory=list)
    unscored: dict[int, str] = field(default_factory=dict)  # position in `scores` -> reason
    metrics: dict[str, float] = field(default_factory=dict)
    extra: dict[str, list[Any]] = field(default_factory=dict)
