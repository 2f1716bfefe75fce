"""Record the form of each answer."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop.batch.batch import Batch
from strop.batch.columns import Column
from strop.method.part import require
from strop.method.services import Texts


@dataclass(frozen=True)
class NoteFormats:
    """Later parts see which of several forms an answer has, by the marks in its text.

        format_i = 1 + place of the first of `marks` that the text contains; 0: none of them
        format_i = -1 (unknown) where the text lacks `needed`

    Reads: rollout_uid_B [B] int; batch, texts.   Writes: format_B [B] int.
    Source: arXiv 2505.20258 (direct answer, short reasoning, code, long reasoning).
    Differs from the source: the marks may be any, and so may the text that a known form needs.
    Nearest part: note_profiles, which records numbers.
    Edges: several marks -> the first in the list; no marks -> every answer has the form 0.
    """

    writes: ClassVar[tuple[str, ...]] = ("format_B",)
    declares: ClassVar[tuple[Column, ...]] = (
        Column(
            "format_B",
            "int",
            "form of the answer by its marks; -1: unknown",
            door=("formats",),
            random="key:3",
        ),
    )
    # Texts that identify a form; the first that is found decides. Default: paper (its tags).
    marks: tuple[str, ...] = ("<LONG_COT>", "<CODE>", "<COT>")
    # Text without which the form is unknown; empty: none. Default: ours (none; the paper's is
    # <ANSWER>).
    needed: str = ""
    # Characters at the text's start that are searched; 0: all. Default: ours.
    within: int = 0

    def __post_init__(self) -> None:
        require(self, "within", low=0)

    def __call__(self, batch: Batch, rollout_uid_B: Tensor, texts: Texts) -> Tensor:
        _, answers = texts.decoded(batch)
        found = [self._form(text[: self.within or None]) for text in answers]
        return torch.tensor(found, dtype=torch.int64, device=rollout_uid_B.device)

    def _form(self, text: str) -> int:
        if self.needed not in text:
            return -1
        return next((n for n, mark in enumerate(self.marks, 1) if mark in text), 0)
