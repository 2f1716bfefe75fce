"""A model's forward pass without its modules, for generating on a CPU: fewer and larger operators.

For a model whose layers are those of Llama:

    q, k, v = one product;  q and k are normed (Qwen3) and rotated by their positions together
    gate, up = one product
    where only caches are filled, the last layer ends with its keys and values

Weights are concatenated, and packed for oneDNN where they are large; the copies are dropped before
weights change. Everything else (caches, masks, attention) is the model's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.llama import modeling_llama

from strop.engines.local.cache import attend_newest
from strop.engines.local.gpu_pass import is_adapted, why_not_adapted
from strop.support import linear

CLASSES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
ROPES = ("default", "linear", "llama3")  # their angles depend on the position alone
DTYPES = (torch.float32, torch.bfloat16)
LINEAR = (nn.Linear, linear.Linear)
KNOWN = ("torch.", "transformers.", linear.__name__)  # packages of known modules
Logits = Literal["last", "all", "none"]  # of each row's last token, of all tokens, or of none


@dataclass
class Product:
    """x W^T + b of layers with the same input, concatenated."""

    plain: Tensor | None  # [O, I]; None for a large weight, of which only the packed copy is used
    packed: Tensor | None  # None for a small weight until it has many rows
    packs: bool  # False: torch's own product
    size: int  # the weight's number of elements
    bias: Tensor | None

    @classmethod
    def of(cls, *layers: nn.Linear) -> Product:
        """Concatenate the layers' weights."""
        weight = torch.cat([each.weight.detach() for each in layers])
        biases = [each.bias for each in layers if each.bias is not None]
        bias = torch.cat([each.detach() for each in biases]) if biases else None
        packs = all(type(each) is linear.Linear for each in layers)
        large = packs and weight.numel() * linear.PACKED_ROWS >= linear.LEAST
        plain, packed = (None, linear.packed(weight)) if large else (weight, None)
        return cls(plain, packed, packs, weight.numel(), bias)

    def __call__(self, x_NI: Tensor) -> Tensor:
        small = len(x_NI) * self.size < linear.LEAST
        if self.plain is not None and (small or not self.packs):
            return nn.functional.linear(x_NI, self.plain, self.bias)
        if self.packed is None:
            assert self.plain is not None
            self.packed = linear.packed(self.plain)
        return linear.product(x_NI, self.packed, self.bias)


class Layer(NamedTuple):
    """The weights and norms of one layer."""

    attention: Any  # the module, an argument of the attention function
    qkv: Product
    out: Product
    gate_up: Product
    down: Product
    heads: Tensor | None  # [query and key heads, 1 or size] weights of the norms of q and k
    before: Any  # the norm before attention
    after: Any  # the norm after attention
    kind: str  # the kind of its mask


class Fused:
    """The fused pass of a model: `pack` it before it is called, `unpack` before weights change."""

    def __init__(self, model: Any) -> None:
        self.model, self.trunk = model, model.model
        self.config = model.config
        self.size = int(getattr(self.config, "head_dim", 0) or 0) or (
            self.config.hidden_size // self.config.num_attention_heads
        )
        self.queries = int(self.config.num_attention_heads)
        self.keys = int(self.config.num_key_value_heads)
        self.layers: tuple[Layer, ...] = ()
        self.angles: tuple[Tensor, Tensor] | None = None

    def pack(self) -> None:
        """Concatenate and pack the current weights."""
        kinds = getattr(self.config, "layer_types", None) or ["full_attention"] * len(
            self.trunk.layers
        )
        self.layers = tuple(map(self._layer, self.trunk.layers, kinds))

    def unpack(self) -> None:
        """Drop the packed copies."""
        self.layers = ()

    def _layer(self, layer: Any, kind: str) -> Layer:
        own, mlp = layer.self_attn, layer.mlp
        heads = None
        if hasattr(own, "q_norm"):
            norms = [own.q_norm.weight] * self.queries + [own.k_norm.weight] * self.keys
            heads = torch.stack([each.detach() for each in norms])
        return Layer(
            own, Product.of(own.q_proj, own.k_proj, own.v_proj), Product.of(own.o_proj),
            Product.of(mlp.gate_proj, mlp.up_proj), Product.of(mlp.down_proj), heads,
            layer.input_layernorm, layer.post_attention_layernorm, kind,
        )  # fmt: skip

    def __call__(
        self, ids_NQ: Tensor, position_NQ: Tensor, masks: Tensor | Mapping[str, Tensor],
        cache: Any, used: int, logits: Logits, **more: Any,
    ) -> Tensor | None:  # fmt: skip
        """Logits [N, V] after each row's last token or [N, Q, V]; None where none are wanted.

        used: all positions are below it. more: further arguments of the model's attention.
        """
        hidden = nn.functional.embedding(ids_NQ, self.trunk.embed_tokens.weight)
        turn = self._turn(position_NQ, used, hidden.dtype)
        attend: Callable[..., Any] = ALL_ATTENTION_FUNCTIONS.get_interface(
            self.config._attn_implementation, modeling_llama.eager_attention_forward
        )
        last = len(self.layers) - 1
        alone = self.config._attn_implementation == "sdpa" and ids_NQ.shape[1] == 1 and not more
        for number, layer in enumerate(self.layers):
            query, key, value = self._heads(layer, _normed(layer.before, hidden), turn)
            key, value = cache.update(key, value, number)
            if logits == "none" and number == last:
                return None
            mask = masks if isinstance(masks, Tensor) else masks[layer.kind]
            own = layer.attention
            if alone:
                seen = attend_newest(query, key, value, mask, own.scaling)
            else:
                seen, _ = attend(
                    own, query, key, value, mask, dropout=0.0, scaling=own.scaling,
                    sliding_window=getattr(own, "sliding_window", None), **more,
                )  # fmt: skip
            hidden = hidden + _over_rows(layer.out, seen.flatten(2))
            gate, up = _over_rows(layer.gate_up, _normed(layer.after, hidden)).chunk(2, -1)
            inner = nn.functional.silu(gate).mul_(up)
            hidden = hidden + _over_rows(layer.down, inner)
        hidden = _normed(self.trunk.norm, hidden[:, -1] if logits == "last" else hidden)
        found: Tensor = self.model.lm_head(hidden)
        return found

    def _heads(
        self, layer: Layer, hidden: Tensor, turn: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values [N, heads, Q, size]."""
        both = self.queries + self.keys
        found = _over_rows(layer.qkv, hidden)
        found = found.view(*hidden.shape[:-1], both + self.keys, self.size)
        turned, value = found[..., :both, :], found[..., both:, :]
        if layer.heads is not None:
            turned = _head_norm(turned, layer.heads, layer.attention.q_norm.variance_epsilon)
        cos, sin = turn
        turned = torch.addcmul(turned * cos, turned.roll(self.size // 2, -1), sin)
        query, key = turned[..., : self.queries, :], turned[..., self.queries :, :]
        return query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)

    def _turn(self, position_NQ: Tensor, used: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cosines and sines [N, Q, 1, size] of the positions; sines of the first half negative."""
        if self.angles is None or len(self.angles[0]) < used or self.angles[0].dtype != dtype:
            places = torch.arange(max(2 * used, 64), device=position_NQ.device)[None]
            like = torch.empty(0, dtype=dtype, device=position_NQ.device)
            cos, sin = (each[0] for each in self.trunk.rotary_emb(like, places))
            half = self.size // 2
            self.angles = cos, torch.cat([-sin[:, :half], sin[:, half:]], -1)
        return self.angles[0][position_NQ][:, :, None], self.angles[1][position_NQ][:, :, None]


def _over_rows(product: Product, x: Tensor) -> Tensor:
    return product(x.flatten(0, -2)).view(*x.shape[:-1], -1)


def _normed(norm: Any, x: Tensor) -> Tensor:
    """Apply a norm as layers of transformers do."""
    if x.dtype != torch.float32:
        found: Tensor = norm(x)
        return found
    return rms_norm(x, norm.weight.shape, norm.weight, norm.variance_epsilon)


def _head_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    if x.dtype == torch.float32:
        return rms_norm(x, x.shape[-1:], None, eps).mul_(weight)
    return rms_norm(x.float(), x.shape[-1:], None, eps).to(x.dtype).mul_(weight)


def why_not(model: Any, adapters: bool = False) -> str:
    """Why a model's pass cannot be fused; empty where it can. adapters: LoRA is supported."""
    name = type(model).__name__
    if name not in CLASSES or not type(model).__module__.startswith("transformers."):
        return f"{name} is not one of {', '.join(CLASSES)}"
    if model.device.type not in ("cpu", "cuda") or model.dtype not in DTYPES:
        return f"it is {model.dtype} on {model.device.type}"
    rope = model.config.rope_parameters["rope_type"]
    if rope not in ROPES or model.config.hidden_act != "silu":
        return f"its positions are {rope}, its activation is {model.config.hidden_act}"
    known = (*KNOWN, "peft.tuners.lora.") if adapters else KNOWN
    for module in model.modules():
        if not type(module).__module__.startswith(known):  # an adapter, wherever it is
            return f"it has a {type(module).__module__}.{type(module).__name__}"
        if module._forward_hooks or module._forward_pre_hooks:
            return f"a {type(module).__name__} has a hook"
    weights = {type(each) for each in model.parameters()}
    if weights != {nn.Parameter}:
        return f"it has weights of type {', '.join(sorted(each.__name__ for each in weights))}"
    layers = [each for layer in model.model.layers for each in _linear_layers(layer)]
    plain = [each.base_layer if adapters and is_adapted(each) else each for each in layers]
    if odd := {type(each).__name__ for each in plain if type(each) not in LINEAR}:
        return f"it has layers of type {', '.join(sorted(odd))}"
    if adapters and (why := next(filter(None, map(why_not_adapted, layers)), "")):
        return why
    if type(model.model.embed_tokens) is not nn.Embedding:
        return "its embedding is adapted"
    for layer in model.model.layers:
        q, k, v, _, gate, up, _ = (each.bias is None for each in _linear_layers(layer))
        if not q == k == v or gate != up:
            return "some of the layers that read the same have a bias"
    return ""


def _linear_layers(layer: Any) -> list[Any]:
    own, mlp = layer.self_attn, layer.mlp
    return [own.q_proj, own.k_proj, own.v_proj, own.o_proj, mlp.gate_proj, mlp.up_proj,
            mlp.down_proj]  # fmt: skip
