"""Counts of real configurations worked out by hand, and against models built from them."""

import json
from pathlib import Path

import pytest
import torch
import transformers
from configurations import QWEN3_06B, QWEN3_30B_A3B

from strop import UserError
from strop.planning.model_costs import KNOWN, model_of, read_model

PLACE = Path("config.json")


def test_a_dense_model():
    model = model_of(QWEN3_06B, "small", PLACE)
    attention = 1024 * 2048 + 2 * 1024 * 1024 + 2048 * 1024 + 2 * 128
    layer = attention + 3 * 1024 * 3072 + 2 * 1024
    assert model.parameters == 151936 * 1024 + 28 * layer + 1024 == 596_049_920
    assert model.active == model.parameters
    assert model.cache_bytes(2) == 2 * 28 * 8 * 128 * 2 == 114_688
    # the head is the embedding, so a token is multiplied with all parameters
    assert model.per_token == 2 * 596_049_920
    assert model.per_pair == 4 * 16 * 128 * 28
    assert model.forward(100) == 100 * model.per_token + 4 * 16 * 128 * 28 * 100 * 100 / 2


def test_a_model_of_experts():
    model = model_of(QWEN3_30B_A3B, "experts", PLACE)
    expert = 3 * 2048 * 768
    attention = 2048 * 4096 + 2 * 2048 * 512 + 4096 * 2048 + 2 * 128
    layer = attention + 2048 * 128 + 128 * expert + 2 * 2048
    assert model.parameters == 2 * 151936 * 2048 + 48 * layer + 2048 == 30_532_122_624
    assert model.active == model.parameters - 48 * 120 * expert == 3_353_032_704
    assert model.multiplied == model.active - 151936 * 2048
    assert model.cache_bytes(2) == 2 * 48 * 4 * 128 * 2 == 98_304


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("kind", KNOWN)
def test_families_are_counted_as_they_are_built(kind, tied):
    sizes = {
        "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 8,
        "num_key_value_heads": 2, "vocab_size": 100, "intermediate_size": 96, "num_experts": 8,
        "num_local_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 48,
        "shared_expert_intermediate_size": 80, "tie_word_embeddings": tied,
    }  # fmt: skip
    there = vars(transformers.AutoConfig.for_model(kind))
    given = {name: value for name, value in sizes.items() if name in there}
    config = transformers.AutoConfig.for_model(kind, tie_word_embeddings=tied, **{
        name: value for name, value in given.items() if name != "tie_word_embeddings"
    })  # fmt: skip
    with torch.device("meta"):
        built = transformers.AutoModelForCausalLM.from_config(config)
    counted = model_of(config.to_dict(), kind, PLACE)
    assert counted.parameters == sum(each.numel() for each in built.parameters())


def test_a_configuration_that_does_not_say_whether_its_head_is_tied_is_as_its_family():
    silent = {name: value for name, value in QWEN3_06B.items() if name != "tie_word_embeddings"}
    kinds = (*KNOWN, "gemma", "gemma2", "gemma3_text", "cohere2", "ernie4_5", "smollm3", "phi3")
    built = {kind: transformers.AutoConfig.for_model(kind).tie_word_embeddings for kind in kinds}
    counted = {kind: model_of({**silent, "model_type": kind}, kind, PLACE).tied for kind in kinds}
    assert counted == built


def test_layers_without_experts():
    raw = {**QWEN3_30B_A3B, "mlp_only_layers": [0, 1], "decoder_sparse_step": 2}
    assert model_of(raw, "mixed", PLACE).sparse_layers == 23  # every second one of 48, but for 1
    deep = {**QWEN3_30B_A3B, "first_k_dense_replace": 3}
    assert model_of(deep, "deep", PLACE).sparse_layers == 45


def test_a_folder_and_a_file_are_read(tmp_path):
    folder = tmp_path / "Qwen3-0.6B"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(QWEN3_06B))
    for place in (folder, folder / "config.json"):
        assert read_model(place).name == "Qwen3-0.6B"
    (folder / "config.json").write_text(json.dumps({"text_config": QWEN3_06B}))
    assert read_model(folder).parameters == 596_049_920


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"hidden_size": None, "vocab_size": "many"}, "lacks hidden_size, vocab_size"),
        ({"intermediate_size": 0}, "lacks intermediate_size"),
        ({"num_experts": 8}, "lacks num_experts_per_tok"),
        ({"kv_lora_rank": 512}, "compressed keys"),
        ({"layer_types": ["full_attention", "linear_attention"]}, "linear attention"),
    ],
)
def test_what_cannot_be_counted_is_named(change, why):
    with pytest.raises(UserError, match=why):
        model_of({**QWEN3_06B, **change}, "odd", PLACE)


@pytest.mark.parametrize(("text", "why"), [("{", "is no JSON"), ("[1]", "is not a JSON object")])
def test_what_is_no_configuration(tmp_path, text, why):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(UserError, match=why):
        read_model(tmp_path)
    with pytest.raises(UserError, match=r"has no config\.json: .* hub is not fetched; its config"):
        read_model(tmp_path / "none")
    (tmp_path / "run/checkpoints/step-000003").mkdir(parents=True)
    with pytest.raises(UserError, match=r"such as .*run/checkpoints/step-000003\. A name on"):
        read_model(tmp_path / "run")
