"""Sample warmer where the policy is undecided and cooler where it is sure."""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from strop.batch import segments
from strop.engines.asynchronous import AsyncEngine
from strop.engines.rules import SharedRule
from strop.method.part import Draw, require, require_one_of
from strop.method.services import Sampling, Texts
from strop.parts.rollout.base import COLUMNS, Rollouts, SamplingFields, assemble


@dataclass(frozen=True)
class WarmByEntropy(SharedRule):
    """A rule: logits [N, V] divided by max(1 + tau h, 0.05), h from their entropy H.

    d = (log max(H, 1e-8) - middle) * (up where d > 0, else down), held within `bound`.
    """

    function: ClassVar[str] = "warm_by_entropy"
    tau: float
    middle: float
    up: float
    down: float
    bound: float = math.inf


@dataclass(frozen=True)
class SampleAtEntropyTemperature(SamplingFields):
    """A token's temperature grows with how undecided the policy is there.

        l = log max(H, 1e-8), H the entropy before the token at `temperature`
        paper: d = (l - Q) / s;  code: d / max d or d / |min d| by its sign, within [-1, 1]
        token ~ softmax(logits / (temperature * (1 + tau d)))

    Q is the nearest-rank quantile of l over the last step's policy tokens, s their root mean
    square distance from Q, max d and min d their extremes. The factor stays above 0.05.

    Reads: draws; state; entropy_behavior_T [T] float, mask_T [T] bool after a step (update).
    Writes: the token, turn, rollout and prompt tables.
    Source: arXiv 2509.16591 (adaptive temperature); code starriver030515/HAPO (sampler).
    Differs from the source: `source_form` "code" has the sign for sure tokens that the released
    code slips (there they are warmed too).
    Nearest part: sample_independently; equal to it when tau is 0, and in the first step.
    Edges: log-probabilities of training are at `temperature`; a last step without policy tokens,
    or of one entropy -> plain. The state (Q, s, extremes) is in the checkpoint.
    """

    writes: ClassVar[tuple[str, ...]] = COLUMNS
    # How far a deviation of 1 moves the temperature, a share. Default: paper v2 (code: 0.05).
    tau: float = 0.1
    # Level of the entropy that is sampled as it is, a share. Default: released code.
    quantile: float = 0.8
    # "paper" or "code" (deviations rescaled to [-1, 1]). Default: paper.
    source_form: str = "paper"

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "tau", low=0.0)
        require(self, "quantile", low=0.0, high=1.0)
        require_one_of(self, "source_form", ("paper", "code"))

    @property
    def needs(self) -> frozenset[str]:
        """Rules warm the tokens; what they are made of is read from the last step."""
        return super().needs | ({"rules"} if self.tau else set())

    def init(self) -> dict[str, float]:
        """No step seen."""
        return {}

    async def __call__(
        self,
        draws: tuple[Draw, ...],
        engine: AsyncEngine,
        texts: Texts,
        sampling: Sampling,
        rng: torch.Generator,
        state: dict[str, float],
    ) -> Rollouts:
        warm = (self.warming(state),) if state and self.tau else ()
        requests = [
            replace(request, rules=(*warm, *request.rules))
            for request in self.requests(draws, texts, sampling, rng)
        ]
        return assemble(draws, await engine.generate_all(requests)), None

    def warming(self, state: dict[str, float]) -> WarmByEntropy:
        """The rule of a step after one with this state."""
        if self.source_form == "paper":
            return WarmByEntropy(self.tau, state["middle"], 1 / state["rms"], 1 / state["rms"])
        up, down = (1 / state[name] if state[name] else 0.0 for name in ("most", "least"))
        return WarmByEntropy(self.tau, state["middle"], up, down, bound=1.0)

    def update(
        self, entropy_behavior_T: Tensor, mask_T: Tensor, state: dict[str, float]
    ) -> dict[str, float]:
        """The statistics of this step's log-entropies for the next one's sampling."""
        known_T = mask_T & ~entropy_behavior_T.isnan()
        log_N = entropy_behavior_T[known_T].double().clamp(min=1e-8).log()
        if log_N.numel() == 0:
            return {}
        middle = segments.nearest_rank(log_N, torch.zeros_like(log_N).long(), 1, self.quantile)
        off_N = log_N - middle
        rms = float(off_N.square().mean().sqrt())
        found = {
            "middle": float(middle), "rms": rms, "most": max(float(off_N.max()), 0.0),
            "least": max(-float(off_N.min()), 0.0),
        }  # fmt: skip
        return found if rms > 0 else {}
