"""Attention over a forest of prefixes, in blocks of nodes that stay small.

A block is a run of nodes in preorder. What its nodes see are the ancestors of its first node and
the block itself: an ancestor of a later node that lies before the block is one of the first, too.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from strop.training.forest import Forest
from strop.training.models import trunk_of

NAME = "strop_forest"  # among the attention functions of transformers
BLOCKS = (32, 64, 128, 256, 512, 1024)


class Blocks(NamedTuple):
    """Blocks of about as many keys: which they are, the nodes that they see, and their masks."""

    number_M: Tensor  # of each block in the forest
    key_MK: Tensor
    seen_MQK: Tensor


@dataclass(frozen=True)
class Layout:
    """A forest cut into blocks of `block` nodes; the last one is filled up by the attention."""

    forest: Forest
    block: int
    parts: tuple[Blocks, ...]
    _masks: dict[Any, list[Tensor]] = field(default_factory=dict)

    @property
    def windows(self) -> set[int | None]:
        """How far back the layers that attended have asked to look; None: to the beginning."""
        return {window for window, _ in self._masks}

    def masks(self, window: int | None, dtype: torch.dtype) -> list[Tensor]:
        """What is added to the scores of each part; a window hides what lies further back."""
        key = (window, dtype)
        if key not in self._masks:
            self._masks[key] = [self._mask(part, window, dtype) for part in self.parts]
        return self._masks[key]

    def _mask(self, part: Blocks, window: int | None, dtype: torch.dtype) -> Tensor:
        seen_MQK = part.seen_MQK
        if window is not None:
            depth_N = pad(self.forest.depth_N, (0, self.block))
            query_MQ = _queries(part.number_M, self.block)
            furthest_MQ1 = depth_N[query_MQ][:, :, None] - window
            seen_MQK = seen_MQK & (depth_N[part.key_MK][:, None] > furthest_MQ1)
        hidden = torch.zeros(seen_MQK.shape, dtype=dtype, device=seen_MQK.device)
        return hidden.masked_fill_(~seen_MQK, torch.finfo(dtype).min)[:, None]


def lay_out(forest: Forest) -> Layout:
    """The forest in blocks of a size that its depth suits."""
    block = best_block(forest)
    size, device = forest.size, forest.id_N.device
    start_M = torch.arange(0, size, block, device=device)
    depth_M = forest.depth_N[start_M]
    bits = [int(above / block).bit_length() for above in depth_M.tolist()]
    group_M = torch.tensor(bits, device=device)
    parts = [_part(forest, block, start_M, depth_M, group_M == g) for g in sorted(set(bits))]
    return Layout(forest, block, tuple(parts))


def best_block(forest: Forest) -> int:
    """Nodes of a block: long prefixes want long blocks, for each copies the prefix that it sees."""
    depth = float(forest.depth_N.double().mean())
    return next((block for block in BLOCKS if 4 * block >= depth), BLOCKS[-1])


def _part(forest: Forest, block: int, start_M: Tensor, depth_M: Tensor, chosen_M: Tensor) -> Blocks:
    number_M = chosen_M.nonzero().squeeze(1)
    start_M, depth_M = start_M[chosen_M], depth_M[chosen_M]
    above_A = torch.arange(int(depth_M.max()), device=start_M.device)
    known_MA = above_A < depth_M[:, None]
    path_MA = forest.node_CL[forest.context_N[start_M], : above_A.shape[0]]
    query_MQ = _queries(number_M, block)
    key_MK = torch.cat([torch.where(known_MA, path_MA, 0), query_MQ], dim=1)
    known_MK = torch.cat([known_MA, torch.ones_like(query_MQ, dtype=torch.bool)], dim=1)
    # Nodes that fill up the last block see themselves alone.
    more = torch.arange(forest.size, forest.size + block, device=start_M.device)
    end_N = torch.cat([forest.end_N, more + 1])
    key_M1K, query_MQ1 = key_MK[:, None], query_MQ[:, :, None]
    seen = known_MK[:, None] & (key_M1K <= query_MQ1) & (query_MQ1 < end_N[key_MK][:, None])
    return Blocks(number_M, key_MK, seen)


def _queries(number_M: Tensor, block: int) -> Tensor:
    return number_M[:, None] * block + torch.arange(block, device=number_M.device)


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    strop_layout: Layout,
    sliding_window: int | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attention [1, nodes, heads, size] of queries, keys and values [1, heads, nodes, size]."""
    layout, size = strop_layout, query.shape[2]
    filled = math.ceil(size / layout.block) * layout.block
    query_NHD, key_NHD, value_NHD = (
        pad(states[0].transpose(0, 1), (0, 0, 0, 0, 0, filled - size))
        for states in (query, key, value)
    )
    query_MQHD = query_NHD.view(-1, layout.block, *query_NHD.shape[1:])
    found, numbers = [], []
    masks = layout.masks(sliding_window, query.dtype)
    for part, mask in zip(layout.parts, masks, strict=True):
        whole = len(layout.parts) == 1
        query_MQHD_ = query_MQHD if whole else query_MQHD.index_select(0, part.number_M)
        keys, values = (
            states.index_select(0, part.key_MK.flatten()).view(
                *part.key_MK.shape, *states.shape[1:]
            ).transpose(1, 2)
            for states in (key_NHD, value_NHD)
        )  # fmt: skip
        out, _ = sdpa_attention_forward(
            module, query_MQHD_.transpose(1, 2), keys, values, mask, **options
        )
        found.append(out)
        numbers.append(part.number_M)
    out_MQHD = found[0] if len(found) == 1 else torch.cat(found)
    if len(found) > 1:
        out_MQHD = out_MQHD.index_select(0, torch.argsort(torch.cat(numbers)))
    return out_MQHD.flatten(0, 1)[None, :size], None


AttentionInterface.register(NAME, attend)


@contextmanager
def attending(model: Any, layout: Layout | None) -> Iterator[None]:
    """Inside, the model's layers attend over a forest; without a layout, as always."""
    if layout is None:
        yield
        return
    config: Any = trunk_of(model).config
    before = config._attn_implementation
    config._attn_implementation = NAME
    try:
        yield
    finally:
        config._attn_implementation = before


def states_of(model: Any, layout: Layout) -> Tensor:
    """Last hidden states [nodes, width] of the forest."""
    with attending(model, layout):
        output = trunk_of(model)(
            input_ids=layout.forest.id_N[None],
            position_ids=layout.forest.depth_N[None],
            use_cache=False,
            strop_layout=layout,
        )
    states: Tensor = output.last_hidden_state[0]
    return states
