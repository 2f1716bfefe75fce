"""What `strop doctor --model` says: size, context, and how much memory training may take."""

from typing import Any

from strop.cli.doctor_finding import Finding
from strop.cli.doctor_machine import GIB, memory_gib
from strop.errors import UserError

# name -> formula; b: bytes of a weight, o: bytes in the optimiser (4, or 8 for float64).
FORMULAS = {
    "weights": "parameters * b",
    "masters": "trained parameters * 4, float32 copies; only where b is 2",
    "optimiser": "trained parameters * 2 * o, AdamW's two averages",
    "reference": "parameters * b where the method reads a reference and no adapters are trained",
    "gradients": "trained parameters * o",
    "kv_cache": "slots * places * layers * 2 * kv heads * head size * b; "
    "slots = min(training.num_slots, rollouts a step), places = 1.5 * (prompt + max_tokens)",
    "head": "2 buffers (3 with a soft cap) of min(128 MiB, token_budget * vocabulary * 4)",
    "activations": "token_budget * b * layers * (4 hidden + 2 (heads + kv heads) * head size + "
    "4 intermediate); with gradient checkpointing hidden instead for all layers but one",
}
GENERATING = ("weights", "masters", "optimiser", "reference", "kv_cache")
UPDATING = ("weights", "masters", "optimiser", "reference", "gradients", "head", "activations")


def shape(settings: Any) -> tuple[Any, Any]:
    """The model without its weights (on the meta device) and its configuration. UserError."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from strop.training import models

    name = settings.model.name
    path = models.model_path(name)
    if path.endswith(".gguf"):
        raise UserError("doctor takes a model folder or name, not a GGUF file")
    models._check_folder(name, path)
    if settings.model.dtype not in models.DTYPES:
        raise UserError(f"model.dtype must be one of {', '.join(models.DTYPES)}")
    try:
        config = AutoConfig.from_pretrained(path)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise UserError(f"cannot read the model {name!r}: {str(error).splitlines()[0]}") from error
    return model, models.text_config(model)


def tokenizer_of(settings: Any) -> Any:
    """The model's tokenizer with the run's chat template. Raises UserError."""
    from transformers import AutoTokenizer

    from strop.training import models

    path = models.model_path(settings.model.name)
    try:
        tokenizer = AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError, KeyError) as error:
        first = str(error).splitlines()[0]
        raise UserError(f"no tokenizer for the model {settings.model.name!r}: {first}") from error
    if settings.model.chat_template:
        given = settings.model.chat_template
        tokenizer.chat_template = models._read_text(given, "model.chat_template")
    return tokenizer


def examine(
    settings: Any, task: str, prompt_tokens: int, max_tokens: int
) -> tuple[dict[str, Any], Finding]:
    """Facts about the model and the estimate of its memory. Raises UserError.

    task: name of what is trained on. prompt_tokens: its longest prompt. max_tokens: of an answer.
    """
    from strop.training import setup

    model, config = shape(settings)
    parts = estimate(settings, model, config, prompt_tokens, max_tokens)
    generating, updating = (sum(parts[n] for n in names) for names in (GENERATING, UPDATING))
    device = setup.device_of(settings.model.device)
    room, peak = memory_gib(device), max(generating, updating) / GIB
    facts = {
        "name": settings.model.name,
        "type": config.model_type,
        "parameters": sum(p.numel() for p in model.parameters()),
        "trained": trained(settings, model),
        "dtype": settings.model.dtype,
        "context": getattr(config, "max_position_embeddings", None),
        "vocabulary": config.vocab_size,
        "bytes": parts,
        "formulas": FORMULAS,
        "assumed": {"task": task, "prompt": prompt_tokens, "max_tokens": max_tokens},
    }
    numbers = {"generating_gib": generating / GIB, "updating_gib": updating / GIB,
               "device": device, "device_gib": room}  # fmt: skip
    answer = f"About {peak:.2f} GiB at the peak ({generating / GIB:.2f} generating, "
    answer += f"{updating / GIB:.2f} updating) on {device}"
    answer += "." if room is None else f", which has {room:.1f}."
    answer += " This is an estimate; a run logs perf/peak_mem_gb."
    full = room is not None and peak > room
    advice = "lower training.num_slots (generating) or training.token_budget (updating), set "
    advice += "model.gradient_checkpointing=true, model.dtype=bfloat16, or model.lora_rank=16"
    return facts, Finding("Does training fit in memory?", "problem" if full else "ok", answer,
                          advice if full else "", numbers)  # fmt: skip


def estimate(
    settings: Any, model: Any, config: Any, prompt_tokens: int, max_tokens: int
) -> dict[str, int]:
    """Bytes of each piece, by `FORMULAS`."""
    import torch

    from strop.loss.head_types import CHUNK_BYTES
    from strop.training.models import DTYPES

    algorithm, training = settings.build(), settings.training
    size = DTYPES[settings.model.dtype].itemsize
    inner = max(4, size)
    num, learns = sum(p.numel() for p in model.parameters()), trained(settings, model)
    layers, hidden = config.num_hidden_layers, config.hidden_size
    heads = config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    head = getattr(config, "head_dim", None) or hidden // heads
    between = getattr(config, "intermediate_size", None) or 4 * hidden
    places = max(64, 3 * (prompt_tokens + max_tokens) // 2 + 1)
    slots = min(training.num_slots, _rollouts(algorithm) or training.num_slots)
    reads_reference = bool({"logp_ref_T", "logq_ref_TV"} & algorithm.reads())
    buffers = 3 if getattr(config, "final_logit_softcapping", None) else 2
    layer = 4 * hidden + 2 * (heads + kv_heads) * head + 4 * between
    kept = layers * layer
    if settings.model.gradient_checkpointing:
        kept = layer + (layers - 1) * hidden
    logits = training.token_budget * config.vocab_size * torch.float32.itemsize
    return {
        "weights": num * size,
        "masters": learns * 4 if size == 2 else 0,
        "optimiser": learns * 2 * inner,
        "reference": num * size if reads_reference and not settings.model.lora_rank else 0,
        "gradients": learns * inner,
        "kv_cache": slots * places * layers * 2 * kv_heads * head * size,
        "head": buffers * min(CHUNK_BYTES, logits),
        "activations": training.token_budget * size * kept,
    }


def trained(settings: Any, model: Any) -> int:
    """Parameters that are trained: all, or rank * (inputs + outputs) of each adapted layer."""
    from torch import nn

    rank, targets = settings.model.lora_rank, settings.model.lora_targets
    if not rank:
        return sum(p.numel() for p in model.parameters())
    output = model.get_output_embeddings()
    return sum(
        rank * (module.in_features + module.out_features)
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
        and module is not output
        and (not targets or name.rpartition(".")[2] in targets)
    )


def _rollouts(algorithm: Any) -> int:
    """Rollouts of a step; 0 where the sampling parts do not say."""
    total = 0
    for use in algorithm.sampling:
        part = use.part
        total += int(getattr(part, "num_prompts", 0)) * int(getattr(part, "num_rollouts", 0))
    return total


def lines(facts: dict[str, Any]) -> list[str]:
    """Facts and estimate as text."""
    assumed = facts["assumed"]
    told = [
        f"{facts['name']} ({facts['type']}): {facts['parameters']:,} parameters, "
        f"{facts['trained']:,} trained, {facts['dtype']}, context {facts['context']}, "
        f"vocabulary {facts['vocabulary']:,}",
        f"memory estimate for {assumed['task']}: prompts of at most {assumed['prompt']} and "
        f"answers of at most {assumed['max_tokens']} tokens (change: --data, rollout.max_tokens):",
    ]
    told += [f"  {name:12} {size / GIB:8.3f} GiB = {facts['formulas'][name]}"
             for name, size in facts["bytes"].items()]  # fmt: skip
    return told
