"""Measure how hard each rollout would push the weights, and how much it counts."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop.batch import segments
from strop.batch.batch import Batch
from strop.batch.columns import Column
from strop.method.services import Scoring

CLAMP_NATS = 20.0


@dataclass(frozen=True)
class MeasureRolloutGradients:
    """Rollouts get their importance weight and the norm of their score, for a baseline.

        sequence_is_weight_i = exp(clamp(sum_t (logp_old_t - logp_behavior_t), -20, 20))
        grad_norm_i = || gradient of sum_t logp_t in the trained weights ||_2

    It costs one backward pass per rollout, only in groups whose rewards differ: others learn
    nothing from any baseline, and get the norm 0. The sum is over policy tokens and not divided by
    their number.

    Reads: batch, logp_old_T, logp_behavior_T [T] float, mask_T [T] bool, rollout_T [T] int,
    reward_B [B] float, scored_B [B] bool, group_B [B] int, num_groups int; scoring (gradients).
    Writes: sequence_is_weight_B, grad_norm_B [B] float.
    Source: arXiv 2602.17616; code mit-han-lab/vcpo (megatron_actor).
    Differs from the source: norms are computed before the update; the code computes them in it,
    group by group.
    Nearest part: weigh_by_engine_ratio, whose unit "sequence" has the same weights.
    Edges: a void logp_behavior (NaN) adds 0; no policy token -> weight 1, norm 0.
    """

    writes: ClassVar[tuple[str, ...]] = ("sequence_is_weight_B", "grad_norm_B")
    declares: ClassVar[tuple[Column, ...]] = (
        Column(
            "sequence_is_weight_B",
            "float",
            "importance weight of the whole answer",
            random="positive",
        ),
        Column(
            "grad_norm_B",
            "float",
            "length of the gradient of its log-probability",
            random="uniform",
        ),
    )

    def __call__(
        self,
        batch: Batch,
        logp_old_T: Tensor,
        logp_behavior_T: Tensor,
        mask_T: Tensor,
        rollout_T: Tensor,
        reward_B: Tensor,
        scored_B: Tensor,
        group_B: Tensor,
        scoring: Scoring,
        num_groups: int,
    ) -> tuple[Tensor, Tensor]:
        num = reward_B.shape[0]
        gap_T = logp_old_T - logp_behavior_T
        sum_B = segments.total(gap_T, rollout_T, num, mask_T & ~gap_T.isnan())
        weight_B = sum_B.clamp(-CLAMP_NATS, CLAMP_NATS).exp()
        wanted_B = scored_B & segments.differ(reward_B, group_B, num_groups, scored_B)[group_B]
        norm_B = torch.zeros_like(weight_B)
        if bool(wanted_B.any()):
            norm_B[wanted_B] = scoring.gradient_norms(batch.keep(wanted_B)).to(norm_B)
        return weight_B, norm_B
