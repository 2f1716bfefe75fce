"""Models how GPUs share a model: which layouts fit into memory, and the costs of their stages.

engine     tensor parallel over `tensor` GPUs; experts are on the same GPUs
trainer    tensor x context x pipeline GPUs hold a sequence; experts are spread over `expert`
           of all training GPUs. `gathered`: weights, gradients and optimiser are sharded over
           all training GPUs, and each layer's weights are gathered when it is needed (FSDP,
           ZeRO-3); else weights and gradients stay where they are used (ZeRO-1)
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from strop.planning.course import Floats, Speed, Weights
from strop.planning.hardware import Assumptions, Gpu
from strop.planning.model_costs import Model

SIZES = (1, 2, 4, 8, 16)  # numbers of GPUs of an engine, and of pipeline stages
INSIDE = (1, 2, 4, 8)  # numbers of GPUs that share a layer in training
GIB = 2**30
LAYERS_HELD = 2  # layers whose weights are gathered at the same time
Memory = dict[str, float]  # bytes of a GPU, by their use


@dataclass(frozen=True)
class Case:
    """A model on GPUs of a kind, for sequences of at most `longest` tokens.

    held: mean tokens that a running answer has in its cache. passes: forward passes of training
    besides that of the update. prompt: tokens of a prompt.
    """

    model: Model
    gpu: Gpu
    assumed: Assumptions
    longest: int
    held: float
    passes: float = 1.0

    def link(self, gpus: int) -> float:
        """Bytes a second between the GPUs of a group of `gpus`."""
        inside = gpus <= self.gpu.per_node
        return (self.gpu.link if inside else self.gpu.network) * self.assumed.links

    @property
    def training_passes(self) -> float:
        """Operations of training, in those of a forward pass: the backward pass is two of them."""
        return 3 + self.assumed.recompute + self.passes

    @property
    def room(self) -> float:
        """Usable bytes of a GPU."""
        return self.gpu.memory * self.assumed.memory


@dataclass(frozen=True)
class Engine:
    """GPUs that generate together.

    memory: of each GPU. bound: what takes longest in a decode step with all slots in use. offload:
    training's state leaves the GPUs while they generate.
    """

    tensor: int
    speed: Speed
    slots: int
    memory: Memory
    bound: str
    offload: bool = False

    @property
    def name(self) -> str:
        """The name shown in the table."""
        return f"tp{self.tensor}" + ("*" if self.offload else "")


def engine(case: Case, tensor: int, taken: float, offload: bool = False) -> Engine | None:
    """An engine of `tensor` GPUs, each with `taken` bytes in use; None when it does not fit.

    It must have room for the longest answer.
    """
    model, assumed = case.model, case.assumed
    if model.heads % tensor or tensor > 2 * case.gpu.per_node:
        return None
    weights = model.parameters * assumed.weight_bytes / tensor
    logits = assumed.rows * model.vocabulary * assumed.logit_bytes / tensor
    token = cached_bytes(case, tensor)
    room = case.room - taken - weights - logits
    if room < token * case.longest:
        return None
    slots = int(max(min(assumed.rows, room / (token * case.held)), 1))
    memory = {"weights": weights, "cache": min(room, slots * token * case.longest),
              "logits": logits}  # fmt: skip
    if taken:
        memory["training"] = taken
    speed = speed_of(case, tensor)
    return Engine(tensor, speed, slots, memory, _bound(speed, slots, case.held), offload)


def _bound(speed: Speed, slots: int, held: float) -> str:
    """What takes longest in a decode step with all slots in use."""
    weights, rows = speed.weights or Weights(), np.array([slots])
    arithmetic = weights.compute * slots
    reading = float(weights.seconds(rows)[0])
    terms = {
        "reading caches": speed.cached * slots * held, "decode steps": speed.step,
        "arithmetic" if reading <= arithmetic else "reading weights": reading,
        "sums over GPUs": speed.row * slots,
    }  # fmt: skip
    return max(terms, key=lambda name: terms[name])


def cached_bytes(case: Case, tensor: int) -> float:
    """Bytes of a cached token on each GPU of an engine; too few KV heads are replicated."""
    return case.model.cache_bytes(case.assumed.cache_bytes) / min(tensor, case.model.kv_heads)


def speed_of(case: Case, tensor: int) -> Speed:
    """The speed of an engine of `tensor` GPUs."""
    model, gpu, assumed = case.model, case.gpu, case.assumed
    cached = cached_bytes(case, tensor)
    reading = gpu.bandwidth * assumed.bandwidth * tensor
    lookup = 0 if model.tied else model.embedding
    dense = model.parameters - model.all_experts - lookup
    hop = assumed.hop_seconds if tensor <= gpu.per_node else assumed.network_seconds
    sums = 2 * model.layers * (tensor > 1)
    sent = 2 * (tensor - 1) / tensor * model.hidden * assumed.weight_bytes / case.link(tensor)
    weights = Weights(
        dense * assumed.weight_bytes / reading,
        model.all_experts * assumed.weight_bytes / reading,
        1 - model.chosen / model.experts if model.experts else 0.0,
        model.per_token / (gpu.flops * assumed.mfu_decode * tensor),
    )
    read = model.per_token / (gpu.flops * assumed.mfu_prefill * tensor) + sums * sent
    return Speed(
        assumed.decode_seconds + sums * hop, sums * sent, cached / (reading / tensor), read,
        begin=assumed.decode_seconds, weights=weights,
    )  # fmt: skip


@dataclass(frozen=True)
class Trainer:
    """A training layout on `gpus` GPUs, and the costs of each of its data-parallel workers.

    token, pair: seconds, as in `Costs`; update: seconds of each update besides its tokens; bound:
    what takes longest for a token; memory: of a GPU; state: the part of it kept between steps.
    """

    gpus: int
    tensor: int
    context: int
    pipeline: int
    expert: int
    gathered: bool
    token: float = 0.0
    pair: float = 0.0
    update: float = 0.0
    bound: str = ""
    memory: Memory = field(default_factory=dict)

    @property
    def size(self) -> int:
        """The number of GPUs that share a sequence."""
        return self.tensor * self.context * self.pipeline

    @property
    def workers(self) -> int:
        """The number of data-parallel workers."""
        return self.gpus // self.size

    @property
    def complexity(self) -> tuple[int, ...]:
        """A sort key, smaller for simpler layouts: stages, GPUs of a layer, expert size, copies."""
        return self.pipeline, self.tensor * self.context, self.expert, not self.gathered

    @property
    def state(self) -> float:
        """Bytes of a GPU that are kept between steps."""
        return sum(self.memory[name] for name in ("weights", "gradients", "optimizer"))

    @property
    def name(self) -> str:
        """The name shown in the table."""
        parts = [("tp", self.tensor), ("cp", self.context), ("pp", self.pipeline),
                 ("ep", self.expert)]  # fmt: skip
        shared = [f"{name}{count}" for name, count in parts if count > 1]
        return " ".join([*shared, f"dp{self.workers}"]) + ("" if self.gathered else " zero1")

    def seconds(self, sizes: Floats, updates: int) -> float:
        """Seconds of a step with these sequences: an even share, but at least the longest one."""
        each = self.token * sizes + self.pair * sizes**2
        even = float(each.sum()) / self.workers / updates
        return updates * (max(even, min(float(each.max()), even * self.workers)) + self.update)


def costs_of_training(case: Case, layout: Trainer) -> tuple[float, float]:
    """Seconds a token, and seconds a squared token of a sequence, for arithmetic alone."""
    model, assumed = case.model, case.assumed
    operations = case.training_passes
    computing = case.gpu.flops * assumed.of_training(model.experts > 0) * layout.size
    return operations * model.per_token / computing, operations * model.per_pair / 2 / computing


def trainer(case: Case, layout: Trainer, tokens: float) -> Trainer | None:
    """The layout with its costs, for updates of `tokens` tokens; None when it does not fit."""
    memory = memory_of(case, layout)
    if sum(memory.values()) > case.room:
        return None
    assumed = case.assumed
    compute, pair = costs_of_training(case, layout)
    passes = 2 + assumed.recompute + case.passes  # passes with communication between GPUs
    sending = _sending(case, layout) * passes
    gather = 0.0
    if layout.gathered and layout.gpus > 1:  # all passes gather weights; one scatters gradients
        times = passes + assumed.gradient_bytes / assumed.weight_bytes
        gather = times * _own_weights(case, layout) / case.link(layout.gpus) / case.longest
    micro = max(tokens / layout.workers / case.longest, 1.0)
    bubble = (micro + layout.pipeline - 1) / micro
    busy = (compute + sending) * bubble
    terms = {
        "arithmetic": compute, "exchange within layers": sending,
        "gathering weights": gather if gather > busy else 0.0,
        "the pipeline's ends": busy - compute - sending,
    }  # fmt: skip
    return replace(
        layout, token=max(busy, gather), pair=pair * bubble, update=_update(case, layout),
        bound=max(terms, key=lambda name: terms[name]), memory=memory,
    )  # fmt: skip


def _own_weights(case: Case, layout: Trainer) -> float:
    """Bytes of the weights of all layers that a GPU computes."""
    model = case.model
    dense = (model.parameters - model.all_experts) / layout.tensor
    experts = model.all_experts / max(layout.expert, layout.tensor)
    return (dense + experts) / layout.pipeline * case.assumed.weight_bytes


def _sending(case: Case, layout: Trainer) -> float:
    """Seconds a token of a forward pass for communication between the GPUs of a layer."""
    model = case.model
    row = model.hidden * case.assumed.weight_bytes
    tensor, context, expert = layout.tensor, layout.context, layout.expert
    sums = 2 * 2 * (tensor - 1) / tensor * row / context / case.link(tensor)
    turns = 4 * (context - 1) / context * row / context / tensor / case.link(tensor * context)
    sent = 2 * model.chosen * (expert - 1) / expert * row / context / tensor / case.link(expert)
    return (model.layers * (sums + turns) + model.sparse_layers * sent) / layout.pipeline


def _update(case: Case, layout: Trainer) -> float:
    """Seconds of an update besides its tokens: optimiser, exchange of gradients and weights."""
    assumed, gpus = case.assumed, layout.gpus
    each = assumed.weight_bytes + assumed.gradient_bytes + assumed.optimizer_bytes
    optimizer = 2 * each * case.model.parameters / gpus / (case.gpu.bandwidth * assumed.bandwidth)
    if layout.gathered or layout.workers == 1:
        return optimizer
    own = _own_weights(case, layout)
    return optimizer + own * (1 + assumed.gradient_bytes / assumed.weight_bytes) / case.link(gpus)


def memory_of(case: Case, layout: Trainer) -> Memory:
    """Bytes of a GPU for a micro-batch of one sequence of the maximum length."""
    model, assumed = case.model, case.assumed
    own = _own_weights(case, layout)
    share = model.parameters / layout.gpus
    layer = own / model.layers * layout.pipeline
    if layout.gathered:
        weights, gradients = share * assumed.weight_bytes, share * assumed.gradient_bytes
        gathered = LAYERS_HELD * layer if layout.gpus > 1 else 0.0
    else:
        weights, gathered = own, 0.0
        gradients = own / assumed.weight_bytes * assumed.gradient_bytes
    tokens = case.longest / layout.context / layout.tensor
    inner = max(model.inner * (model.sparse_layers < model.layers),
                model.chosen * model.expert_inner + model.shared_inner)  # fmt: skip
    within = 8 * model.hidden + 2 * (model.heads + model.kv_heads) * model.head_dim + 3 * inner
    # the first pipeline stage has as many micro-batches in flight as there are stages
    kept = model.layers * (model.hidden if assumed.recompute else within)
    return {
        "weights": weights, "gathered": gathered, "gradients": gradients,
        "optimizer": share * assumed.optimizer_bytes,
        "activations": tokens * (kept + within) * assumed.weight_bytes,
        "logits": tokens * model.vocabulary * assumed.logit_bytes,
    }  # fmt: skip


def trainers(case: Case, gpus: int) -> Iterator[Trainer]:
    """Every training layout of `gpus` GPUs, whether it fits or not."""
    model = case.model
    experts = [
        count for count in (1, 2, 4, 8, 16, 32, 64)
        if count == 1 or (model.experts and model.experts % count == 0)
    ]  # fmt: skip
    for pipeline in SIZES:
        for tensor in INSIDE:
            for context in INSIDE:
                if gpus % (pipeline * tensor * context) or model.kv_heads % tensor:
                    continue
                if pipeline > model.layers or tensor * context > case.gpu.per_node:
                    continue
                for expert in experts:
                    if gpus // pipeline % expert:
                        continue
                    for gathered in (True, False) if pipeline == 1 else (False,):
                        yield Trainer(gpus, tensor, context, pipeline, expert, gathered)


def fitting(case: Case, gpus: int, tokens: float) -> list[Trainer]:
    """The layouts that fit, with their costs for updates of `tokens` tokens."""
    found = (trainer(case, layout, tokens) for layout in trainers(case, gpus))
    return [each for each in found if each is not None]


@dataclass(frozen=True)
class Sharing:
    """How the GPUs of an outcome share the model."""

    engine: Engine
    trainer: Trainer

    @property
    def name(self) -> str:
        """The name shown in the table."""
        return f"{self.engine.name} / {self.trainer.name}"

    @property
    def peaks(self) -> tuple[float, float]:
        """GiB of a GPU while it generates and while it trains."""
        generating, training = self.engine.memory, self.trainer.memory
        return sum(generating.values()) / GIB, sum(training.values()) / GIB
