"""Lists GPUs by their data sheets, and the assumptions about the software that runs on them.

The figures of a GPU are from the maker's public data sheet: dense bfloat16 (without sparsity),
decimal units, links in one direction. `network` is that of the maker's reference machine. They were
written down without the sheets at hand: `source` names where to check them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

from strop.support.errors import UserError, nearest


@dataclass(frozen=True)
class Gpu:
    """A kind of GPU.

    flops: operations a second. bandwidth: of its memory, bytes a second. memory: bytes. link: to
    other GPUs of its node; network: to GPUs of other nodes; host: to main memory; all in bytes a
    second. per_node: GPUs of a node.
    """

    name: str
    flops: float
    bandwidth: float
    memory: float
    link: float
    network: float
    host: float
    per_node: int
    source: str


GPUS = {
    gpu.name: gpu
    for gpu in (
        Gpu("A100", 312e12, 2.039e12, 80e9, 300e9, 25e9, 32e9, 8,
            "NVIDIA A100 Tensor Core GPU data sheet (SXM, 80 GB); DGX A100 data sheet"),
        Gpu("B200", 2250e12, 8.0e12, 180e9, 900e9, 50e9, 64e9, 8,
            "NVIDIA DGX B200 data sheet (its 8 GPUs divided by 8; dense is half of sparse)"),
        Gpu("GB200", 2500e12, 8.0e12, 186e9, 900e9, 50e9, 225e9, 72,
            "NVIDIA GB200 NVL72 data sheet (its 72 GPUs divided by 72)"),
        Gpu("H100", 989e12, 3.35e12, 80e9, 450e9, 50e9, 64e9, 8,
            "NVIDIA H100 Tensor Core GPU data sheet (SXM); DGX H100 data sheet"),
        Gpu("H20", 148e12, 4.0e12, 96e9, 450e9, 50e9, 64e9, 8,
            "figures published by sellers of the H20 (SXM, 96 GB); network as in DGX H100"),
        Gpu("H200", 989e12, 4.8e12, 141e9, 450e9, 50e9, 64e9, 8,
            "NVIDIA H200 Tensor Core GPU data sheet (SXM); DGX H200 data sheet"),
        Gpu("L4", 121e12, 0.3e12, 24e9, 32e9, 12.5e9, 32e9, 8,
            "NVIDIA L4 Tensor Core GPU data sheet; network of 100 Gb/s assumed"),
        Gpu("L40S", 362e12, 0.864e12, 48e9, 32e9, 25e9, 32e9, 8,
            "NVIDIA L40S data sheet; network of 200 Gb/s assumed"),
    )
}  # fmt: skip


def gpu_of(kind: str) -> Gpu:
    """The GPU called `kind`. Raises UserError, which lists the kinds."""
    if not kind:
        raise UserError(f"give --kind: {', '.join(GPUS)}")
    found = GPUS.get(kind.upper())
    if found is None:
        raise UserError(
            f"--kind {kind}: this GPU is unknown{nearest(kind.upper(), GPUS)}; there are "
            f"{', '.join(GPUS)}"
        )
    return found


@dataclass(frozen=True)
class Assumptions:
    """Assumptions beyond the data sheets. A plan prints them; `--assume` changes them.

    The shares were chosen once, for all rows of docs/PLAN.md together.
    """

    # Shares of the data sheet's figures.
    mfu: float = 0.45  # of the operations a second, in training a dense model
    mfu_experts: float = 0.11  # the same, with experts
    mfu_prefill: float = 0.5  # in prefill
    mfu_decode: float = 0.5  # in the arithmetic of a decode step
    bandwidth: float = 0.55  # of the memory's, in decoding
    links: float = 0.6  # of all links
    memory: float = 0.9  # of the memory, which may be used
    # Bytes of a number.
    weight_bytes: float = 2.0
    cache_bytes: float = 2.0
    gradient_bytes: float = 4.0
    optimizer_bytes: float = 12.0  # Adam's two moments and the weights it changes, in float32
    logit_bytes: float = 10.0  # of a logit while it is trained on: bfloat16, float32 and gradient
    # Seconds.
    decode_seconds: float = 0.004  # overhead of a decode step, besides reading and computing
    hop_seconds: float = 10e-6  # latency of an all-reduce over a node's GPUs
    network_seconds: float = 30e-6  # the same over several nodes
    step_seconds: float = 10.0  # of a step: weights to the engines, logging, waiting for processes
    # Counts.
    rows: float = 1024  # maximum of concurrent answers in an engine, if its cache has room
    recompute: float = 1.0  # forward passes that are repeated for the backward pass
    reward_seconds: float = 0.0  # of an answer, besides generating

    def with_(self, given: Sequence[str]) -> "Assumptions":
        """The assumptions with values given as NAME=VALUE. Raises UserError."""
        known = {field.name for field in fields(self)}
        found: dict[str, float] = {}
        for each in given:
            name, _, text = each.partition("=")
            if name not in known:
                raise UserError(
                    f"--assume {each}: {name} is not assumed{nearest(name, known)}; there are "
                    f"{', '.join(sorted(known))}"
                )
            found[name] = _number(each, text, name in SHARES)
        return replace(self, **found)

    def of_training(self, experts: bool) -> float:
        """The share of the operations a second that training reaches."""
        return self.mfu_experts if experts else self.mfu

    @property
    def values(self) -> Mapping[str, float]:
        """The values by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


SHARES = ("mfu", "mfu_experts", "mfu_prefill", "mfu_decode", "bandwidth", "links", "memory")
MAY_BE_0 = (
    "decode_seconds", "hop_seconds", "network_seconds", "step_seconds", "recompute",
    "reward_seconds",
)  # fmt: skip


def _number(given: str, text: str, share: bool) -> float:
    """A number above 0, at most 1 for a share. Raises UserError."""
    try:
        value = float(text)
    except ValueError:
        raise UserError(f"--assume {given}: give NAME=NUMBER, such as mfu=0.4") from None
    low = 0.0 if given.partition("=")[0] in MAY_BE_0 else 1e-9
    high = 1.0 if share else 1e9
    if not low <= value <= high:
        raise UserError(
            f"--assume {given}: the number must be {'0 or more' if low == 0 else 'above 0'}"
            + (" and at most 1" if share else "")
        )
    return value
