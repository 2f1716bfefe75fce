"""Find where the steps of an answer end, by a piece of text."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from strop.batch import segments
from strop.batch.batch import Batch
from strop.batch.columns import Column
from strop.method.services import Texts
from strop.parts.probe._token_text import TokenText

MARKERS = (".\n\n", "\n")  # where none is given; the first one that the tokenizer can write


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
    Edges: no marker in an answer -> no step; a token that has the marker and more text after it
    ends no step.
    """

    writes: ClassVar[tuple[str, ...]] = ("step_end_T",)
    declares: ClassVar[tuple[Column, ...]] = (
        Column("step_end_T", "bool", "a step of the answer ends here"),
    )
    # Text at the end of a step; empty: a full stop and a blank line, or a line break where the
    # tokenizer has no full stop. Default: paper (the former).
    marker: str = ""
    # Text after which no step ends; empty: none. Default: paper (the end of the thinking block).
    until: str = "</think>"

    def __call__(self, batch: Batch, mask_T: Tensor, texts: Texts) -> Tensor:
        marker = self.marker or texts.first_known(MARKERS, "probes.marker")
        row_N, num = segments.rows_where(mask_T), batch.size("B")
        own_N = segments.at(batch["rollout_T"], row_N)
        decoded = TokenText(segments.at(batch["id_T"], row_N), texts)
        border = np.append(decoded.begin_N, len(decoded.text))
        from_B = border[segments.first(own_N, num).cpu().numpy()]
        answer_N = own_N.cpu().numpy()
        ends, stop = _completed(decoded, marker, answer_N, from_B)
        ends = ends[decoded.end_N[ends] == stop]
        if self.until:
            over, _ = _completed(decoded, self.until, answer_N, from_B)
            over_B = np.full(num, len(answer_N))
            np.minimum.at(over_B, answer_N[over], over)
            ends = ends[ends < over_B[answer_N[ends]]]
        ends_T = torch.zeros_like(mask_T)
        ends_T[row_N[torch.from_numpy(ends).to(row_N.device)]] = True
        return ends_T


def _completed(
    decoded: TokenText, wanted: str, answer_N: np.ndarray, from_B: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Tokens with which a text becomes complete in an answer, and the position after it."""
    begin = decoded.find(wanted)
    stop = begin + len(wanted)
    token = np.searchsorted(decoded.end_N, stop)
    inside = begin >= from_B[answer_N[token]]
    return token[inside], stop[inside]
