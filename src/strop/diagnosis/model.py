"""Examines a model for `strop doctor --model`: size, context, and estimated training memory."""

from collections.abc import Sequence
from typing import Any

from strop.diagnosis import memory
from strop.diagnosis.data import longest_taken
from strop.diagnosis.finding import Finding
from strop.diagnosis.machine import GIB, memory_gib
from strop.support.errors import UserError
from strop.support.positions import context_of
from strop.training import loading


def shape(settings: Any) -> tuple[Any, Any]:
    """The model without its weights (on the meta device) and its configuration. UserError."""
    from strop.head.head import text_config
    from strop.training.learner import models

    if settings.model.dtype not in models.DTYPES:
        raise UserError(f"model.dtype must be one of {', '.join(models.DTYPES)}")
    model = models.skeleton(settings.model.name)
    return model, text_config(model)


def tokenizer_of(settings: Any) -> Any:
    """The model's tokenizer with the run's chat template. Raises UserError."""
    from strop.training.learner import models

    return models.tokenizer_of(settings.model.name, settings.model.chat_template)


def examine(
    settings: Any, task: str, prompts: Sequence[int], episode_tokens: int, kept: int
) -> tuple[dict[str, Any], Finding]:
    """Facts about the model and the estimate of its memory. Raises UserError.

    task: name of the training task. prompts: tokens of each prompt; a longer one than a run takes
    does not count. episode_tokens: tokens of an answer or of an episode's actions. kept: those that
    the context has to keep after every prompt.
    """

    model, config = shape(settings)
    most = longest_taken(settings, context_of(config), kept)
    prompt_tokens = max((length for length in prompts if length <= most), default=max(prompts))
    sizes = memory.Shape.of(settings, model, config)
    device = loading.device_of(settings.model.device)
    count = memory.counts(settings, sizes, prompt_tokens, episode_tokens, device)
    parts = memory.estimate(settings, sizes, count, device)
    generating, updating = memory.peaks(parts, device)
    room, peak = memory_gib(device), max(generating, updating) / GIB
    facts = {
        "name": settings.model.name,
        "type": config.model_type,
        "parameters": sizes.parameters,
        "trained": sizes.trained,
        "dtype": settings.model.dtype,
        "context": context_of(config),
        "vocabulary": config.vocab_size,
        "bytes": parts,
        "counts": count,
        "formulas": memory.FORMULAS,
        "where": memory.COUNTS,
        "left_out": memory.LEFT_OUT,
        "assumed": {"task": task, "prompt": prompt_tokens, "max_tokens": episode_tokens},
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


def lines(facts: dict[str, Any]) -> list[str]:
    """Facts and estimate as text."""
    assumed = facts["assumed"]
    lines = [
        f"{facts['name']} ({facts['type']}): {facts['parameters']:,} parameters, "
        f"{facts['trained']:,} trained, {facts['dtype']}, context {facts['context']}, "
        f"vocabulary {facts['vocabulary']:,}",
        f"memory estimate for {assumed['task']}: prompts of at most {assumed['prompt']} and "
        f"answers of at most {assumed['max_tokens']} tokens (change: --data, rollout.max_tokens):",
    ]
    lines += [f"  {name:12} {size / GIB:8.3f} GiB = {facts['formulas'][name]}"
             for name, size in facts["bytes"].items()]  # fmt: skip
    lines += [f"  where {name:6} {facts['counts'][name]:8,} = {text}"
             for name, text in facts["where"].items()]  # fmt: skip
    return [*lines, f"  {facts['left_out']}"]
