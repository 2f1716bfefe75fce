"""Records of an agent's rollouts: one record for each call of the model, and how it ended.

The fields have the names of TRL's `TurnRecord` (1.16); agent-lightning, OpenEnv, verifiers and
Harbor write the same under other names.
"""

from __future__ import annotations

import itertools
import math
import numbers
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from strop.engines.base import Event
from strop.support.errors import UserError
from strop.support.exits import Exit

UNKNOWN = -1  # version of weights that is unknown
ROUNDING = 0.01  # how far a sampler's arithmetic may put a log-probability above 0


@dataclass(frozen=True)
class TurnRecord:
    """One call of the model: its prompt tokens and its output tokens.

    Every column is as long as `output_ids`, or empty where it is unknown. Values are in nats.
    Raises UserError for a column of another length, an id below 0, a number that is not finite, a
    log-probability above 0, and a call without a prompt or an output.
    """

    prompt_ids: tuple[int, ...]
    output_ids: tuple[int, ...]
    output_log_probs: tuple[float, ...] = ()  # at the temperature at which it was sampled
    output_mask: tuple[bool, ...] = ()  # tokens that the policy learns from; empty: all
    versions: tuple[int, ...] = ()  # of the weights that sampled each token; empty: unknown
    entropies: tuple[float, ...] = ()
    model_log_probs: tuple[
        float, ...
    ] = ()  # without top_k and the like; empty: as output_log_probs
    ended: str = "stop"  # or "length"
    reward: float = 0.0  # of this call, in addition to the rollout's
    valid: bool = True  # its output was understood

    def __post_init__(self) -> None:
        for name in ("prompt_ids", "output_ids", "output_log_probs", "output_mask", "versions",
                     "entropies", "model_log_probs"):  # fmt: skip
            column = getattr(self, name)
            if column is not None and not isinstance(column, Sequence):
                raise UserError(
                    f"a turn record has a {type(column).__name__} as {name}: give a list (of an "
                    "array, its `tolist()`)"
                )
            object.__setattr__(self, name, tuple(column or ()))
        if not self.prompt_ids or not self.output_ids:
            lacking = "prompt_ids" if not self.prompt_ids else "output_ids"
            raise UserError(f"a turn record has no {lacking}: a call reads and says tokens")
        size = len(self.output_ids)
        for name in ("output_log_probs", "output_mask", "versions", "entropies", "model_log_probs"):
            column = getattr(self, name)
            if column and len(column) != size:
                raise UserError(
                    f"a turn record has {len(column)} {name} and {size} output_ids: give one for "
                    "each, or none"
                )
        for name in ("prompt_ids", "output_ids"):
            for each in getattr(self, name):
                if type(each) is not int or each < 0:
                    raise UserError(f"a turn record has {each!r} in {name}: ids are whole numbers")
        for name in ("output_log_probs", "entropies", "model_log_probs"):
            for each in getattr(self, name):
                if not _is_number(each):
                    raise UserError(
                        f"a turn record has {each!r} in {name}: leave out what is not known"
                    )
                if each > ROUNDING and name != "entropies":
                    raise UserError(
                        f"a turn record has {each!r} in {name}: a log-probability is at most 0, so "
                        "give neither probabilities nor losses"
                    )
        for version in self.versions:
            if type(version) is not int or not UNKNOWN <= version < 2**63:
                raise UserError(
                    f"a turn record has {version!r} in versions: they are whole numbers, "
                    f"{UNKNOWN} for unknown"
                )
        if not _is_number(self.reward):
            raise UserError(f"a turn record has the reward {self.reward!r}: give a finite number")
        if self.ended not in ("stop", "length") or not isinstance(self.valid, bool):
            raise UserError(
                f"a turn record ended by {self.ended!r} and is valid: {self.valid!r}; give stop or "
                "length, and true or false"
            )

    @property
    def size(self) -> int:
        """The number of prompt and output tokens."""
        return len(self.prompt_ids) + len(self.output_ids)

    def events(self, kept: int | None = None) -> list[Event]:
        """Its first `kept` tokens (None: all) as events of an engine, one event per version."""
        size = len(self.output_ids) if kept is None else kept
        versions = self.versions or (UNKNOWN,) * len(self.output_ids)
        unknown = (math.nan,) * len(self.output_ids)
        logp = self.output_log_probs or unknown
        found, first = [], 0
        for version, run in itertools.groupby(versions[:size]):
            last = first + len(list(run))
            place = slice(first, last)
            found.append(
                Event(
                    0, self.output_ids[place], logp[place], version,
                    logp_model=(self.model_log_probs or logp)[place],
                    entropy=(self.entropies or unknown)[place],
                )
            )  # fmt: skip
            first = last
        return found


@dataclass(frozen=True)
class Rollout:
    """An agent's work on one task: its calls of the model, in order, and its reward.

    reward: None leaves it unscored, so it is not trained on. group: rollouts of one task are
    compared with each other. exit: why it ended; columns: further inputs of reward functions.
    """

    turns: tuple[TurnRecord, ...]
    reward: float | None = None
    group: str = ""
    exit: Exit = Exit.DONE
    why: str = ""  # of an exit that is a failure
    rewards: Mapping[str, float] = field(default_factory=dict)  # by name, where it has several
    columns: Mapping[str, Any] = field(default_factory=dict)
    place: str = ""  # where it was read: file and line

    @classmethod
    def from_turns(
        cls, turns: Iterable[Any], reward: float | None = None, group: str = "", **others: Any
    ) -> Rollout:
        """Make a rollout of the records of its calls: TurnRecords, or objects with their fields.

        turns: `strop.TurnRecord`, TRL's, or mappings with `prompt_ids`, `output_ids` and, if known,
        `output_log_probs` and `output_mask`. Raises UserError where one cannot be read.
        """
        return cls(tuple(record_of(each) for each in turns), reward, group, **others)

    def __post_init__(self) -> None:
        if not self.turns:
            raise UserError(f"{self.place or 'a rollout'} has no turns: the model was not called")
        where = self.place or "a rollout"
        if self.reward is not None and not _is_number(self.reward):
            raise UserError(f"{where} has the reward {self.reward}: None is none")
        if not isinstance(self.columns, Mapping) or not isinstance(self.why, str):
            raise UserError(f"{where} has columns that are no object, or a why that is no text")
        if not isinstance(self.rewards, Mapping) or not isinstance(self.exit, Exit):
            raise UserError(
                f"{where} has the rewards {self.rewards!r} and the exit {self.exit!r}: give "
                "numbers by name, and one of strop.support.exits.Exit"
            )
        for name, value in self.rewards.items():
            if not _is_number(value):
                raise UserError(f"{where} has the reward {name} {value!r}: give a finite number")

    @property
    def scored(self) -> bool:
        """Whether the policy learns from it."""
        return self.reward is not None and self.exit.is_policys


def _is_number(value: Any) -> bool:
    """Whether the value is a finite number that fits into a float."""
    return issubclass(type(value), numbers.Real) and bool(abs(value) <= sys.float_info.max)


FIELDS = tuple(TurnRecord.__dataclass_fields__)


def record_of(given: Any) -> TurnRecord:
    """Make a record of a mapping or another object with its fields. Raises UserError."""
    if isinstance(given, TurnRecord):
        return given
    if isinstance(given, Mapping):
        fields = dict(given)
    else:
        fields = {name: getattr(given, name) for name in FIELDS if hasattr(given, name)}
    if unknown := sorted(set(fields) - set(FIELDS)):
        raise UserError(f"a turn record has the field {unknown[0]!r}: it has {', '.join(FIELDS)}")
    if lacking := [name for name in ("prompt_ids", "output_ids") if name not in fields]:
        raise UserError(
            f"a turn record lacks {lacking[0]}: without token ids nothing can be trained"
        )
    fields = {name: value for name, value in fields.items() if value is not None}
    mask = fields.get("output_mask")
    if isinstance(mask, Sequence):
        if wrong := [each for each in mask if each not in (0, 1)]:
            raise UserError(f"a turn record has {wrong[0]!r} in output_mask: give true and false")
        fields["output_mask"] = tuple(map(bool, mask))
    return TurnRecord(**fields)
