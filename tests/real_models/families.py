"""Small random models of commonly trained families, each with its special features."""

from pathlib import Path
from typing import Any

import torch
from fakes import models
from models import tokenizer
from transformers import (
    AutoModelForCausalLM,
    CohereConfig,
    Gemma3TextConfig,
    GPT2Config,
    GraniteConfig,
    LlamaConfig,
    Qwen3Config,
    Qwen3MoeConfig,
)

SHARED = {
    "vocab_size": 24, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4,
    "max_position_embeddings": 64, "initializer_range": 0.3, "bos_token_id": None,
    "eos_token_id": 1, "pad_token_id": 0,
}  # fmt: skip
NO_HEAD_DIM = {name: value for name, value in SHARED.items() if name != "head_dim"}
KINDS = ["sliding_attention", "full_attention"]
FAMILIES: dict[str, Any] = {
    "qwen3-tied": Qwen3Config(**SHARED, tie_word_embeddings=True),
    "qwen3-untied": Qwen3Config(**SHARED, tie_word_embeddings=False),
    "qwen3-moe": Qwen3MoeConfig(
        **SHARED, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=8,
        norm_topk_prob=True,
        experts_implementation="eager",  # the others count in float32, also those of float64
    ),
    "llama-untied": LlamaConfig(**SHARED, tie_word_embeddings=False),
    "gemma3-softcap": Gemma3TextConfig(
        **SHARED, sliding_window=5, layer_types=KINDS, final_logit_softcapping=3.0
    ),
    "gpt2-tied": GPT2Config(
        vocab_size=24, n_embd=16, n_layer=2, n_head=4, n_positions=64, initializer_range=0.3,
        bos_token_id=1, eos_token_id=1,
    ),
    "cohere-logit-scale": CohereConfig(**NO_HEAD_DIM, logit_scale=0.25),
    "granite-logits-scaling": GraniteConfig(**NO_HEAD_DIM, logits_scaling=4.0),
}  # fmt: skip
# Some of their layers are recurrent; these count in float32, also those of float64.
RECURRENT: dict[str, Any] = {
    name: kind(**SHARED | {"initializer_range": 0.2} | more)
    for name, (kind, more) in models.RECURRENT.items() if "mamba" not in name
}  # fmt: skip
FAMILIES |= RECURRENT


def build(family: str, dtype: torch.dtype = torch.float32, seed: int = 0) -> Any:
    """A random model of the family."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(FAMILIES[family])
    return model.to(dtype).eval()


def save(family: str, folder: Path, ours: Any = None, dtype: torch.dtype = torch.float32) -> Path:
    """Write a random model with the tokenizer of one token per character."""
    model = build(family, dtype)
    model.save_pretrained(folder)
    (ours or tokenizer()).save_pretrained(folder)
    return folder
