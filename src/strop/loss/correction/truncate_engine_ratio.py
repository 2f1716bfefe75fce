"""Weigh each token by how much likelier the trainer finds it than the engine did, up to a cap."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop.part import require

CLAMP_NATS = 20.0


@dataclass(frozen=True)
class TruncateEngineRatio:
    """The engine's numerical distance from the trainer is corrected token by token.

        correction_t = min(exp(clamp(logp_old_t - logp_behavior_t, -20, 20)), cap)

    Reads: logp_old_T [T] float, logp_behavior_T [T] float, mask_T [T] bool.
    Writes: correction_T [T] float.
    Source: code only: verl-project/verl:verl/trainer/ppo/rollout_corr_helper.py (token, truncate).
    Differs from the source: a void logp_behavior (NaN) gives 1, that is no correction.
    Nearest part: truncate_engine_ratio_per_sequence; equal to it when every rollout has one
    policy token.
    Edges: masked tokens -> 1; no gradient.
    """

    facts: ClassVar[frozenset[str]] = frozenset({"corrects_behavior_ratio"})
    # Largest weight, a ratio. Default: released code (verl; TRL has 3).
    cap: float = 2.0

    def __post_init__(self) -> None:
        require(self, "cap", low=0.0)

    def __call__(self, logp_old_T: Tensor, logp_behavior_T: Tensor, mask_T: Tensor) -> Tensor:
        difference_T = (logp_old_T - logp_behavior_T).detach().clamp(-CLAMP_NATS, CLAMP_NATS)
        known_T = mask_T & ~logp_behavior_T.isnan()
        return torch.where(known_T, difference_T.exp().clamp(max=self.cap), 1)
