"""Find where the steps of an answer end, by a piece of text."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop.batch import Batch
from strop.columns import Column
from strop.errors import UserError
from strop.services import Texts


@dataclass(frozen=True)
class MarkStepEnds:
    """An answer's steps end where its text has the marker.

        step_end_t = 1 where the answer's text up to and including token t ends with `marker`,
                     and `until` has not appeared in it

    Reads: batch (the tokens), mask_T [T] bool, texts.
    Writes: step_end_T [T] bool.
    Source: arXiv 2601.03823 (a full stop and a blank line inside the thinking block).
    Differs from the source: no.
    Nearest part: cut_at_unlikely_tokens.
    Edges: no marker in an answer -> no step; a token that brings the marker and more text after it
    ends no step.
    """

    writes: ClassVar[tuple[str, ...]] = ("step_end_T",)
    declares: ClassVar[tuple[Column, ...]] = (
        Column("step_end_T", "bool", "a step of the answer ends here"),
    )
    # Text at the end of a step. Default: paper (a full stop and a blank line).
    marker: str = ".\n\n"
    # Text after which no step ends; empty: none. Default: paper (the end of the thinking block).
    until: str = "</think>"

    def __post_init__(self) -> None:
        if not self.marker:
            raise UserError("mark_step_ends.marker is empty; give the text that ends a step")

    def __call__(self, batch: Batch, mask_T: Tensor, texts: Texts) -> Tensor:
        ends_T = torch.zeros_like(mask_T)
        rows = mask_T.nonzero().squeeze(1)
        ids, rollouts = batch["id_T"][rows].tolist(), batch["rollout_T"][rows].tolist()
        pieces = {id: texts.decode([id]) for id in set(ids)}
        found, tail, now = [], "", -1
        keep = max(len(self.marker), len(self.until))
        for row, id, rollout in zip(rows.tolist(), ids, rollouts, strict=True):
            if rollout != now:
                now, tail, over = rollout, "", False
            tail += pieces[id]
            over = over or bool(self.until and self.until in tail)
            if tail.endswith(self.marker) and pieces[id] and not over:
                found.append(row)
            tail = tail[-keep:]
        ends_T[found] = True
        return ends_T
