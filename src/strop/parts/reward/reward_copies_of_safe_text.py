"""Pay for leaving a safe text unchanged, and for rewriting an unsafe one well."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop.batch import segments
from strop.batch.batch import Batch
from strop.method.part import Result
from strop.method.services import Texts
from strop.support.errors import UserError

SAFE, ORIGINAL = "safe", "completion"


@dataclass(frozen=True)
class RewardCopiesOfSafeText:
    """A rewriter learns to leave good texts alone, and to mend the rest.

        the row's `safe` is true: reward_i = 1 where the answer is the row's `completion`, else 0
        else: reward_i stays, the reward functions' score of the rewritten text

    Spaces around the texts do not count.

    Reads: batch (the answers), outcome_B, reward_B [B] float, scored_B [B] bool, texts (the
    prompts' rows).   Writes: outcome_B, reward_B [B] float, scored_B [B] bool.
    Source: arXiv 2601.21343, sec. 2 (training of the rewriter).
    Differs from the source: no.
    Nearest part: score_with_verifiers, which comes before it.
    Edges: a row without `safe` or `completion` -> UserError; a safe row is scored, whatever the
    reward functions say of it.
    """

    writes: ClassVar[tuple[str, ...]] = ("outcome_B", "reward_B", "scored_B")

    def __call__(
        self, batch: Batch, outcome_B: Tensor, reward_B: Tensor, scored_B: Tensor, texts: Texts
    ) -> Result:
        _, answers = texts.decoded(batch)
        uids = batch["uid_P"][batch["group_B"]].tolist()
        rows = [texts.row(uid) for uid in uids]
        for uid, row in zip(uids, rows, strict=True):
            if not isinstance(row.get(SAFE), bool | int) or not isinstance(row.get(ORIGINAL), str):
                raise UserError(
                    f"the row of prompt {uid} lacks what a rewriter learns from: a column {SAFE} "
                    f"(true or false) and the original text in a column {ORIGINAL}"
                )
        safe_B = torch.tensor([bool(row[SAFE]) for row in rows], dtype=torch.bool)
        original = [row[ORIGINAL].strip() for row in rows]
        copied = [text.strip() == own for text, own in zip(answers, original, strict=True)]
        copied_B = torch.tensor(copied, dtype=torch.bool)
        metrics = {
            "safe_text/frac": segments.overall(safe_B),
            "safe_text/frac_copied": segments.overall(copied_B, safe_B),
        }
        outcome_B = torch.where(safe_B, copied_B.to(outcome_B), outcome_B)
        reward_B = torch.where(safe_B, copied_B.to(reward_B), reward_B)
        return Result((outcome_B, reward_B, scored_B | safe_B), metrics=metrics)
