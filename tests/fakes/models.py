"""Randomly initialised models of a few families, small enough for a test."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    BambaConfig,
    FalconH1Config,
    Gemma3TextConfig,
    GPT2Config,
    GraniteMoeHybridConfig,
    JambaConfig,
    Lfm2Config,
    LlamaConfig,
    Mamba2Config,
    MambaConfig,
    MistralConfig,
    NemotronHConfig,
    OlmoHybridConfig,
    PreTrainedConfig,
    Qwen3_5MoeTextConfig,
    Qwen3_5TextConfig,
    Qwen3Config,
    Qwen3NextConfig,
    Zamba2Config,
    ZambaConfig,
    ZayaConfig,
)

VOCAB = 24
FAMILIES = ("qwen3", "llama", "gemma3", "gpt2", "mistral")
LINEAR = {
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 4,
    "linear_value_head_dim": 4, "layer_types": ["linear_attention", "full_attention"],
}  # fmt: skip
MIXTURE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8,
           "shared_expert_intermediate_size": 8, "experts_implementation": "eager"}  # fmt: skip
MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_n_groups": 1}
# Families some of whose layers are recurrent: their configuration and what it takes.
RECURRENT: dict[str, tuple[Any, dict[str, Any]]] = {
    "qwen3_5": (Qwen3_5TextConfig, LINEAR),
    "qwen3_5_moe": (Qwen3_5MoeTextConfig, LINEAR | MIXTURE),
    "qwen3_next": (Qwen3NextConfig, LINEAR | MIXTURE),
    "olmo_hybrid": (OlmoHybridConfig, LINEAR),
    "lfm2": (Lfm2Config, {"layer_types": ["conv", "full_attention"]}),
    "granite_hybrid": (GraniteMoeHybridConfig, MAMBA | {
        "layer_types": ["mamba", "attention"], "num_local_experts": 0,
        "shared_intermediate_size": 24}),
    "bamba": (BambaConfig, MAMBA | {"attn_layer_indices": [1]}),
    "jamba": (JambaConfig, {"attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 1,
                            "mamba_d_state": 8, "use_mamba_kernels": False}),
    "nemotron_h": (NemotronHConfig, {
        "hybrid_override_pattern": "M*-", "mamba_num_heads": 4, "mamba_head_dim": 8,
        "ssm_state_size": 8, "n_groups": 1}),
    "falcon_h1": (FalconH1Config, MAMBA | {"mamba_d_ssm": 32}),
    "zamba": (ZambaConfig, {"num_hidden_layers": 4, "attn_layer_period": 1, "attn_layer_offset": 0,
                            "mamba_d_state": 8, "num_key_value_heads": 4}),
    "zamba2": (Zamba2Config, {
        "layers_block_type": ["linear_attention", "hybrid"], "n_mamba_heads": 4, "mamba_ngroups": 1,
        "mamba_d_state": 8, "num_key_value_heads": 4, "time_step_min": 1e-9}),
    "zaya": (ZayaConfig, {
        "layer_types": ["hybrid", "hybrid_sliding"], "sliding_window": 5, "num_experts": 4,
        "num_experts_per_tok": 1, "moe_intermediate_size": 8, "router_hidden_size": 8,
        "head_dim": 8, "experts_implementation": "eager"}),
    "mamba": (MambaConfig, {"state_size": 4}),
    "mamba2": (Mamba2Config, {"num_heads": 4, "head_dim": 8, "state_size": 8, "n_groups": 1}),
}  # fmt: skip


def tiny(
    family: str = "qwen3",
    attention: str = "sdpa",
    dtype: torch.dtype = torch.float64,
    context: int = 64,
    seed: int = 0,
) -> Any:
    """A causal model with two or more layers, spread-out logits and the vocabulary VOCAB."""
    shared = {
        "vocab_size": VOCAB,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 4,
        "max_position_embeddings": context,
        "initializer_range": 0.4,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 0,
    }
    config: PreTrainedConfig
    if family == "qwen3":
        config = Qwen3Config(**shared)
    elif family == "llama":
        config = LlamaConfig(**shared)
    elif family == "mistral":
        config = MistralConfig(**shared, sliding_window=5)
    elif family == "gemma3":
        kinds = ["sliding_attention", "full_attention"]
        config = Gemma3TextConfig(**shared, sliding_window=5, layer_types=kinds)
    elif family == "gpt2":
        config = GPT2Config(
            vocab_size=VOCAB,
            n_embd=16,
            n_layer=2,
            n_head=4,
            n_positions=context,
            initializer_range=0.4,
            bos_token_id=0,
            eos_token_id=1,
        )
    else:
        kind, more = RECURRENT[family]
        config = kind(**(shared | {"initializer_range": 0.2} | more))
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, attn_implementation=attention)
    return model.to(dtype).eval()


def from_table(table: Sequence[Sequence[float]], context: int = 64) -> Any:
    """A model with exactly these next-token probabilities, a row for each last token.

    Attention and MLP add zeros, so the logits are a table's line whatever else is in a batch; the
    cache is filled as in any other model.
    """
    number = len(table)
    config = LlamaConfig(
        vocab_size=number,
        hidden_size=number,
        intermediate_size=4,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=2,
        max_position_embeddings=context,
        rms_norm_eps=0.0,
        tie_word_embeddings=False,
    )
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").double().eval()
    log = torch.tensor(table, dtype=torch.float64).log().clamp(min=-1e30)  # 0 times it stays 0
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        model.model.embed_tokens.weight.copy_(torch.eye(number))
        model.lm_head.weight.copy_(log.T / number**0.5)  # the norm of a unit vector is so long
    return model
