"""Computes a prefix that several contexts share once, where that saves work.

Contexts are laid out as a forest: each distinct prefix of tokens is one node. Nodes lie in
preorder, so a node's descendants are the run of nodes up to its `end`, and one rule says what a
token sees: node q sees node k when k <= q < end of k.

Attention takes small blocks of nodes: runs in preorder. A block's nodes see the ancestors of its
first node and the block itself: an ancestor of a later node that lies before the block is also an
ancestor of the first.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.functional import pad, scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from strop.batch import segments
from strop.batch.batch import Batch, to_padded
from strop.engines.local.causal import REFUSED, attending_by
from strop.head.head import text_config, trunk_of
from strop.support.devices import to_device

NONE = -1  # pads a context on the right


@dataclass(frozen=True)
class Rows:
    """Contexts in an order in which those with a common prefix lie together.

    id_CL: their tokens, padded with NONE. order_C: their indices in the given order. size_C: the
    size of each. shared_C: tokens that each shares with the one before it, from the beginning.
    """

    id_CL: Tensor
    order_C: Tensor
    size_C: Tensor
    shared_C: Tensor

    def to(self, device: torch.device) -> "Rows":
        """The same rows on a device."""
        parts = (self.id_CL, self.order_C, self.size_C, self.shared_C)
        return Rows(*(to_device(part, device) for part in parts))

    @property
    def place_C(self) -> Tensor:
        """The row of each context in the given order."""
        return torch.argsort(self.order_C)

    @property
    def start_C(self) -> Tensor:
        """The number of distinct prefixes in the rows before each row."""
        new_C = self.size_C - self.shared_C
        return new_C.cumsum(0) - new_C

    @property
    def num_nodes(self) -> int:
        """The number of distinct prefixes in all rows."""
        return int((self.size_C - self.shared_C).sum())

    def depth_of(self, node_N: Tensor) -> Tensor:
        """Positions [N] of nodes."""
        start_C = self.start_C
        row_N = torch.searchsorted(start_C, node_N, right=True) - 1
        return self.shared_C[row_N] + node_N - start_C[row_N]


@dataclass(frozen=True)
class Forest:
    """The distinct prefixes of `C` contexts, and where each context's tokens are among them.

    id_N: token that a node adds to its prefix. depth_N: its position there, from 0. end_N: the node
    after the last one that it is a prefix of. node_CL: node of a context's token at a position.
    context_N: a context that passes through the node.
    """

    id_N: Tensor
    depth_N: Tensor
    end_N: Tensor
    context_N: Tensor
    node_CL: Tensor

    @property
    def size(self) -> int:
        """The number of nodes."""
        return self.id_N.shape[0]


def rows_of(id_T: Tensor, context_T: Tensor, num: int) -> Rows:
    """The rows of `num` contexts, whose tokens lie together in `context_T`'s order."""
    id_CL = to_padded(id_T.int(), context_T, num, fill=NONE)
    texts = [row.tobytes() for row in id_CL.cpu().numpy()]
    order = sorted(range(num), key=texts.__getitem__)
    order_C = torch.tensor(order, dtype=torch.long, device=id_CL.device)
    id_CL = id_CL[order_C]
    return Rows(id_CL, order_C, (id_CL != NONE).sum(1), num_shared_with_previous(id_CL))


def plant(rows: Rows) -> Forest:
    """The forest of the rows' prefixes."""
    id_CL, start_C, total = rows.id_CL, rows.start_C, rows.num_nodes
    position_L = torch.arange(id_CL.shape[1], device=id_CL.device)
    breaks_CL = position_L >= rows.shared_C[:, None]
    new_CL = breaks_CL & (id_CL != NONE)
    # The context that adds the token: the last one up to here that differs before or at it.
    row_C = torch.arange(id_CL.shape[0], device=id_CL.device)
    source_CL = torch.where(breaks_CL, row_C[:, None], 0).cummax(0).values
    node_CL = (start_C - rows.shared_C)[source_CL] + position_L
    # All nodes up to the next context that differs before or at a token begin with it.
    later_CL = torch.where(breaks_CL, start_C[:, None], total).flip(0).cummin(0).values.flip(0)
    end_CL = torch.cat([later_CL[1:], later_CL.new_full((1, later_CL.shape[1]), total)])
    return Forest(
        id_CL[new_CL].long(),
        position_L.expand_as(id_CL)[new_CL],
        end_CL[new_CL],
        rows.order_C[:, None].expand_as(id_CL)[new_CL],
        node_CL[rows.place_C],
    )


def num_shared_with_previous(id_CL: Tensor) -> Tensor:
    """The size [C] of the prefix that a row shares with the row before it; 0 for the first."""
    same_CL = (id_CL[1:] == id_CL[:-1]) & (id_CL[1:] != NONE)
    ends = torch.nn.functional.pad(same_CL, (0, 1), value=False)
    shared = (~ends).byte().argmax(1)  # the first place that differs
    return torch.cat([shared.new_zeros(min(1, id_CL.shape[0])), shared])


NAME = "strop_forest"  # among the attention functions of transformers
BLOCKS = (32, 64, 128, 256, 512, 1024)
MOST_COPIES = 2  # of all nodes, in the keys and values that are gathered at once


class Blocks(NamedTuple):
    """Blocks with about as many keys: their indices, the nodes that they see, and their masks."""

    number_M: Tensor  # index of each block in the forest
    key_MK: Tensor
    seen_MQK: Tensor


@dataclass(frozen=True)
class Layout:
    """A forest cut into blocks of `block` nodes; the attention pads the last one.

    sparing: the states that blocks see are gathered again in backward instead of being saved.
    Checkpointed layers do without it, because they save nothing anyway.
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
        """The values added to the scores of each part; a window hides keys further back."""
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
    """The forest in blocks of a size that suits its depth."""
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
    """Blocks that are attended together: of similar depth, and with few copies of their keys."""
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
    """Nodes of a block; long prefixes need long blocks, as each copies the prefix that it sees."""
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
    # Nodes that pad the last block see only themselves.
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

    sparing: the states that blocks see are gathered again in backward instead of being saved.
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
ROWS = "strop_rows"


def attend_rows(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, _: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """Causal attention of whole rows, by transformers' function without a mask."""
    return sdpa_attention_forward(module, query, key, value, None, **options)


AttentionInterface.register(ROWS, attend_rows)


def _waits(model: Any) -> bool:
    return model.device.type != "cpu"


def attending_rows(model: Any, when: "When") -> AbstractContextManager[None]:
    """Inside, layers on a GPU attend over plain rows without transformers' check of the positions,
    which blocks; only in models that can share prefixes and whose layers attend to the start.

    when: off where it is not known that they can.
    """
    config = text_config(model)
    if (
        when != "off"
        and _waits(model)
        and config._attn_implementation == "sdpa"
        and _windows(config) == {None}
    ):
        return attending_by(trunk_of(model).config, ROWS)
    return nullcontext()


def attending(model: Any, layout: Layout | None) -> AbstractContextManager[None]:
    """Inside, the model's layers attend over a forest; without a layout, as usual."""
    return nullcontext() if layout is None else attending_by(trunk_of(model).config, NAME)


def pass_over(model: Any, layout: Layout, **more: Any) -> Any:
    """The output of the model's trunk for the nodes of the forest, as one sequence."""
    if model.training and checkpoints(model):
        layout = replace(layout, sparing=False)
    with attending(model, layout):
        return trunk_of(model)(
            input_ids=layout.forest.id_N[None],
            position_ids=layout.forest.depth_N[None],
            use_cache=False,
            strop_layout=layout,
            **more,
        )


When = Literal["auto", "on", "off"]
LEAST_SAVED = 0.2  # share of the work, for "auto"
KINDS = {"full_attention", "sliding_attention"}


def worthwhile(
    batch: Batch, when: When, width: int, passes: Sequence[Tensor] = (), pass_tokens: int = 0
) -> Rows | None:
    """Returns the batch's contexts if their shared prefixes are to be computed once, else None.

    width: that of the model's hidden states. passes: the rollouts of each pass without sharing, by
    default one pass of all; each context is padded to the longest of its pass. A position costs the
    layers about 24 * width^2 operations, and attention 4 * width for each position that is compared
    with it: here a forest, whose blocks have masks, does more than causal attention needs. A pass
    costs `pass_tokens` tokens beside its own.
    """
    if when == "off" or batch.size("T") == 0:
        return None
    context_T, num = batch.contexts()
    rows = rows_of(batch["id_T"], context_T, num)
    if when == "on":
        return rows
    longest_B, contexts_B = batch.padded()
    plain = 0.0
    for index_B in passes or [batch["index_B"]]:
        longest, contexts = int(longest_B[index_B].max()), int(contexts_B[index_B].sum())
        plain += longest * contexts * (6 * width + longest / 2) + 6 * width * pass_tokens
    shared = 6 * width * (rows.num_nodes + pass_tokens) + compared(rows)
    return rows if shared <= (1 - LEAST_SAVED) * plain else None


def layout(
    micro: Batch, when: When, width: int, token_budget: int, device: torch.device | None = None
) -> Layout | None:
    """The forest of a micro-batch, laid out for attention; None if contexts are computed apart.

    A micro-batch that `split` has cut from a shared batch, and that is too large without sharing,
    is shared whatever it saves. device: that of the result, if it is not the micro-batch's.
    """
    longest_B, contexts_B = micro.padded()
    several = when == "auto" and len(longest_B) > 1
    if several and int(longest_B.max()) * int(contexts_B.sum()) > token_budget:
        when = "on"
    rows = worthwhile(micro, when, width)
    return None if rows is None else lay_out(plant(rows.to(device or rows.id_CL.device)))


def split(batch: Batch, rows: Rows, token_budget: int) -> list[Tensor]:
    """Rollout indices of micro-batches with at most `token_budget` nodes, similar ones together.

    A larger rollout gets its own micro-batch.
    """
    place_C = rows.place_C
    context_T, num = batch.contexts()
    rollout_C = batch["rollout_T"][segments.first(context_T, num)]
    # Rollouts in the order of their first contexts, each with all of its own.
    first_B = segments.first(rollout_C, batch.size("B"))
    order_B = torch.argsort(place_C[first_B])
    own_C = segments.rows_of(rollout_C, order_B, batch.size("B"))
    opens_C = first_B[rollout_C[own_C]] == own_C
    alike_C = num_shared_with_previous(rows.id_CL[place_C[own_C]])
    added_C = rows.size_C[place_C[own_C]] - alike_C
    turn_C = opens_C.cumsum(0) - 1
    added = segments.total(added_C, turn_C, batch.size("B")).tolist()
    saved = alike_C[opens_C].tolist()
    cuts, start, held = [], 0, 0
    for place, more in enumerate(added):
        held += more
        if place > start and held > token_budget:
            cuts.append(place - start)
            start, held = place, more + saved[place]
    return list(torch.split(order_B, [*cuts, len(added) - start]))


@torch.no_grad()
def why_not(model: Any) -> str:
    """Why the model cannot compute a prefix once for several contexts; empty where it can.

    A small forest is compared with plain forward passes.
    """
    config = text_config(model)
    if (attention := config._attn_implementation) != "sdpa":
        return f"its attention is {attention}, and only sdpa supports it"
    kinds = set(getattr(config, "layer_types", None) or ())
    if kinds - KINDS:
        return f"it has layers of {', '.join(sorted(kinds - KINDS))}"
    ids_CL, device = _trial(config), next(model.parameters()).device
    ids_CL = ids_CL.to(device)
    num, width = ids_CL.shape
    context_T = torch.repeat_interleave(torch.arange(num, device=device), width)
    laid_out = lay_out(plant(rows_of(ids_CL.flatten(), context_T, num)))
    plain = trunk_of(model)(input_ids=ids_CL, use_cache=False).last_hidden_state
    try:
        found = pass_over(model, laid_out).last_hidden_state[0]
    except REFUSED as error:
        return f"its layers do not accept a forest of prefixes ({str(error).splitlines()[0]})"
    if laid_out.windows != _windows(config):
        return "its layers do not say how far they look back"
    found, plain = found[laid_out.forest.node_CL].double(), plain.double()
    difference = float((found - plain).norm() / plain.norm())
    exact = model.dtype in (torch.float32, torch.float64)
    if not difference < (1e-4 if exact else 0.1):
        return f"its hidden states then differ by {difference:.1%}"
    return ""


def _trial(config: Any) -> Tensor:
    """Contexts for a trial: four share a prefix, two of them a longer one, and one shares none.
    They fill more than a block of the attention."""
    length = min(16, int(getattr(config, "max_position_embeddings", None) or 16))
    ids_CL = torch.arange(5 * length).view(5, length) * 7 + 3
    ids_CL[1:4, : length // 2] = ids_CL[0, : length // 2]
    ids_CL[2, : length - 2] = ids_CL[1, : length - 2]
    return ids_CL % config.vocab_size


def _windows(config: Any) -> set[int | None]:
    """How far layers look back, by the model's configuration; None: to the beginning."""
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None) or ("sliding_attention",)
    return {window if kind == "sliding_attention" else None for kind in kinds}


def checkpoints(model: Any) -> bool:
    """Returns whether the model's layers are checkpointed: recomputed in backward from inputs."""
    newer = getattr(model, "is_activation_checkpointing", None)
    return bool(model.is_gradient_checkpointing if newer is None else newer)
