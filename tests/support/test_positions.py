"""The longest sequence of a model, beyond which its positions would depend on others."""

import pytest
import torch
from transformers import LlamaConfig, Phi3Config, Phi3ForCausalLM

from strop.engines.local.causal import CachedModel
from strop.support.positions import context_of

LONG = {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [4.0] * 4}
SIZES = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
         "num_attention_heads": 2, "num_key_value_heads": 2, "pad_token_id": 0}  # fmt: skip


def phi() -> Phi3Config:
    return Phi3Config(
        **SIZES, max_position_embeddings=64, original_max_position_embeddings=16,
        rope_parameters={**LONG, "rope_theta": 1e4, "original_max_position_embeddings": 16},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("config", "longest"),
    [
        (phi(), 16),
        (LlamaConfig(max_position_embeddings=128), 128),
        (type("Layers", (), {"max_position_embeddings": 64, "rope_parameters": {
            "full": {"rope_type": "default"},
            "long": {"rope_type": "longrope", "original_max_position_embeddings": 8}}}), 8),
        (type("Old", (), {"max_position_embeddings": 64, "rope_scaling": {"type": "longrope"},
                          "original_max_position_embeddings": 32}), 32),
        (type("None", (), {}), None),
    ],
)  # fmt: skip
def test_the_limit(config, longest):
    assert context_of(config) == longest


def test_a_long_row_would_turn_the_short_ones_beside_it():
    torch.manual_seed(0)
    model = Phi3ForCausalLM(phi()).double().eval()
    assert CachedModel(model, 2).context_length == 16
    short, long = torch.arange(1, 9)[None], torch.arange(1, 25)[None]
    alone = model(short).logits
    beside = model(torch.cat([torch.nn.functional.pad(short, (0, 16)), long])).logits[:1, :8]
    assert (alone - beside).abs().max() > 1e-4
