"""The pass that gives each row its next token, for models like Llama on a GPU: few, large kernels.

    a layer:  out, norm, gate and up, silu, down, norm, q k v, turning    compiled as one function
              attention of the newest token, which writes the cache       `newest_attention`

torch.compile joins what lies between products, so that a layer is some ten kernels. Weights that
are read together lie side by side, in copies that are brought up to date in place: recorded passes
(`cuda_graphs`) go on reading them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import embedding, linear, silu

from strop.engines.local.cache import SlotCache


class Weights(NamedTuple):
    """Of a layer. heads: of the norms of q and k, [query and key heads, size]; None: none."""

    before: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    heads: Tensor | None
    out: Tensor
    out_bias: Tensor | None
    after: Tensor
    gate_up: Tensor
    gate_up_bias: Tensor | None
    down: Tensor
    down_bias: Tensor | None


class Sizes(NamedTuple):
    """Query heads, heads of keys, the size of one, and what norms add to the mean square."""

    queries: int
    shared: int
    size: int
    eps: float


class GpuPass:
    """`pack` it before it is called, and again after weights change."""

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
        """Lay weights side by side, in the copies of before where there are any."""
        before: Sequence[Weights | None] = self.layers or [None] * len(self.trunk.layers)
        self.layers = [_weights(*each) for each in zip(self.trunk.layers, before, strict=True)]

    def release(self) -> None:
        """Let the copies go."""
        self.layers, self.angles = [], None

    def tensors(self) -> list[Tensor]:
        """The weights that it reads and the module has not."""
        return [each for layer in self.layers for each in layer if each is not None]

    def reach(self, places: int) -> None:
        """Know the angles of so many positions."""
        if self.angles is None or len(self.angles[0]) < places:
            like = self.trunk.embed_tokens.weight
            position = torch.arange(places, device=like.device)[None]
            cos, sin = (each[0] for each in self.trunk.rotary_emb(like, position))
            half = self.sizes.size // 2
            self.angles = cos, torch.cat([-sin[:, :half], sin[:, half:]], -1)

    def __call__(self, token_N: Tensor, place_N: Tensor, cache: SlotCache) -> Tensor:
        """Logits [N, V] after tokens of the first N slots at their places. Nothing runs in a slot
        whose place is -1: its logits mean nothing.
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
    """The tensor, marked as one whose number of rows differs from pass to pass."""
    torch._dynamo.maybe_mark_dynamic(tensor, 0)
    return tensor


def _weights(layer: Any, into: Weights | None) -> Weights:
    """A layer's, those that are read together side by side; in the copies of `into` if given."""
    own, mlp = layer.self_attn, layer.mlp

    def laid(name: str, *given: Tensor | None) -> Tensor | None:
        parts = [each.detach() for each in given if each is not None]
        return (
            torch.cat(parts, out=None if into is None else getattr(into, name)) if parts else None
        )

    def both(name: str, *layers: Any) -> tuple[Any, Tensor | None]:
        weight = laid(name, *(each.weight for each in layers))
        return weight, laid(f"{name}_bias", *(each.bias for each in layers))

    heads = None
    if hasattr(own, "q_norm"):
        pairs = (own.q_norm, own.q_proj), (own.k_norm, own.k_proj)
        heads = laid("heads", *(
            norm.weight.expand(of.out_features // own.head_dim, -1) for norm, of in pairs
        ))  # fmt: skip
    out, down = own.o_proj, mlp.down_proj
    return Weights(
        layer.input_layernorm.weight.detach(), *both("qkv", own.q_proj, own.k_proj, own.v_proj),
        heads, out.weight.detach(), None if out.bias is None else out.bias.detach(),
        layer.post_attention_layernorm.weight.detach(),
        *both("gate_up", mlp.gate_proj, mlp.up_proj),
        down.weight.detach(), None if down.bias is None else down.bias.detach(),
    )  # fmt: skip


def _functions(sizes: Sizes, compiles: bool) -> tuple[Callable[..., Any], ...]:
    """What comes before the first attention, between two, and after the last."""
    queries, shared, size, eps = sizes
    both, half = queries + shared, size // 2

    def norm(x: Tensor, weight: Tensor) -> Tensor:
        wide = x.float()  # rounded once, as the norms of models on a GPU do: see support.linear
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
        return (wide * scale * weight.float()).to(x.dtype)

    def enter(hidden: Tensor, own: Weights, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        found = linear(norm(hidden, own.before), own.qkv, own.qkv_bias)
        found = found.view(-1, both + shared, size)
        turned, value = found[:, :both], found[:, both:]
        if own.heads is not None:
            turned = norm(turned, own.heads)
        return turned * cos + turned.roll(half, -1) * sin, value

    def plus(hidden: Tensor, more: Tensor) -> Tensor:
        # the same sum, but no product that is added in place: for that, what is there is copied
        return (hidden.float() + more.float()).to(hidden.dtype)

    def leave(hidden: Tensor, seen: Tensor, own: Weights) -> Tensor:
        hidden = plus(hidden, linear(seen, own.out, own.out_bias))
        inner = linear(norm(hidden, own.after), own.gate_up, own.gate_up_bias)
        gate, up = inner.chunk(2, -1)
        return plus(hidden, linear(silu(gate) * up, own.down, own.down_bias))

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
