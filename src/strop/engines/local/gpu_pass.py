"""The decoding pass for models like Llama on a GPU, with few and large kernels.

    a layer:  out, norm, gate and up, silu, down, norm, q k v, rotation   compiled as one function
              attention of the newest token, which writes the cache       `newest_attention`

torch.compile fuses the operations between products, so that a layer is some ten kernels, and two
more for each product that has an adapter. Weights that are read together are concatenated, in
copies that are updated in place, so that recorded passes (`cuda_graphs`) can keep reading them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, linear, silu

from strop.engines.local.cache import SlotCache

LEAST_HEAD = 16  # least head size that tensor cores can multiply


class Product(NamedTuple):
    """x W^T + b of layers with the same input, concatenated; with adapters + (x A^T) B^T."""

    weight: Tensor
    bias: Tensor | None
    first: Tensor | None  # A of all layers, concatenated
    second: Tensor | None  # B, scaled and block-diagonal: each layer reads its own A's output

    def __call__(self, x: Tensor) -> Tensor:
        found = linear(x, self.weight, self.bias)
        if self.first is None or self.second is None:
            return found
        return plus(found, linear(linear(x, self.first), self.second))


class Weights(NamedTuple):
    """The weights of a layer. heads: those of the norms of q and k [query and key heads, size]."""

    before: Tensor
    qkv: Product
    heads: Tensor | None
    out: Product
    after: Tensor
    gate_up: Product
    down: Product


class Sizes(NamedTuple):
    """Numbers of query heads and of key heads, the size of a head, and the eps of the norms."""

    queries: int
    shared: int
    size: int
    eps: float


class GpuPass:
    """The pass. Call `pack` before it, and again after weights change."""

    def __init__(self, model: Any) -> None:
        self.model, self.trunk = model, model.model
        config, first = model.config, self.trunk.layers[0].self_attn
        queries, size = int(config.num_attention_heads), int(first.head_dim)
        self.sizes = Sizes(queries, int(config.num_key_value_heads), size, config.rms_norm_eps)
        self.scale = float(first.scaling)
        window = int(getattr(config, "sliding_window", None) or 0)
        kinds = getattr(config, "layer_types", None)  # None: one window for all, as in Mistral
        kinds = kinds or ["sliding_attention"] * len(self.trunk.layers)
        self.windows = [window if kind == "sliding_attention" else 0 for kind in kinds]
        self.layers: list[Weights] = []
        self.angles: tuple[Tensor, Tensor] | None = None
        self.first, self.between, self.last = _functions(self.sizes, model.device.type == "cuda")

    def pack(self) -> None:
        """Concatenate weights, into the earlier copies if there are any."""
        with torch.inference_mode(False), torch.no_grad():
            for number, layer in enumerate(self.trunk.layers):
                new = _weights(layer)
                if number == len(self.layers):
                    self.layers.append(new)
                    continue
                for own, other in zip(_leaves(self.layers[number]), _leaves(new), strict=True):
                    if own.data_ptr() != other.data_ptr():  # else it is the module's own tensor
                        own.copy_(other)

    def release(self) -> None:
        """Drop the copies."""
        self.layers, self.angles = [], None

    def tensors(self) -> list[Tensor]:
        """The weights that the pass reads, copies included."""
        return [each for layer in self.layers for each in _leaves(layer)]

    def reach(self, places: int) -> None:
        """Compute the angles of so many positions."""
        if self.angles is None or len(self.angles[0]) < places:
            like = self.trunk.embed_tokens.weight
            position = torch.arange(places, device=like.device)[None]
            cos, sin = (each[0] for each in self.trunk.rotary_emb(like, position))
            half = self.sizes.size // 2
            self.angles = cos, torch.cat([-sin[:, :half], sin[:, half:]], -1)

    def __call__(self, token_N: Tensor, place_N: Tensor, cache: SlotCache) -> Tensor:
        """Logits [N, V] after tokens of the first N slots at their places. A slot with place -1 is
        idle, and its logits mean nothing.
        """
        from strop.engines.local.newest_attention import attend

        assert self.angles is not None, "`reach` comes first"
        position_N = place_N.clamp(min=0)
        turn = tuple(each[position_N][:, None] for each in self.angles)
        hidden = embedding(token_N, self.trunk.embed_tokens.weight)
        turned, value = self.first(_by_rows(hidden), self.layers[0], *map(_by_rows, turn))
        queries = self.sizes.queries
        for number, own in enumerate(self.layers):
            keys, values = cache.stores(number, value)
            seen = _by_rows(attend(
                turned[:, :queries], turned[:, queries:], value, keys, values,
                cache.line_N, place_N, self.scale, self.windows[number],
            ))  # fmt: skip
            if number + 1 < len(self.layers):
                following = self.layers[number + 1]
                hidden, turned, value = self.between(_by_rows(hidden), seen, own, following, *turn)
        found: Tensor = self.model.lm_head(
            self.last(_by_rows(hidden), seen, self.layers[-1], self.trunk.norm.weight)
        )
        return found


def _by_rows(tensor: Tensor) -> Tensor:
    """Mark the tensor's number of rows as varying from pass to pass."""
    torch._dynamo.maybe_mark_dynamic(tensor, 0)
    return tensor


def _leaves(weights: Weights) -> list[Tensor]:
    parts = (each if isinstance(each, Product) else (each,) for each in weights)
    return [each for part in parts for each in part if each is not None]


def _weights(layer: Any) -> Weights:
    """A layer's weights; those that are read together are concatenated."""
    own, mlp = layer.self_attn, layer.mlp
    heads = None
    if hasattr(own, "q_norm"):
        pairs = (own.q_norm, own.q_proj), (own.k_norm, own.k_proj)
        norms = [n.weight.expand(of.out_features // own.head_dim, -1) for n, of in pairs]
        heads = torch.cat(norms).detach()
    return Weights(
        layer.input_layernorm.weight.detach(), _product(own.q_proj, own.k_proj, own.v_proj), heads,
        _product(own.o_proj), layer.post_attention_layernorm.weight.detach(),
        _product(mlp.gate_proj, mlp.up_proj), _product(mlp.down_proj),
    )  # fmt: skip


def _product(*layers: Any) -> Product:
    weight = _joined([each.weight for each in layers])
    bias = None if layers[0].bias is None else _joined([each.bias for each in layers])
    adapted = [each for each in layers if is_adapted(each)]
    if not adapted:
        return Product(weight, bias, None, None)
    ranks = [each.r[each.active_adapters[0]] if each in adapted else 0 for each in layers]
    first = torch.cat([each.lora_A[each.active_adapters[0]].weight for each in adapted])
    second = first.new_zeros(len(weight), sum(ranks))
    row = column = 0
    for layer, rank in zip(layers, ranks, strict=True):
        if rank:
            name = layer.active_adapters[0]
            block = second[row : row + layer.out_features, column : column + rank]
            block.copy_(layer.lora_B[name].weight.detach() * layer.scaling[name])
        row, column = row + layer.out_features, column + rank
    return Product(weight, bias, first.detach().to(weight.dtype), second.to(weight.dtype))


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0].detach() if len(parts) == 1 else torch.cat(parts).detach()


def why_not_heads(size: int) -> str:
    """Why the kernel does not support heads of this size; empty where it does."""
    fits = size >= LEAST_HEAD and size & (size - 1) == 0
    return "" if fits else f"its heads are of {size} numbers, no power of 2 from {LEAST_HEAD} on"


def is_adapted(layer: Any) -> bool:
    """Whether the layer has an adapter beside its weight."""
    return hasattr(layer, "lora_A")


def why_not_adapted(layer: Any) -> str:
    """Why the layer's adapter is not x A^T B^T; empty where it is, and where there is none."""
    if not is_adapted(layer):
        return ""
    names = layer.active_adapters
    if len(names) != 1 or layer.merged or layer.disable_adapters:
        return "an adapted layer has several adapters, or one that is merged or off"
    name = names[0]
    dropout = layer.lora_dropout[name]
    plain = isinstance(dropout, nn.Identity) or dropout.p == 0
    variants = getattr(layer, "lora_variant", {}), getattr(layer, "use_dora", {})
    if any(bool(each.get(name)) for each in variants) or layer.lora_B[name].bias is not None:
        return "an adapted layer has more than A and B"
    if getattr(layer, "fan_in_fan_out", False) or not plain:
        return "an adapted layer has its weight turned round, or dropout"
    return ""


def plus(hidden: Tensor, more: Tensor) -> Tensor:
    """The sum, written so that torch does not add a product in place, which would copy `hidden`."""
    return (hidden.float() + more.float()).to(hidden.dtype)


def _functions(sizes: Sizes, compiles: bool) -> tuple[Callable[..., Any], ...]:
    """The functions before the first attention, between two, and after the last."""
    queries, shared, size, eps = sizes
    both, half = queries + shared, size // 2

    def norm(x: Tensor, weight: Tensor) -> Tensor:
        wide = x.float()  # rounded once, as in the norms of models on a GPU: see support.linear
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
        return (wide * scale * weight.float()).to(x.dtype)

    def enter(hidden: Tensor, own: Weights, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        found = own.qkv(norm(hidden, own.before)).view(-1, both + shared, size)
        turned, value = found[:, :both], found[:, both:]
        if own.heads is not None:
            turned = norm(turned, own.heads)
        return turned * cos + turned.roll(half, -1) * sin, value

    def leave(hidden: Tensor, seen: Tensor, own: Weights) -> Tensor:
        hidden = plus(hidden, own.out(seen))
        gate, up = own.gate_up(norm(hidden, own.after)).chunk(2, -1)
        return plus(hidden, own.down(silu(gate) * up))

    def between(
        hidden: Tensor, seen: Tensor, own: Weights, following: Weights, cos: Tensor, sin: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        hidden = leave(hidden, seen, own)
        return hidden, *enter(hidden, following, cos, sin)

    def last(hidden: Tensor, seen: Tensor, own: Weights, weight: Tensor) -> Tensor:
        return norm(leave(hidden, seen, own), weight)

    if not compiles:
        return enter, between, last
    return tuple(torch.compile(each) for each in (enter, between, last))
