"""Add up the tokens of a rollout, average over a prompt's rollouts, then over prompts."""

from dataclasses import dataclass

import torch
from torch import Tensor

from strop.batch import segments


@dataclass(frozen=True)
class AveragePerPrompt:
    """Every prompt weighs the same, however many of its rollouts were kept (prompt-mean).

        share_t = denominator_t / (counting rollouts of its prompt * counting prompts)

    A rollout counts when one of its tokens does, a prompt when one of its rollouts does; so what
    a selection takes out of the denominator enters neither sum nor count, even where it leaves
    nothing of a prompt.

    Reads: denominator_T [T] bool, rollout_T [T] int, group_B [B] int, num_groups int.
    Writes: share_T [T] float.
    Source: arXiv 2604.26326, eq. 5 (the inner mean over kept rollouts).
    Differs from the source: the paper leaves open how prompts without a kept rollout enter the
    outer mean; here they do not.
    Nearest part: average_by_constant_length; equal to it with length 1 when all prompts keep
    equally many rollouts.
    Edges: no token -> all shares 0.
    """

    def __call__(
        self, denominator_T: Tensor, rollout_T: Tensor, group_B: Tensor, num_groups: int
    ) -> Tensor:
        counting_B = segments.count(rollout_T, group_B.shape[0], denominator_T) > 0
        count_P = segments.count(group_B, num_groups, counting_B)
        share_P = 1.0 / (count_P.clamp(min=1).double() * (count_P > 0).sum().clamp(min=1))
        return torch.where(denominator_T, share_P[group_B][rollout_T], 0.0)
