"""Estimates the memory of training: one formula for each piece, by what autograd really keeps."""

from dataclasses import dataclass
from typing import Any

MIB = 2**20
# Each estimated piece -> its formula; names in a formula are numbers of the model, or of COUNTS.
FORMULAS = {
    "weights": "parameters * b + adapters * o",
    "masters": "trained * 4 where b is 2; none for adapters",
    "optimiser": "trained * 2 * o, AdamW's two averages",
    "reference": "parameters * b where the method reads a reference; with adapters only for one "
    "that is renewed",
    "held": "with engine.staleness trained * b for the engine's copy, (staleness + 1) times it in "
    "main memory; o in place of b with adapters; with training.max_staleness parameters * b for "
    "the collecting process; trained * o in main memory for an anchor and for an explorer",
    "gradients": "trained * o, and vocabulary * hidden * o once more; not that with adapters",
    "kv_cache": "slots * places * layers of attention * 2 * kv heads * head size * b; with "
    "engine.cache_tokens no more than these in place of slots * places",
    "packed": "layers * hidden * (heads * head size + 2 * kv heads * head size + 2 * intermediate) "
    "* b on a GPU, where engine.cuda_graphs reads these weights side by side",
    "drawing": "slots * vocabulary * (24 + b)",
    "head": "buffers * min(128 MiB, tokens * vocabulary * o); on a GPU 1 GiB, and half of it once "
    "more where b is 2",
    "activations": "tokens * (layers * layer + 4 * o * hidden); with gradient checkpointing "
    "layer + (layers - 1) * b * hidden in place of layers * layer",
    "slack": "a quarter of kv_cache, head and activations: freed, but not returned at once",
    "program": "120 MiB on a CPU: what torch and transformers do not load by themselves",
}
COUNTS = {
    "b": "bytes of a weight",
    "o": "bytes of a number in the optimiser, and wherever rounding matters",
    "slots": "min(training.num_slots, answers of a step or of a validation)",
    "places": "prompt + max_tokens and room to grow, an eighth and up to 64 more; with "
    "engine.cuda_graphs on a GPU the next power of 2",
    "tokens": "training.token_budget, at least prompt + max_tokens, at most that times the answers "
    "of a step",
    "buffers": "1, and 1 more each for an entropy or distribution term, a soft cap, a reference's "
    "distribution",
    "layer": "bytes that autograd keeps of a token in a layer: 2 (o + 2b) hidden + (o + 3b) "
    "(heads + kv heads) * head size + 4b * intermediate; with adapters no normalised copies, "
    "but in half precision their inputs in o bytes",
}
GENERATING = ("weights", "masters", "optimiser", "reference", "held", "program", "kv_cache",
              "packed", "drawing")  # fmt: skip
UPDATING = ("weights", "masters", "optimiser", "reference", "held", "program", "packed",
            "gradients", "head", "activations", "slack")  # fmt: skip
# Slack and program were fitted to benchmarks/doctor_memory.py; all else follows from the code.
PROGRAM_BYTES = 120 * MIB
LEFT_OUT = (
    "Left out: Python with torch and transformers (about 0.35 GiB of main memory), the processes "
    "of reward functions, a critic's heads, AdamW's temporary copies on a GPU (at most trained * "
    "o), attention that keeps a matrix of length * length (eager, or with a mask in training), "
    "what families have beyond the layers of Qwen3, such as the states of recurrent layers."
)


@dataclass(frozen=True)
class Shape:
    """The numbers of a model that the formulas use; heads and kv_heads are heads * head size."""

    parameters: int
    trained: int
    adapters: bool
    vocabulary: int
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    intermediate: int
    softcap: bool
    recurrent: int = 0  # layers that keep a state in place of keys and values

    @classmethod
    def of(cls, settings: Any, model: Any, config: Any) -> "Shape":
        """The shape of a model; numbers that its configuration lacks are taken as in Llama."""
        from strop.engines.local.states import KINDS

        heads, hidden = config.num_attention_heads, config.hidden_size
        size = getattr(config, "head_dim", None) or hidden // heads
        kinds = [KINDS.get(kind) for kind in getattr(config, "layer_types", None) or ()]
        return cls(
            parameters=sum(p.numel() for p in model.parameters()),
            trained=trained(settings, model),
            adapters=bool(settings.model.lora_rank),
            vocabulary=config.vocab_size,
            layers=config.num_hidden_layers,
            hidden=hidden,
            heads=heads * size,
            kv_heads=(getattr(config, "num_key_value_heads", None) or heads) * size,
            intermediate=getattr(config, "intermediate_size", None) or 4 * hidden,
            softcap=bool(getattr(config, "final_logit_softcapping", None)),
            recurrent=sum(kind is not None and kind.state and not kind.mask for kind in kinds),
        )

    def layer(self, b: int, o: int) -> int:
        """Bytes that autograd keeps of one token in one layer."""
        if not self.adapters:
            return (
                2 * (o + 2 * b) * self.hidden
                + (o + 3 * b) * (self.heads + self.kv_heads)
                + 4 * b * self.intermediate
            )
        # Frozen norms keep no normalised copy. In half precision, each adapter keeps the input of
        # its layer in `o` bytes: five keep the hidden state, one the attention's output, one the
        # gate's result.
        inputs = o if b < o else 0
        return (
            (2 * o + (5 * inputs or 2 * b)) * self.hidden
            + (o + 2 * b + inputs) * self.heads
            + (o + 2 * b) * self.kv_heads
            + (3 * b + (inputs or b)) * self.intermediate
        )


def trained(settings: Any, model: Any) -> int:
    """The number of trained parameters: all of them, or rank * (inputs + outputs) summed over
    adapted layers and adapters.
    """
    from torch import nn
    from transformers.pytorch_utils import Conv1D

    rank = settings.model.lora_rank * max(len(settings.roles.trained), 1)
    targets = settings.model.lora_targets
    if not rank:
        return sum(p.numel() for p in model.parameters())
    output = model.get_output_embeddings()
    return sum(
        rank * sum(module.weight.shape)
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | Conv1D)
        and module is not output
        and (not targets or name.rpartition(".")[2] in targets)
    )


def counts(
    settings: Any, shape: Shape, prompt_tokens: int, episode_tokens: int, device: str
) -> dict[str, int]:
    """The numbers of a run that the formulas use, as in `COUNTS`."""
    from strop.training.learner.models import DTYPES

    algorithms, training = settings.build().algorithms, settings.training
    b = DTYPES[settings.model.dtype].itemsize
    longest = prompt_tokens + episode_tokens
    rollouts = max(_rollouts(each, training.steps) for each in algorithms)
    answers = max(rollouts, _validated(settings)) or training.num_slots
    tokens = max(training.tokens_on(device), longest)
    return {
        "b": b,
        "o": max(4, b),
        "slots": min(training.num_slots, answers),
        "places": _places(prompt_tokens, longest, _records(settings, device)),
        "tokens": min(tokens, rollouts * longest) if rollouts else tokens,
        "buffers": max(_head_buffers(each, shape) for each in algorithms),
        "layer": shape.layer(b, max(4, b)),
    }


def estimate(settings: Any, shape: Shape, count: dict[str, int], device: str) -> dict[str, int]:
    """Bytes of each piece on a device, as in `FORMULAS`."""
    from strop.head.chunk import CHUNK_BYTES, CHUNK_BYTES_ELSEWHERE

    b, o, slots, tokens = (count[name] for name in ("b", "o", "slots", "tokens"))
    method, adapters, trained_o = settings.build(), shape.adapters, shape.trained * count["o"]
    kept = shape.layers * count["layer"]
    if settings.model.gradient_checkpointing:
        kept = count["layer"] + (shape.layers - 1) * b * shape.hidden
    chunk = CHUNK_BYTES if device == "cpu" else CHUNK_BYTES_ELSEWHERE
    head = count["buffers"] * min(chunk, tokens * shape.vocabulary * o)
    if device != "cpu" and b < o:
        head += min(chunk, tokens * shape.vocabulary * o) // 2
    side_by_side = shape.hidden * (shape.heads + 2 * shape.kv_heads + 2 * shape.intermediate)
    activations = tokens * (kept + 4 * o * shape.hidden)
    cached = slots * count["places"]
    cached = min(cached, getattr(settings.engine, "cache_tokens", 0) or cached)
    cache = cached * (shape.layers - shape.recurrent) * 2 * shape.kv_heads * b
    beside, in_memory = settings.engine.copies()
    copies = beside + (in_memory if device == "cpu" else 0)
    from strop.batch.columns import OF_REFERENCE

    reads_reference = OF_REFERENCE & method.reads()
    copied = not adapters or settings.model.reference or "moves_reference" in method.facts()
    beside_them = len({"moves_anchor", "moves_explorer"} & method.facts()) if device == "cpu" else 0
    return {
        "weights": shape.parameters * b + (trained_o if adapters else 0),
        "masters": shape.trained * 4 if b == 2 and not adapters else 0,
        "optimiser": 2 * trained_o,
        "reference": shape.parameters * b if reads_reference and copied else 0,
        "held": copies * shape.trained * (o if adapters else b)
        + (shape.parameters * b if settings.training.max_staleness else 0)
        + beside_them * trained_o,
        "gradients": trained_o + (0 if adapters else shape.vocabulary * shape.hidden * o),
        "kv_cache": cache,
        "packed": shape.layers * side_by_side * b if _records(settings, device) else 0,
        "drawing": slots * shape.vocabulary * (24 + b),
        "head": head,
        "activations": activations,
        "slack": (cache + head + activations) // 4,
        "program": PROGRAM_BYTES if device == "cpu" else 0,
    }


def peaks(parts: dict[str, int], device: str) -> tuple[int, int]:
    """Bytes while answers are generated, and while the weights are updated.

    A small cache stays in place during the update. On a CPU, the C library hardly reuses the memory
    of one phase for the other, so both are held.
    """
    import torch

    from strop.engines.local.engine import kept_bytes

    stays = parts["kv_cache"]
    # a GPU of another machine may keep the cache
    if (device == "cpu" or torch.cuda.is_available()) and stays > kept_bytes(torch.device(device)):
        stays = 0
    if device == "cpu":
        stays = parts["kv_cache"] + parts["drawing"]
    return sum(parts[n] for n in GENERATING), sum(parts[n] for n in UPDATING) + stays


def _records(settings: Any, device: str) -> bool:
    """Whether the engine records CUDA graphs of its passes."""
    return device != "cpu" and getattr(settings.engine, "cuda_graphs", False)


def _places(prompt_tokens: int, longest: int, doubles: bool) -> int:
    """Places of one slot of the cache, which grows as in `SlotCache.reserve`."""
    from strop.engines.local.cache import roomy

    places = roomy(prompt_tokens, doubles)
    while places < longest:  # the last token is drawn and not read again
        places = roomy(places, doubles)
    return places


def _head_buffers(algorithm: Any, shape: Shape) -> int:
    """The number of [chunk, vocabulary] buffers that the head uses in an update."""
    from strop.training.learner import kernel

    read = algorithm.reads(("terms",))
    distribution = any(name.endswith("_TV") for name in read)
    two = distribution or "entropy_T" in kernel.current_columns(algorithm.terms)
    return 1 + two + shape.softcap + ("logq_ref_TV" in read)


def _rollouts(algorithm: Any, num_steps: int) -> int:
    """The most rollouts of a step; 0 when the sampling parts do not say."""
    return sum(
        _most(use.part, "num_prompts", num_steps) * _most(use.part, "num_rollouts", num_steps)
        for use in algorithm.sampling
    )


def _most(part: Any, name: str, num_steps: int) -> int:
    """The largest number that an option has in a run; 0 where the part does not have it."""
    from strop.method.schedule import Schedule, extreme_steps

    value = getattr(part, name, 0)
    if not isinstance(value, Schedule):
        return int(value)
    return max(round(value(step, num_steps)) for step in extreme_steps(value, num_steps))


def _validated(settings: Any) -> int:
    """The number of answers of a validation; 0 without one."""
    data, evaluation = settings.data, settings.evaluation
    held_back = not data.files or data.validation_files or data.validation_size
    if not evaluation.every or not held_back:
        return 0
    prompts = min(data.validation_size or evaluation.max_prompts, evaluation.max_prompts)
    return int(prompts * evaluation.num_samples)
