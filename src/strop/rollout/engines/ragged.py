"""Forward passes whose rows differ: in the number of their new tokens, or in length.

New tokens come end to end, so that everything but attention works on as many as there are;
attention alone pads the queries of each row to the longest. Of keys and values, the rows' caches,
it reads those of each band as far as that reaches.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from strop.rollout.engines.bands import Band

NAME = "strop_ragged"  # among the attention functions of transformers


@dataclass(frozen=True)
class Ragged:
    """New tokens of rows, end to end: of which row each is, and which one of it; at most `width`.

    row, column: on the host. index_T: its place where every row is padded to `width`.
    """

    row: np.ndarray
    column: np.ndarray
    num_rows: int
    width: int
    row_T: Tensor
    column_T: Tensor
    index_T: Tensor


def lay_out(number_N: np.ndarray, device: torch.device) -> Ragged:
    """So many new tokens for each row, at least one."""
    ends, width = number_N.cumsum(), int(number_N.max())
    row = np.repeat(np.arange(len(number_N)), number_N)
    column = np.arange(ends[-1]) - np.repeat(ends - number_N, number_N)
    index = torch.from_numpy(np.stack([row, column, row * width + column])).to(device)
    return Ragged(row, column, len(number_N), width, *index)


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    strop_bands: Sequence[Band],
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
    parts = []
    for first, end, used in strop_bands:
        rows = slice(first, end)
        keys, values = key[rows, :, :used], value[rows, :, :used]
        mask = attention_mask[rows, ..., :used]
        parts.append(sdpa_attention_forward(module, query[rows], keys, values, mask, **options)[0])
    found = torch.cat(parts) if len(parts) > 1 else parts[0]
    return found if given is None else found.flatten(0, 1)[given.index_T][None], None


AttentionInterface.register(NAME, attend)


@contextmanager
def attending(model: Any) -> Iterator[None]:
    """Inside, the model's layers take new tokens end to end, and bands."""
    config: Any = model.config.get_text_config()
    before = config._attn_implementation
    config._attn_implementation = NAME
    try:
        yield
    finally:
        config._attn_implementation = before
