"""Find where an answer first writes a given text, such as the start of a block of code."""

from bisect import bisect_right
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop.batch.batch import Batch
from strop.batch.columns import Column
from strop.method.services import Texts
from strop.support.errors import UserError


@dataclass(frozen=True)
class FindMarker:
    """Later parts see, in tokens, how early a rollout turned to its tool.

        marker_at_i = policy tokens of rollout i before the one in which the marker's text begins
                      (-1: the marker is not there)

    Reads: batch (the policy's tokens), texts.   Writes: marker_at_B [B] int.
    Source: arXiv 2508.19201 (position of the first code block).
    Differs from the source: the source does not say what begins a code block.
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
        id_N = batch["id_T"][batch["mask_T"]].numpy(force=True)
        end_B = batch["length_B"].cumsum(0).tolist()

        def token(rollout: int, at: int) -> int:
            ids = id_N[end_B[rollout - 1] if rollout else 0 : end_B[rollout]].tolist()
            ends = range(len(ids) + 1)
            return bisect_right(ends, at, key=lambda n: len(texts.decode(ids[:n], False))) - 1

        places = [text.find(self.marker) for text in texts.decoded(batch)[1]]
        found = [at if at < 0 else token(rollout, at) for rollout, at in enumerate(places)]
        return torch.tensor(found, dtype=torch.int64, device=batch["group_B"].device)
