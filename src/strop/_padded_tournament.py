"""A tournament at the padded door: a table of scores stands for the judge."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from strop import part as parts
from strop._padded_given import of_dtype
from strop.algorithm import Algorithm
from strop.batch import Batch
from strop.errors import UserError
from strop.part import Use
from strop.services import NAMES as SERVICES
from strop.services import Graded

PAIR_SCORES = "pair_scores"


def plays(algorithm: Algorithm) -> bool:
    """Whether rewards come from a tournament of answers."""
    return any(parts.name_of(use.part) == "rank_in_tournament" for use in algorithm.reward)


@dataclass(frozen=True)
class Judge:
    """Stands for texts and grading: an answer's text is its row, its score stands in a table.

    pair_scores: [B, B], what row i scores in its match with row j; NaN: no score.
    """

    pair_scores: Tensor

    def services(self) -> Any:
        return SimpleNamespace(texts=self, grading=self)

    def decoded(self, batch: Batch) -> tuple[list[Any], list[str]]:
        rows = [str(row) for row in batch["index_B"].tolist()]
        return rows, rows

    def grade_beside(self, batch: Batch, opponents: Sequence[str]) -> Graded:
        other_B = torch.tensor([int(row) for row in opponents])
        score_B = self.pair_scores[batch["row_B"].cpu(), other_B]
        scored_B = ~score_B.isnan()
        return Graded(score_B[:, None], score_B.nan_to_num(), scored_B, {}, ~scored_B)


def judged(given: Mapping[str, Any]) -> tuple[Judge | None, dict[str, Any]]:
    """The judge of `pair_scores`, None without, and `given` in a form that says how many rows.

    Raises UserError for a table that is not square, and rewards beside it.
    """
    rest = dict(given)
    value = rest.pop(PAIR_SCORES, None)
    if value is None:
        return None, rest
    scores = of_dtype(PAIR_SCORES, value, "float").detach().cpu()
    if scores.dim() != 2 or scores.shape[0] != scores.shape[1]:
        raise UserError(f"{PAIR_SCORES} must be [B, B], a row an answer; it is {[*scores.shape]}")
    if rest.get("rewards") is not None:
        raise UserError(f"give rewards or {PAIR_SCORES}, not both")
    num = scores.shape[0]
    rest["rewards"] = scores.new_zeros(num)
    if rest.get("groups") is None:
        rest["groups"] = torch.zeros(num, dtype=torch.int64)
    return Judge(scores), rest


def check_table(name: str, algorithm: Algorithm, judge: Judge | None, num: int) -> None:
    """Raise UserError where a table of scores is missing or fits nothing."""
    if judge is not None and not plays(algorithm):
        raise UserError(f"rewards({name!r}) takes no {PAIR_SCORES}: no tournament is played")
    if judge is None and plays(algorithm):
        raise UserError(f"rewards({name!r}) needs {PAIR_SCORES} [B, B]")
    if judge is not None and len(judge.pair_scores) != num:
        raise UserError(f"{PAIR_SCORES} is of {len(judge.pair_scores)} answers, there are {num}")


def check_alone(call: str, name: str, uses: Sequence[Use]) -> None:
    """Raise UserError where rewards depend on more than tensors."""
    for use in uses:
        asked = sorted({p.name for p in parts.parameters(use.part)} & SERVICES)
        if asked:
            raise UserError(
                f"{call}({name!r}): {use.label} needs a run's {' and '.join(asked)}, which "
                "tensors do not hold"
            )
