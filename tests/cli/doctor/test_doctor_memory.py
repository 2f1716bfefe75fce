"""The formulas of the memory estimate against the memory of torch, the optimiser and the engine."""

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from models import Lab, save_model, tokenizer
from transformers import GPT2Config, GPT2LMHeadModel, Qwen3Config, Qwen3ForCausalLM

import strop
from strop.diagnosis import memory
from strop.diagnosis.memory import Shape
from strop.diagnosis.model import shape as model_shape
from strop.engines.asynchronous import asynchronous
from strop.engines.base import Request
from strop.engines.local import gpu_pass
from strop.engines.local.engine import KEPT_CACHE_BYTES, LocalEngine
from strop.engines.local.stale_weights import StaleWeightsEngine
from strop.method import notation
from strop.training import loading
from strop.training.learner import adapters, models
from strop.training.learner.policy import MasterAdamW
from strop.training.settings import config

SIZES = {"hidden": 64, "heads": 4 * 16, "kv_heads": 2 * 16, "intermediate": 160}
LAYERS, RANK, TOKENS = 5, 2, 8 * 16


def model_of(dtype: torch.dtype, layers: int = LAYERS, rank: int = 0) -> Any:
    """A random Qwen3 model of SIZES."""
    settings = Qwen3Config(
        vocab_size=32, hidden_size=64, intermediate_size=160, num_hidden_layers=layers,
        num_attention_heads=4, num_key_value_heads=2, head_dim=16, max_position_embeddings=64,
    )  # fmt: skip
    model = Qwen3ForCausalLM(settings).to(dtype)
    if rank:
        adapters.add(model, adapters.Lora(rank), 0)
    return model


def kept_by_autograd(model: Any) -> int:
    """Bytes that the trunk's forward pass over TOKENS tokens leaves for the backward pass."""
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage  # held, so that no address comes twice
        return tensor

    ids = torch.arange(TOKENS).remainder(32).reshape(8, 16)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        states = model.model(input_ids=ids, use_cache=False).last_hidden_state
        assert states.requires_grad
        return sum(storage.nbytes() for storage in kept.values())


@pytest.mark.parametrize("rank", [0, RANK])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_layer_keeps_what_autograd_keeps(dtype: torch.dtype, rank: int) -> None:
    few, many = (kept_by_autograd(model_of(dtype, layers, rank)) for layers in (1, LAYERS))
    b = dtype.itemsize
    shape = Shape(0, 0, bool(rank), 32, LAYERS, softcap=False, **SIZES)
    # beside it: two norms, six and two heads with a number each, four of the softmax; adapters
    small = 4 * (2 + 6 + 4 + 7 * rank)
    measured = (many - few) / (LAYERS - 1) / TOKENS

    assert shape.layer(b, 4) < measured <= shape.layer(b, 4) + small


def test_checkpointing_keeps_the_input_of_every_layer(lab: Lab, tmp_path: Path) -> None:
    kept = []
    for layers in (1, LAYERS):
        model_of(torch.float32, layers).save_pretrained(tmp_path / str(layers))
        tokenizer().save_pretrained(tmp_path / str(layers))
        loaded = models.load(str(tmp_path / str(layers)), gradient_checkpointing=True)
        kept.append(kept_by_autograd(loaded.model))
    assert (kept[1] - kept[0]) / (LAYERS - 1) / TOKENS == pytest.approx(4 * 64, rel=0.01)

    raw = lab.raw(model={"gradient_checkpointing": True})
    shape, count, found = estimated(config.make(raw))
    a_token = count["layer"] + (shape.layers - 1) * 4 * shape.hidden + 4 * 4 * shape.hidden
    assert found["activations"] == count["tokens"] * a_token


def estimated(
    settings: Any, prompt: int = 6, answer: int = 6
) -> tuple[Shape, dict[str, int], dict[str, int]]:
    """Shape, counts and pieces of a run."""
    shape = Shape.of(settings, *model_shape(settings))
    count = memory.counts(settings, shape, prompt, answer, "cpu")
    return shape, count, memory.estimate(settings, shape, count, "cpu")


@pytest.mark.parametrize(
    ("dtype", "rank"), [("float32", 0), ("bfloat16", 0), ("float64", 0), ("float32", 4),
                        ("bfloat16", 4)],
)  # fmt: skip
def test_weights_masters_optimiser_and_gradients_are_those_of_a_step(
    lab: Lab, dtype: str, rank: int
) -> None:
    settings = config.make(lab.raw(model={"dtype": dtype, "lora_rank": rank}))
    lora = models.Lora(rank) if rank else None
    model = models.load(str(lab.model), dtype=dtype, lora=lora).model
    weights = [p for p in model.parameters() if p.requires_grad]
    optimiser = MasterAdamW(weights, lr=1e-3)
    for weight in weights:
        weight.backward(torch.ones_like(weight))
    masters = [master for _, master in optimiser.pairs]
    stepped = [p for group in optimiser.param_groups for p in group["params"]]
    gradients = sum(_bytes([p.grad]) for p in stepped if p.grad is not None)
    optimiser.step()
    averages = [
        value for state in optimiser.state.values() for value in state.values() if value.dim()
    ]
    shape, count, found = estimated(settings)

    assert shape.trained == sum(p.numel() for p in weights)
    assert found["weights"] == _bytes(list(model.parameters()))
    assert found["masters"] == _bytes(masters)
    assert found["optimiser"] == _bytes(averages)
    head = 0 if rank else shape.vocabulary * shape.hidden * count["o"]
    assert found["gradients"] == gradients + head


def _bytes(tensors: list[Any]) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)


@pytest.mark.parametrize(("prompt", "answer"), [(6, 6), (8, 56), (50, 60), (3, 117)])
def test_the_cache_is_that_of_the_engine(tmp_path: Path, prompt: int, answer: int) -> None:
    lab = Lab.make(tmp_path)
    loaded = models.load(str(lab.model))
    loaded.model.config.max_position_embeddings = 128
    engine = LocalEngine(loaded.model, num_slots=8)
    ids = tuple(3 + i % 9 for i in range(prompt))
    held = []
    release = engine.slots.cache.shrink
    engine.slots.cache.shrink = lambda most: held.append(  # type: ignore[method-assign]
        _bytes([s for x in engine.slots.cache.live_layers() for s in (x.keys, x.values)])
    )
    asynchronous(engine).sample([Request(ids, answer, seed=seed) for seed in range(8)])
    engine.slots.cache.shrink = release  # type: ignore[method-assign]
    _, count, found = estimated(config.make(lab.raw()), prompt, answer)

    assert count["places"] == engine.slots.cache.places
    assert found["kv_cache"] == held[-1]


def test_a_bound_on_the_cache_counts(lab: Lab) -> None:
    _, count, found = estimated(config.make(lab.raw()), 6, 6)
    assert count["slots"] * count["places"] == 8 * 64
    for bound, expected in ((256, found["kv_cache"] // 2), (10_000, found["kv_cache"])):
        bounded = config.make(lab.raw(engine={"cache_tokens": bound}))
        assert estimated(bounded, 6, 6)[2]["kv_cache"] == expected


@pytest.mark.parametrize("targets", [(), ("c_attn",)])
def test_adapters_are_counted_where_peft_puts_them(targets: tuple[str, ...]) -> None:
    shape = {"vocab_size": 24, "n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 64}
    settings = config.make({"model": {"lora_rank": 3, "lora_targets": targets}})
    expected = memory.trained(settings, GPT2LMHeadModel(GPT2Config(**shape)))
    adapted = GPT2LMHeadModel(GPT2Config(**shape))
    adapters.add(adapted, adapters.Lora(3, 0, targets), 0)

    assert expected == sum(p.numel() for p in adapted.parameters() if p.requires_grad) > 0


def test_slots_and_tokens_are_no_more_than_there_are(lab: Lab) -> None:
    def count(**sections: Any) -> dict[str, int]:
        return estimated(config.make(lab.raw(**sections)), 6, 6)[1]

    shape, plain, found = estimated(config.make(lab.raw()), 6, 6)
    assert found["drawing"] == 8 * shape.vocabulary * (24 + 4)
    assert (plain["slots"], plain["tokens"]) == (8, 48)  # two prompts, four answers; the budget
    assert count(training={"token_budget": 10_000})["tokens"] == 8 * 12
    assert count(training={"token_budget": 5})["tokens"] == 12  # a rollout is never cut
    assert count(training={"num_slots": 3})["slots"] == 3
    raw = lab.raw(training={"num_slots": 64, "token_budget": 10_000})
    raw |= {"recipe": "until(1, grpo(num_prompts=2)) | grpo(num_prompts=2, num_rollouts=6)"}
    assert estimated(config.make({**raw, "algorithm": {}}), 6, 6)[1]["slots"] == 2 * 16
    rising = {**raw, "recipe": "grpo(num_prompts=2, num_rollouts=linear(4, 16))", "algorithm": {}}
    assert estimated(config.make(rising), 6, 6)[1]["slots"] == 2 * 16
    validated = count(evaluation={"every": 1, "num_samples": 6})
    assert validated["slots"] == 2 * 6  # two rows are held back


def test_buffers_of_the_head(lab: Lab) -> None:
    def buffers(recipe: str) -> int:
        return estimated(config.make(lab.raw(recipe)))[1]["buffers"]

    assert buffers("grpo") == 1
    assert buffers("adaptive_entropy_coef") == 2
    capped = dataclasses.replace(estimated(config.make(lab.raw()))[0], softcap=True)
    assert memory._head_buffers(config.make(lab.raw()).build().algorithms[0], capped) == 2
    assert memory._head_buffers(notation.recipe("gkd"), capped) == 4


def test_a_reference_is_a_second_copy_only_of_a_whole_model(lab: Lab) -> None:
    for model, copies in (({}, 1), ({"dtype": "bfloat16"}, 1), ({"lora_rank": 4}, 0)):
        shape, count, found = estimated(config.make(lab.raw("grpo(beta=0.1)", model=model)))
        assert found["reference"] == copies * shape.parameters * count["b"]
    assert estimated(config.make(lab.raw()))[2]["reference"] == 0


def test_only_a_small_cache_stays_during_the_update_but_on_a_cpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pieces = dict.fromkeys((*memory.GENERATING, *memory.UPDATING), 1)
    small = {**pieces, "kv_cache": KEPT_CACHE_BYTES}
    large = {**pieces, "kv_cache": KEPT_CACHE_BYTES + 1}

    assert memory.peaks(large, "cpu") == (9 + KEPT_CACHE_BYTES, 13 + KEPT_CACHE_BYTES)
    # of a GPU that is not here it is not known how much stays
    assert memory.peaks(large, "cuda") == (9 + KEPT_CACHE_BYTES, 12 + KEPT_CACHE_BYTES)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=1)
    )
    assert memory.peaks(small, "cuda") == (8 + KEPT_CACHE_BYTES, 11 + KEPT_CACHE_BYTES)
    assert memory.peaks(large, "cuda") == (9 + KEPT_CACHE_BYTES, 11)


def test_weights_that_a_gpu_reads_side_by_side(lab: Lab) -> None:
    settings = config.make(lab.raw())
    shape, count, found = estimated(settings)
    model = loading.load_model(settings).model
    own = {weight.data_ptr() for weight in model.parameters()}
    beside = gpu_pass.GpuPass(model)
    beside.pack()
    copies = [
        part.weight for layer in beside.layers for part in (layer.qkv, layer.gate_up)
        if part.weight.data_ptr() not in own
    ]  # fmt: skip

    assert len(copies) == 2 * shape.layers
    assert memory.estimate(settings, shape, count, "cuda")["packed"] == _bytes(copies)
    off = config.make(lab.raw(engine={"cuda_graphs": False}))
    assert found["packed"] == memory.estimate(off, shape, count, "cuda")["packed"] == 0


@pytest.mark.parametrize("rank", [0, 4])
def test_weights_held_for_a_stale_engine(lab: Lab, tmp_path: Path, rank: int) -> None:
    """One copy samples, the others lie in main memory."""
    raw = lab.raw(model={"lora_rank": rank}, engine={"staleness": 2})
    settings = config.make(raw)
    shape, count, found = estimated(settings)
    model = loading.load_model(settings).model
    engine = StaleWeightsEngine(model, staleness=2)
    for version in (1, 2):
        engine.load_weights(None, version)
    held = sum(_bytes(list(weights.values())) for _, weights in engine.held)
    own = [p for n, p in engine.model.model.named_parameters() if n in engine.source]

    assert found["held"] == held + _bytes(own)
    assert memory.estimate(settings, shape, count, "cuda")["held"] == _bytes(own)
    assert estimated(config.make(lab.raw()))[2]["held"] == 0


def test_an_anchor_is_one_more_copy_in_main_memory(lab: Lab) -> None:
    settings = config.make(lab.raw(stages={"control": "step_back_to_anchor"}))
    shape, count, found = estimated(settings)
    assert found["held"] == 4 * shape.trained
    assert memory.estimate(settings, shape, count, "cuda")["held"] == 0


def test_slack_and_program(lab: Lab) -> None:
    settings = config.make(lab.raw())
    shape, count, found = estimated(settings)
    on_gpu = memory.estimate(settings, shape, count, "cuda")

    assert found["slack"] == (found["kv_cache"] + found["head"] + found["activations"]) // 4
    assert (found["program"], on_gpu["program"]) == (120 * 2**20, 0)
    assert {**found, "program": 0, "packed": on_gpu["packed"]} == on_gpu


def test_every_piece_and_every_count_has_its_text(lab: Lab) -> None:
    _, count, found = estimated(config.make(lab.raw()))

    assert found.keys() == memory.FORMULAS.keys()
    assert count.keys() == memory.COUNTS.keys()
    assert {*memory.GENERATING, *memory.UPDATING} == found.keys()


def test_the_context_is_the_one_of_runs(tmp_path: Path) -> None:
    save_model(tmp_path)
    file = tmp_path / "config.json"
    known = json.loads(file.read_text())
    angles = [1.0] * (known["head_dim"] // 2)
    known["rope_parameters"] |= {
        "rope_type": "longrope", "short_factor": angles, "long_factor": angles,
        "original_max_position_embeddings": 32,
    }  # fmt: skip
    file.write_text(json.dumps(known))
    assert strop.doctor(model=str(tmp_path)).report["model"]["context"] == 32  # 64 for others
