"""The data of an evaluation: flat arrays with one entry per rollout, and an estimate."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from strop.support.errors import UserError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
COVERAGE = 0.95  # of every interval, over prompts or seeds
RIGHT = 1.0  # the least score of a right answer
ROUNDING = 1e-6  # of a score that is a sum of 32-bit floats


class Estimate(NamedTuple):
    """A number, its interval over prompts, and the number of prompts.

    `low` and `high` are NaN when one prompt gives no interval; they equal `value` where the number
    describes the drawn sample and nothing is inferred (counts, shortest, longest).
    """

    value: float
    low: float
    high: float
    n_prompts: int


@dataclass(frozen=True, eq=False)
class Samples:
    """Rollouts of one evaluation; prompts may have different numbers of them, in any order.

    Raises UserError for columns of different lengths, for a scored rollout without a finite score
    and for a confidence that is not a log-probability.
    """

    prompt_B: Ints  # which prompt; any integers
    score_B: Floats  # the verifier's score; any value where scored_B is False
    length_B: Ints  # generated tokens
    truncated_B: Bools  # cut off by the token limit
    answer_B: Sequence[str | None] | None = None  # extracted, normalised; None: nothing extracted
    confidence_B: Floats | None = None  # log-probability in nats (mean per token or whole sequence)
    entropy_B: Floats | None = None  # mean over the rollout's tokens, nats; NaN: no token
    scored_B: Bools | None = None  # False: the verifier failed; None: all were scored
    measured: Mapping[str, Floats] = field(default_factory=dict)  # by an environment, [B], or NaN

    def __post_init__(self) -> None:
        num_rollouts = len(self.prompt_B)
        for each in fields(self):
            column: Any = getattr(self, each.name)
            if each.name.endswith("_B") and column is not None and len(column) != num_rollouts:
                raise UserError(
                    f"{each.name} has {len(column)} entries and prompt_B has {num_rollouts}; "
                    "give one entry per rollout in every column."
                )
        if not np.isfinite(self.score_B[self.scored]).all():
            raise UserError("score_B holds a score that is not finite; mark it in scored_B.")
        if self.confidence_B is not None and (self.confidence_B > 0.01).any():
            raise UserError(
                f"confidence_B reaches {np.nanmax(self.confidence_B):g}; it is a log-probability "
                "in nats and cannot be positive."
            )

    @property
    def scored(self) -> Bools:
        """[B] True where the verifier gave a score."""
        if self.scored_B is None:
            return np.ones(len(self.prompt_B), dtype=bool)
        return np.asarray(self.scored_B, dtype=bool)

    @property
    def right_B(self) -> Bools:
        """[B] True where the score reaches RIGHT, or is a sum of floats that does but for
        rounding.
        """
        return np.asarray(self.score_B >= RIGHT - ROUNDING)

    def only_scored(self) -> "Samples":
        """The same samples without the rollouts whose verifier failed."""
        keep_B = self.scored
        kept: dict[str, Any] = {
            "measured": {name: column[keep_B] for name, column in self.measured.items()}
        }
        for each in fields(self):
            column: Any = getattr(self, each.name)
            if column is None or not each.name.endswith("_B"):
                continue
            if each.name == "answer_B":
                kept["answer_B"] = [a for a, keep in zip(column, keep_B, strict=True) if keep]
            else:
                kept[each.name] = np.asarray(column)[keep_B]
        return Samples(**kept)
