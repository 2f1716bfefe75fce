"""Find where an answer first writes a given text, such as the start of a block of code."""

from bisect import bisect_right
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop.batch import Batch
from strop.columns import Column
from strop.errors import UserError
from strop.services import Texts


@dataclass(frozen=True)
class FindMarker:
    """How early a rollout turned to its tool can be counted in tokens.

        marker_at_i = policy tokens of rollout i before the one in which the marker's text begins
                      (-1: the marker is not there)

    Reads: batch (the policy's tokens), texts.   Writes: marker_at_B [B] int.
    Source: arXiv 2508.19201 (position of the first code block).
    Differs from the source: it does not say what begins a code block there.
    Nearest part: mark_step_ends, which marks tokens.
    Edges: found in the decoded text, so a marker of several tokens, or inside one, is found too;
    special tokens are not part of the text; text of other roles does not count.
    """

    writes: ClassVar[tuple[str, ...]] = ("marker_at_B",)
    declares: ClassVar[tuple[Column, ...]] = (
        Column(
            "marker_at_B",
            "int",
            "token where the text begins; -1: nowhere",
            "token",
            random="key:-1:5",
        ),
    )
    # The text. Default: ours (how a block of Python begins).
    marker: str = "```python"

    def __post_init__(self) -> None:
        if not isinstance(self.marker, str) or not self.marker:
            raise UserError(f"find_marker.marker must be text, it is {self.marker!r}")

    def __call__(self, batch: Batch, texts: Texts) -> Tensor:
        def text(ids: list[int]) -> str:
            return texts.decode(ids, special=False)

        def position(ids: list[int]) -> int:
            at = text(ids).find(self.marker)
            if at < 0:
                return -1
            return bisect_right(range(len(ids) + 1), at, key=lambda n: len(text(ids[:n]))) - 1

        found = [position(list(ids)) for ids in texts.completion_ids(batch)]
        return torch.tensor(found, dtype=torch.int64, device=batch["group_B"].device)
