"""The input of a call of a reward, and its result."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from strop.support.exits import Exit


@dataclass(frozen=True)
class Rollouts:
    """The rollouts of one call of a reward; `rows` are their indices in the whole batch."""

    rows: Sequence[int]
    prompts: Sequence[Any]
    completions: Sequence[Any]
    completion_ids: Sequence[Sequence[int]]
    columns: Mapping[str, Sequence[Any]]
    step: int
    groups: Sequence[int] = ()  # the prompt group of each row; empty: all are one group
    prompt_texts: Sequence[str] = ()  # prompts as the model saw them; empty: unknown
    truncated: Sequence[bool] = ()  # whether a limit cut the answer off; empty: unknown
    strict: bool = False  # a result that is neither a number nor None raises UserError
    max_steps: int = 1  # of the run


@dataclass(frozen=True)
class Unscored:
    """Stands in place of a score: why this row has none, and the cause.

    If the policy may be the cause, the row counts as `reward.on_failure` says. With any other
    cause, such as DECLARED, the row is not used at all.
    """

    reason: str
    cause: Exit = Exit.DECLARED


@dataclass
class Scored:
    """The result of one call: a score, None or a failure for each row, and the logged values."""

    scores: list[float | None] = field(default_factory=list)
    # position in `scores` -> number of the cause, reason
    unscored: dict[int, tuple[int, str]] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    extra: dict[str, list[Any]] = field(default_factory=dict)


def plain(value: Any) -> Any:
    """A single number of an array or tensor as Python's own; anything else is unchanged."""
    return value.item() if getattr(value, "shape", None) == () else value


def numbers_of(values: Iterable[Any]) -> list[float]:
    """The numbers among logged values; their mean is the metric of the column."""
    found = map(plain, values)
    return [float(v) for v in found if isinstance(v, (bool, int, float)) and v == v]
