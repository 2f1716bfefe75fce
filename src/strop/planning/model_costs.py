"""Counts a model's parameters, cache bytes and operations from its configuration alone.

a token forward    2 operations for each active parameter except the input embedding
                   4 heads head_dim layers operations for each token that it attends to
backward           twice as many as forward
cache of a token   2 kv_heads head_dim layers numbers
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strop.support.errors import UserError
from strop.support.files import text_of
from strop.support.folder_hints import model_inside

# Families for which tests compare the counts with models that transformers builds.
KNOWN = ("llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe")
BIASED = ("qwen2", "qwen2_moe")  # query, key and value have biases, without a setting for them
NORMED = ("qwen3", "qwen3_moe")  # each head's query and key are normed
# transformers ties the head of these to the embedding unless the configuration says otherwise
TIED = ("cohere", "ernie4_5", "gemma", "smollm3", "starcoder2")
NEEDED = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
UNLIKE = {
    "kv_lora_rank": "its attention keeps compressed keys",
    "linear_num_value_heads": "some of its layers keep a state in place of a cache",
    "mamba_num_heads": "some of its layers keep a state in place of a cache",
}


@dataclass(frozen=True)
class Model:
    """A decoder with gated feed-forward layers, dense or of experts."""

    name: str
    kind: str  # model_type of the configuration
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    inner: int  # width of a dense feed-forward layer
    tied: bool
    attention_extra: int  # biases and norms of a layer's attention
    # for layers with experts: their number, experts, experts of a token, and widths
    sparse_layers: int = 0
    experts: int = 0
    chosen: int = 0
    expert_inner: int = 0
    shared_inner: int = 0
    shared_gate: int = 0  # parameters that weigh the shared expert

    @property
    def embedding(self) -> int:
        """Parameters of the input embedding."""
        return self.vocabulary * self.hidden

    @property
    def attention(self) -> int:
        """Parameters of a layer's attention."""
        outward = self.hidden * self.heads * self.head_dim
        inward = self.hidden * (self.heads + 2 * self.kv_heads) * self.head_dim
        return inward + outward + self.attention_extra

    @property
    def expert(self) -> int:
        """Parameters of one expert of one layer."""
        return 3 * self.hidden * self.expert_inner

    @property
    def all_experts(self) -> int:
        """Parameters of all routed experts."""
        return self.sparse_layers * self.experts * self.expert

    @property
    def parameters(self) -> int:
        """The number of all parameters."""
        dense = (self.layers - self.sparse_layers) * 3 * self.hidden * self.inner
        beside = self.hidden * (self.experts + 3 * self.shared_inner) + self.shared_gate
        layers = self.layers * (self.attention + 2 * self.hidden) + self.sparse_layers * beside
        ends = self.embedding * (1 if self.tied else 2) + self.hidden
        return layers + dense + self.all_experts + ends

    @property
    def active(self) -> int:
        """Parameters that a token uses, including the input embedding."""
        idle = self.sparse_layers * (self.experts - self.chosen) * self.expert
        return self.parameters - idle

    @property
    def multiplied(self) -> int:
        """Parameters that a token is multiplied by: active ones without the embedding lookup."""
        return self.active - (0 if self.tied else self.embedding)

    def cache_bytes(self, bytes_each: float) -> float:
        """Bytes of a token's cache in all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * bytes_each

    @property
    def per_token(self) -> float:
        """Forward operations of a token, without attention to others."""
        return 2.0 * self.multiplied

    @property
    def per_pair(self) -> float:
        """Forward operations of a token for each token that it attends to."""
        return 4.0 * self.heads * self.head_dim * self.layers

    def forward(self, tokens: float) -> float:
        """Forward operations of a sequence of so many tokens with causal attention."""
        return self.per_token * tokens + self.per_pair * tokens**2 / 2


def read_model(path: Path) -> Model:
    """Read the model of a folder with config.json, or of that file. Raises UserError."""
    place = path / "config.json" if path.is_dir() else path
    if not place.is_file():
        raise UserError(
            f"{path} has no config.json: give that file, or the folder of a model"
            f"{model_inside(path)}. A name on the Hugging Face hub is not fetched; its config.json "
            "alone, saved here, is enough"
        )
    try:
        raw = json.loads(text_of(place, "the model's configuration"))
    except ValueError as error:
        raise UserError(f"{place} is no JSON: {error}") from error
    if not isinstance(raw, dict):
        raise UserError(f"{place} is not a model's configuration: it is not a JSON object")
    nested = raw.get("text_config")
    name = path.resolve().name if path.is_dir() else path.resolve().parent.name
    return model_of(nested if isinstance(nested, dict) else raw, name, place)


def model_of(raw: Mapping[str, Any], name: str, place: Path) -> Model:
    """The model of a parsed configuration. Raises UserError, which names missing fields."""
    for field, why in UNLIKE.items():
        if raw.get(field):
            raise UserError(f"{place} has {field}: {why}, which strop plan does not model")
    if "linear_attention" in (raw.get("layer_types") or ()):
        raise UserError(f"{place} has layers of linear attention, which strop plan does not model")
    experts = next((number for field in EXPERTS if (number := _whole(raw, field))), 0)
    inner = ("moe_intermediate_size",) if experts and "moe_intermediate_size" in raw else (
        "intermediate_size",
    )  # fmt: skip
    chosen = ("num_experts_per_tok",) if experts else ()
    missing = [field for field in (*NEEDED, *inner, *chosen) if not _whole(raw, field)]
    if missing:
        raise UserError(
            f"{place} lacks {', '.join(missing)} (whole numbers above 0), which the model's costs "
            "follow from: give the config.json of a decoder such as Qwen3 or Llama"
        )
    hidden, layers, heads, vocabulary = (_whole(raw, field) for field in NEEDED)
    kind = str(raw.get("model_type", ""))
    kv_heads = _whole(raw, "num_key_value_heads") or heads
    head_dim = _whole(raw, "head_dim") or hidden // heads
    biased = kind in BIASED or bool(raw.get("attention_bias"))
    extra = (heads + 2 * kv_heads) * head_dim if biased else 0
    extra += hidden if biased and kind not in BIASED else 0  # bias of the output projection
    extra += 2 * head_dim if kind in NORMED else 0
    shared = _whole(raw, "shared_expert_intermediate_size")
    expert_inner = _whole(raw, inner[0])
    return Model(
        name, kind, layers, hidden, heads, kv_heads, head_dim, vocabulary,
        _whole(raw, "intermediate_size"),
        bool(raw.get("tie_word_embeddings", kind.startswith(TIED))), extra,
        sparse_layers=_sparse(raw, layers) if experts else 0, experts=experts,
        chosen=_whole(raw, "num_experts_per_tok") if experts else 0,
        expert_inner=expert_inner if experts else 0,
        shared_inner=(shared or expert_inner * _whole(raw, "n_shared_experts")) if experts else 0,
        shared_gate=hidden if experts and shared else 0,
    )  # fmt: skip


def _sparse(raw: Mapping[str, Any], layers: int) -> int:
    """The number of layers with experts."""
    every = _whole(raw, "decoder_sparse_step") or 1
    dense = set(raw.get("mlp_only_layers") or ()) | set(range(_whole(raw, "first_k_dense_replace")))
    return sum((layer + 1) % every == 0 and layer not in dense for layer in range(layers))


def _whole(raw: Mapping[str, Any], field: str) -> int:
    """A field that is a whole number above 0; else 0."""
    value = raw.get(field)
    return value if type(value) is int and value > 0 else 0
