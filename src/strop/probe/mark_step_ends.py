"""Find where the steps of an answer end, by a piece of text."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop import segments
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
        row_N = mask_T.nonzero().squeeze(1)
        id_N, rollout_N = batch["id_T"][row_N], batch["rollout_T"][row_N]
        size_B = segments.count(rollout_N, batch.size("B"))
        start_N = (size_B.cumsum(0) - size_B)[rollout_N]
        ids = torch.bincount(id_N).nonzero().squeeze(1).tolist()
        said = _Said(id_N, start_N, {id: texts.decode([id]) for id in ids})
        ends = said.places(self.marker, at_end=True)
        if self.until:
            over_N = torch.zeros_like(row_N)
            over_N[said.places(self.until)] = 1
            until_N = over_N.cumsum(0)
            before_N = until_N[start_N] - over_N[start_N]
            ends = ends[(until_N == before_N)[ends]]
        ends_T = torch.zeros_like(mask_T)
        ends_T[row_N[ends]] = True
        return ends_T


class _Said:
    """What the tokens of answers say, an answer's from `start_N` on: where a text is among it."""

    def __init__(self, id_N: Tensor, start_N: Tensor, pieces: dict[int, str]) -> None:
        self.id_N, self.start_N, self.pieces = id_N, start_N, pieces
        self.ids, self.num_ids = id_N.tolist(), max(pieces, default=-1) + 1

    def places(self, wanted: str, at_end: bool = False) -> Tensor:
        """Tokens with which the text becomes complete; at_end: and that end with it."""
        last = wanted[-1]
        ids = [id for id, piece in self.pieces.items()
               if (piece.endswith(last) if at_end else last in piece)]  # fmt: skip
        could_N = segments.among(self.id_N, self.id_N.new_tensor(ids), self.num_ids)
        places = could_N.nonzero().squeeze(1)
        rows = zip(places.tolist(), self.start_N[places].tolist(), strict=True)
        found = [place for place, start in rows if self._is_at(wanted, start, place, at_end)]
        return self.id_N.new_tensor(found)

    def _is_at(self, wanted: str, start: int, place: int, at_end: bool) -> bool:
        own, text = self.pieces[self.ids[place]], ""
        while place > start and len(text) < len(wanted) - 1:
            place -= 1
            text = self.pieces[self.ids[place]] + text
        text = text[max(len(text) - len(wanted) + 1, 0) :] + own
        return text.endswith(wanted) if at_end else wanted in text
