"""Forward passes whose rows differ: in the number of their new tokens, or in length.

New tokens come end to end, so that everything but attention works without padding; only attention
pads the queries of each row to the longest. It reads the rows' cached keys and values band by band,
each up to the longest row of the band.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from strop.engines.local.cache import Band, attend_newest

NAME = "strop_ragged"  # among the attention functions of transformers


@dataclass(frozen=True)
class Ragged:
    """New tokens of rows, end to end: each one's row, and its place in that row, below `width`.

    row, column: on the host. index_T: a token's place if every row is padded to `width`.
    """

    row: np.ndarray
    column: np.ndarray
    num_rows: int
    width: int
    row_T: Tensor
    column_T: Tensor
    index_T: Tensor


def lay_out(number_N: np.ndarray, device: torch.device) -> Ragged:
    """Lay out `number_N` new tokens of each row, at least one."""
    ends, width = number_N.cumsum(), int(number_N.max())
    row = np.repeat(np.arange(len(number_N)), number_N)
    column = np.arange(ends[-1]) - np.repeat(ends - number_N, number_N)
    index = torch.from_numpy(np.stack([row, column, row * width + column])).to(device)
    return Ragged(row, column, len(number_N), width, *index)


class Parted:
    """The bands of one forward pass, and each band's part of its masks, for all layers."""

    def __init__(self, bands: Sequence[Band]) -> None:
        self.used = [band.used for band in bands]
        self.sizes = [band.end - band.first for band in bands]
        self._seen: dict[int, tuple[Tensor, list[Tensor]]] = {}

    def rows(self, stored: Tensor) -> list[Tensor]:
        """The rows of each band, from [N, ...]."""
        return [*torch.split(stored, self.sizes)] if len(self.sizes) > 1 else [stored]

    def places(self, stored: Tensor, dim: int = 2) -> list[Tensor]:
        """The used places of each band, from keys or values [N, heads, places, size]."""
        parts = zip(self.rows(stored), self.used, strict=True)
        return [part.narrow(dim, 0, used) for part, used in parts]

    def masks(self, mask: Tensor) -> list[Tensor]:
        """The masks of each band, from [N, 1, Q, places]; made once, since layers share them."""
        if id(mask) not in self._seen:
            self._seen[id(mask)] = mask, self.places(mask, 3)
        return self._seen[id(mask)][1]


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    strop_bands: Parted,
    strop_ragged: Ragged | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attention [N, Q, heads, size] of queries [N, heads, Q, size]; N is 1, and Q all new tokens,
    where they come end to end.

    key, value: [N, heads, places, size] of the rows. attention_mask: [N, 1, Q, places].
    """
    assert attention_mask is not None
    given = strop_ragged
    if given is not None:
        _, heads, _, size = query.shape
        padded = query.new_zeros(given.num_rows * given.width, heads, size)
        padded[given.index_T] = query[0].transpose(0, 1)
        query = padded.view(given.num_rows, given.width, heads, size).transpose(1, 2)
    elif query.shape[2] == 1 and not {"softcap", "position_bias"} & options.keys():
        return _newest(query, key, value, attention_mask, strop_bands, options), None
    parts = zip(
        strop_bands.rows(query),
        strop_bands.places(key),
        strop_bands.places(value),
        strop_bands.masks(attention_mask),
        strict=True,
    )
    found = torch.cat([sdpa_attention_forward(module, *part, **options)[0] for part in parts])
    return found if given is None else found.flatten(0, 1)[given.index_T][None], None


def _newest(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, bands: Parted,
    options: dict[str, Any],
) -> Tensor:  # fmt: skip
    """`attend` for one query per row, without what transformers does again at each call."""
    parts = zip(
        *(bands.rows(query), bands.places(key), bands.places(value), bands.masks(mask)), strict=True
    )
    found = [attend_newest(*part, options.get("scaling")) for part in parts]
    return torch.cat(found) if len(found) > 1 else found[0]


AttentionInterface.register(NAME, attend)
