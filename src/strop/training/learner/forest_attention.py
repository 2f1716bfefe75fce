"""Attention over a forest of prefixes, in blocks of nodes that stay small.

A block is a run of nodes in preorder. What its nodes see are the ancestors of its first node and
the block itself: an ancestor of a later node that lies before the block is one of the first, too.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.functional import pad, scaled_dot_product_attention
from transformers import AttentionInterface

from strop.training.learner.forest import Forest, Rows
from strop.training.learner.models import checkpoints, trunk_of

NAME = "strop_forest"  # among the attention functions of transformers
BLOCKS = (32, 64, 128, 256, 512, 1024)
MOST_COPIES = 2  # of the nodes, in keys and values that are gathered at once


class Blocks(NamedTuple):
    """Blocks of about as many keys: which they are, the nodes that they see, and their masks."""

    number_M: Tensor  # of each block in the forest
    key_MK: Tensor
    seen_MQK: Tensor


@dataclass(frozen=True)
class Layout:
    """A forest cut into blocks of `block` nodes; the last one is filled up by the attention.

    sparing: the states that blocks see are gathered again in backward instead of being kept. This
    is not for checkpointed layers, which keep nothing anyway.
    """

    forest: Forest
    block: int
    parts: tuple[Blocks, ...]
    sparing: bool = True
    _masks: dict[Any, list[Tensor]] = field(default_factory=dict)

    @property
    def windows(self) -> set[int | None]:
        """The window that the attending layers have requested; None: to the beginning."""
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
    block = best_block(forest.depth_N)
    size, device = forest.size, forest.id_N.device
    start_M = torch.arange(0, size, block, device=device)
    depth_M = forest.depth_N[::block]
    parts = [
        _part(forest, block, start_M[chosen], depth_M[chosen], chosen)
        for chosen in _parts(depth_M, block, size)
    ]
    return Layout(forest, block, tuple(parts))


def compared(rows: Rows) -> int:
    """Pairs of nodes that attention over the rows' forest compares, masked ones included."""
    size = rows.num_nodes
    depth_N = rows.depth_of(torch.arange(size, device=rows.id_CL.device))
    block = best_block(depth_N)
    return block * (int(depth_N[::block].sum()) + block * -(-size // block))


def _parts(depth_M: Tensor, block: int, size: int) -> list[Tensor]:
    """Blocks that are attended together: of like depth, and with few copies of what they see."""
    depths = depth_M.tolist()
    reach = [(depth // block).bit_length() for depth in depths]
    order = sorted(range(len(depths)), key=reach.__getitem__)
    found: list[list[int]] = []
    widest = 0
    for number in order:
        widest = max(widest, depths[number] + block)
        if (
            not found
            or reach[found[-1][0]] != reach[number]
            or (len(found[-1]) + 1) * widest > MOST_COPIES * size
        ):
            found.append([])
            widest = depths[number] + block
        found[-1].append(number)
    return [torch.tensor(part, device=depth_M.device) for part in found]


def best_block(depth_N: Tensor) -> int:
    """Nodes of a block: long prefixes want long blocks, for each copies the prefix that it sees."""
    depth = float(depth_N.double().mean())
    return next((block for block in BLOCKS if 2 * block >= depth), BLOCKS[-1])


def _part(forest: Forest, block: int, start_M: Tensor, depth_M: Tensor, number_M: Tensor) -> Blocks:
    width = -(-int(depth_M.max()) // 8) * 8  # masks in eights need no copy on a GPU
    above_A = torch.arange(width, device=start_M.device)
    known_MA = above_A < depth_M[:, None]
    path_MA = forest.node_CL[forest.context_N[start_M]]
    path_MA = path_MA[:, above_A.clamp(max=path_MA.shape[1] - 1)]
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
    masks = layout.masks(sliding_window, query.dtype)
    more = -size % layout.block
    query_NHD, key_NHD, value_NHD = (
        pad(states[0].transpose(0, 1), (0, 0, 0, 0, 0, more)) for states in (query, key, value)
    )
    query_MQHD = query_NHD.view(-1, layout.block, *query_NHD.shape[1:])
    found = []
    for part, mask in zip(layout.parts, masks, strict=True):
        own = query_MQHD if len(masks) == 1 else query_MQHD.index_select(0, part.number_M)
        found.append(_attended(own, key_NHD, value_NHD, part, mask, layout.sparing, options))
    out_MQHD = found[0]
    if len(found) > 1:
        number_M = torch.cat([part.number_M for part in layout.parts])
        out_MQHD = torch.cat(found).index_select(0, torch.argsort(number_M))
    return out_MQHD.flatten(0, 1)[None, :size], None


def _attended(
    query_MQHD: Tensor,
    key_NHD: Tensor,
    value_NHD: Tensor,
    part: Blocks,
    mask: Tensor,
    sparing: bool,
    options: Mapping[str, Any],
) -> Tensor:
    """Attention [M, Q, heads, size] of some blocks.

    sparing: the states that blocks see are gathered again in backward instead of being kept.
    """
    if options.get("softcap") is not None:
        raise ValueError("scores are capped")
    groups = query_MQHD.shape[2] // key_NHD.shape[1]
    keys, values = (_seen(states, part.key_MK, groups) for states in (key_NHD, value_NHD))
    sources = {keys.data_ptr(): key_NHD.detach(), values.data_ptr(): value_NHD.detach()}

    def kept(tensor: Tensor) -> Tensor | Callable[[], Tensor]:
        source = sources.get(tensor.data_ptr())
        if source is None or tensor.shape != keys.shape:
            return tensor
        return lambda: _seen(source, part.key_MK, groups)

    def again(held: Tensor | Callable[[], Tensor]) -> Tensor:
        return held if isinstance(held, Tensor) else held()

    with saved_tensors_hooks(kept, again) if sparing else nullcontext():
        out = scaled_dot_product_attention(
            query_MQHD.transpose(1, 2), keys, values, attn_mask=mask,
            dropout_p=options.get("dropout", 0.0), scale=options.get("scaling"),
        )  # fmt: skip
    return out.transpose(1, 2)


def _seen(states_NHD: Tensor, key_MK: Tensor, groups: int) -> Tensor:
    """States [M, heads, K, size] of the nodes that blocks see, once for each query head."""
    found = states_NHD.index_select(0, key_MK.flatten()).view(*key_MK.shape, *states_NHD.shape[1:])
    found = found.transpose(1, 2)
    if groups == 1:
        return found
    return found[:, :, None].expand(-1, -1, groups, -1, -1).flatten(1, 2)


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
    if model.training and checkpoints(model):
        layout = replace(layout, sparing=False)
    with attending(model, layout):
        output = trunk_of(model)(
            input_ids=layout.forest.id_N[None],
            position_ids=layout.forest.depth_N[None],
            use_cache=False,
            strop_layout=layout,
        )
    states: Tensor = output.last_hidden_state[0]
    return states
