"""Centre each rollout's reward on the median of its prompt's group."""

from dataclasses import dataclass

import torch
from torch import Tensor

from strop.batch import segments
from strop.method.part import Result
from strop.parts.advantage.baseline._shift import shift_of


@dataclass(frozen=True)
class SubtractGroupMedian:
    """A rollout learns from how much better it did than the middle rollout of its prompt.

        advantage_i = reward_i - lower median_{j in group} reward_j

    Reads: advantage_B [B] float, group_B [B] int, num_groups int, scored_B [B] bool.
    Writes: advantage_B [B] float.
    Source: arXiv 2601.22582 (the numerator); code lotusroot-kim/MC-GRPO.
    Differs from the source: no; of an even number of rollouts it is the lower middle one.
    Nearest part: subtract_group_mean; equal to it in groups whose mean is their median.
    Edges: group of one -> 0; all equal -> exactly 0; unscored rollouts -> 0 and outside the median.
    """

    def __call__(
        self, advantage_B: Tensor, group_B: Tensor, scored_B: Tensor, num_groups: int
    ) -> Result:
        members = (advantage_B, group_B, num_groups, scored_B)
        median_P = segments.lower_median(*members)
        centred_B = torch.where(scored_B, advantage_B - median_P[group_B], 0)
        return Result(centred_B, metrics=shift_of(centred_B, *members))
