"""Do not push down answers that the policy has already moved away from."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop.batch import segments
from strop.method.part import Result, require
from strop.parts.loss.bound._bounds import clip


@dataclass(frozen=True)
class DropDriftedBlame:
    """Bad answers teach only while they are about as likely as when they were drawn.

        objective_t = min(rho_t A_t, clip(rho_t, 1 - clip_low, 1 + clip_high) A_t) * keep_t
        keep_t = 1 where A_t >= 0 or K <= threshold, else 0
        K = mean_{s in rollout of t} (logp_behavior_s - logp_s), detached

    Without logp_behavior, or where it is void (NaN), the ratio's denominator replaces it. K is that
    of the current policy, computed again in every update.

    Reads: log_ratio_T, logp_T, advantage_T [T] float, mask_T [T] bool, rollout_T [T] int,
    num_rollouts int, and logp_behavior_T [T] float where given.   Writes: objective_T [T] float.
    Source: arXiv 2512.02556, eq. 9; code huggingface/trl (off_policy_mask_threshold).
    Differs from the source: no.
    Nearest part: clip_both_sides; equal to it when threshold is inf.
    Edges: what is dropped keeps its place in averages; advantage 0 -> objective 0.
    """

    scope: ClassVar[str] = "rollout"
    facts: ClassVar[frozenset[str]] = frozenset({"silent_at_zero_advantage"})
    # Largest mean drift of a bad answer that still teaches, nats a token. Default: ours (the
    # sources leave it open).
    threshold: float = 0.5
    # Width below 1, a share of the ratio. Default: released code (TRL).
    clip_low: float = 0.2
    # Width above 1, a share of the ratio. Default: released code (TRL).
    clip_high: float = 0.2

    def __post_init__(self) -> None:
        require(self, "threshold", "clip_low", "clip_high", low=0.0)

    def __call__(
        self,
        log_ratio_T: Tensor,
        logp_T: Tensor,
        advantage_T: Tensor,
        mask_T: Tensor,
        rollout_T: Tensor,
        num_rollouts: int,
        logp_behavior_T: Tensor | None = None,
    ) -> Result:
        clipped = clip(log_ratio_T.exp(), advantage_T, 1 - self.clip_low, 1 + self.clip_high)
        away_T = -log_ratio_T.detach()
        if logp_behavior_T is not None:
            known_T = ~logp_behavior_T.isnan()
            away_T = torch.where(known_T, logp_behavior_T - logp_T.detach(), away_T)
        drift_T = segments.mean(away_T, rollout_T, num_rollouts, mask_T)[rollout_T]
        dropped_T = (advantage_T < 0) & (drift_T > self.threshold)
        metrics = {**clipped.metrics, "opsm/dropped_mean": dropped_T.float()}
        return Result(torch.where(dropped_T, 0, clipped.value), metrics=metrics)
