"""A forward pass of rows that have different numbers of new tokens: these come end to end.

Everything but attention then works on as many tokens as there are. Attention alone pads the queries
of each row to the longest; keys and values are the rows' caches, as in any step.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

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
    strop_ragged: Ragged,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attention [1, T, heads, size] of queries [1, heads, T, size].

    key, value: [N, heads, places, size] of the rows. attention_mask: [N, 1, width, places].
    """
    if options.get("softcap") is not None:
        raise ValueError("scores are capped")
    given, (_, heads, _, size) = strop_ragged, query.shape
    padded = query.new_zeros(given.num_rows * given.width, heads, size)
    padded[given.index_T] = query[0].transpose(0, 1)
    padded = padded.view(given.num_rows, given.width, heads, size).transpose(1, 2)
    found, _ = sdpa_attention_forward(module, padded, key, value, attention_mask, **options)
    return found.flatten(0, 1)[given.index_T][None], None


AttentionInterface.register(NAME, attend)


@contextmanager
def attending(model: Any) -> Iterator[None]:
    """Inside, the model's layers take new tokens end to end."""
    config: Any = model.config.get_text_config()
    before = config._attn_implementation
    config._attn_implementation = NAME
    try:
        yield
    finally:
        config._attn_implementation = before
