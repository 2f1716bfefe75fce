"""Among right answers that use their tool, credit those more that turn to it early."""

from dataclasses import dataclass

import torch
from torch import Tensor

from strop.batch import segments
from strop.method.part import Result, require


@dataclass(frozen=True)
class FavourEarlyMarker:
    """A right answer that wrote the marker earlier than its peers gains, a later one loses.

        E: right rollouts of the group with the marker;  p: its position;  L: length, in tokens
        x_i = delta * (p_i - mean_E p) / mean_E L
        advantage_t <- advantage_t + clip(x_i, -kappa |a_i|, kappa |a_i|)     for t in i, i in E

    a_i is the rollout's advantage. delta < 0 favours early ones; kappa < 1 keeps every sign.
    Metrics: marker/frac_rollouts (scored ones with the marker), /mean_position (tokens).

    Reads: advantage_T [T] float, advantage_B, outcome_B [B] float, marker_at_B, length_B, group_B
    [B] int, num_groups int, scored_B [B] bool, rollout_T [T] int, mask_T [T] bool.
    Writes: advantage_T.
    Source: arXiv 2508.19201 (advantage shaping).
    Differs from the source: |a| where it writes a, which there is above 0 for right answers.
    Nearest part: favour_short_right_answers.
    Edges: fewer than two in E, delta or kappa 0, advantage 0 -> unchanged; unscored -> 0.
    """

    # Strength; below 0 favours early ones. Default: paper (its conservative setting, -2).
    delta: float = -2.0
    # Largest change, a share of the advantage. Default: paper (0.7).
    kappa: float = 0.7
    # Outcome from which an answer is right. Default: ours (1, of rewards in {0, 1}).
    success: float = 1.0

    def __post_init__(self) -> None:
        require(self, "delta", "success")
        require(self, "kappa", low=0.0)

    def __call__(
        self,
        advantage_T: Tensor,
        advantage_B: Tensor,
        outcome_B: Tensor,
        marker_at_B: Tensor,
        length_B: Tensor,
        group_B: Tensor,
        scored_B: Tensor,
        rollout_T: Tensor,
        mask_T: Tensor,
        num_groups: int,
    ) -> Result:
        wrote_B = scored_B & (marker_at_B >= 0)
        chosen_B = wrote_B & (outcome_B >= self.success)
        at_B, own_B = marker_at_B.double(), length_B.double()
        late_B = segments.centred(at_B, group_B, num_groups, chosen_B)
        length_P = segments.mean(own_B, group_B, num_groups, chosen_B).clamp(min=1)
        limit_B = self.kappa * advantage_B.abs().double()
        change_B = (self.delta * late_B / length_P[group_B]).clamp(-limit_B, limit_B)
        change_B = torch.where(chosen_B, change_B, 0).to(advantage_T.dtype)
        one_B = torch.zeros_like(group_B)
        metrics = {
            "marker/frac_rollouts": float(wrote_B.sum() / scored_B.sum().clamp(min=1)),
            "marker/mean_position": float(segments.mean(at_B, one_B, 1, wrote_B)),
        }
        learns_T = mask_T & scored_B[rollout_T]
        shaped_T = torch.where(learns_T, advantage_T + change_B[rollout_T], 0)
        return Result(shaped_T, metrics=metrics)
