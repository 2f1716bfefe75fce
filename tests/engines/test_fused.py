"""The pass without modules: it gives the model's own results, and is not used where it cannot."""

import numpy as np
import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from strop.engines.local.cache import Band
from strop.engines.local.causal import CachedModel, Part
from strop.engines.local.ragged import lay_out
from strop.support import linear

SIZES = {"vocab_size": 300, "hidden_size": 192, "intermediate_size": 384, "num_hidden_layers": 3,
         "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 32,
         "max_position_embeddings": 64}  # fmt: skip
KINDS = {
    "llama": (LlamaConfig, LlamaForCausalLM, {"attention_bias": True, "mlp_bias": True}),
    "mistral": (MistralConfig, MistralForCausalLM, {"sliding_window": 4}),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {}),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM,
              {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}),
}  # fmt: skip


def model_of(kind, dtype=torch.float32, **changes):
    config, make, more = KINDS[kind]
    torch.manual_seed(0)
    model = make(config(**{**SIZES, **more, **changes})).eval().to(dtype)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(("norm.weight", "bias")):
                weight += 0.3 * torch.randn_like(weight)
    linear.use_in(model)
    return model


def logits_of(cached):
    """Of two rows that are filled, decoded in two bands, and given several tokens at once."""
    ids = torch.arange(40) * 7 % 300
    cached.cache.reserve(30, 2)
    with cached.generating():
        assert bool(cached.fused is not None and cached.fused.layers) == (not cached.why_not_fused)
        cached.fill([Part(0, ids.tolist(), 0, 11), Part(1, ids.tolist(), 0, 6)])
        bands = [Band(0, 1, 12), Band(1, 2, 7)]
        decoded = cached.decode(ids[[11, 6]], torch.tensor([11, 6]), bands)
        numbers = np.array([3, 1])
        new = torch.cat([ids[12:15], ids[7:8]])
        several = cached.decode_several(
            new, lay_out(numbers, new.device), torch.tensor([12, 7]), [Band(0, 2, 15)]
        )
    cached.unpack()
    return torch.cat([decoded, several]).float()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_those_of_the_model(kind, dtype):
    model = model_of(kind, dtype)
    cached = CachedModel(model, 2, several=True)
    assert cached.why_not_fused == ""
    found = logits_of(cached)
    with torch.no_grad():
        ids = (torch.arange(40) * 7 % 300)[None]
        plain = model(input_ids=ids, use_cache=False).logits[0, [11, 6, 12, 13, 14, 7]].float()
    assert (found - plain).norm() / plain.norm() < (1e-5 if dtype == torch.float32 else 0.03)
    cached.fused.pack()  # of either kind of product there is one
    assert [each.plain is None for each in cached.fused.layers[0][1:5]] == [
        False,
        False,
        True,
        True,
    ]


def test_changed_weights_count():
    model = model_of("qwen3")
    cached = CachedModel(model, 2, several=True)
    before = logits_of(cached)
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight.mul_(1.5)
    cached.renew(None)
    after = logits_of(cached)
    assert (after - before).abs().max() > 1e-4
    assert torch.equal(after, logits_of(CachedModel(model, 2, several=True)))


@pytest.mark.parametrize("place", ["embed_tokens", "q_proj"])
def test_an_adapter_keeps_the_modules_also_where_it_changes_nothing_yet(place):
    from peft import LoraConfig, inject_adapter_in_model

    model = model_of("qwen3")
    cached = CachedModel(model, 2)
    inject_adapter_in_model(LoraConfig(target_modules=[place], init_lora_weights=True), model)
    with cached.generating():
        assert not cached.fused.layers
    cached.unpack()
    assert CachedModel(model, 2).why_not_fused.startswith("it has a peft.")


def test_a_hook_and_what_is_no_such_model_keep_the_modules():
    model = model_of("qwen3")
    cached = CachedModel(model, 2, several=True)
    seen = []
    model.model.layers[0].mlp.register_forward_hook(lambda *_: seen.append(1))
    with cached.generating():  # put on after the engine was opened
        assert cached.fused is not None
        assert not cached.fused.layers
        cached.cache.reserve(8, 2)
        cached.decode(torch.tensor([3, 4]), torch.tensor([0, 0]), [Band(0, 2, 1)])
    assert seen
    cached.unpack()
    hooked = CachedModel(model, 2)
    assert hooked.why_not_fused == "a Qwen3MLP has a hook"
    assert CachedModel(model_of("qwen3", torch.float64), 2).why_not_fused.startswith("it is")
    odd = model_of("llama", rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4,
                                             "factor": 2.0})  # fmt: skip
    assert CachedModel(odd, 2).why_not_fused == "its positions are dynamic, its activation is silu"
