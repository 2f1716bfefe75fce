"""Centre each rollout's reward on its group's mean, long answers counting more."""

from dataclasses import dataclass

import torch
from torch import Tensor

from strop.batch import segments
from strop.method.part import Result, require_one_of
from strop.parts.advantage.baseline._shift import shift_of


@dataclass(frozen=True)
class SubtractLengthWeightedMean:
    """A rollout learns from how much better it did than its prompt's average token.

        advantage_i = reward_i - sum_{j in group} length_j reward_j / sum_{j in group} length_j

    With gradients as large as answers are long, this is the baseline of least variance. Lengths
    count policy tokens.

    Reads: advantage_B [B] float, length_B [B] int, group_B [B] int, num_groups int, scored_B [B]
    bool.   Writes: advantage_B [B] float.
    Source: arXiv 2505.23585 (the optimal reward baseline).
    Differs from the source: no.
    Nearest part: subtract_group_mean; equal to it when all answers of a group are equally long.
    Edges: group of one -> by `singleton`; the only scored rollout of several -> 0; all equal ->
    exactly 0; no token in a group -> mean 0; unscored rollouts -> 0 and outside the mean.
    """

    # What a group of one gets: "raw" (its reward) or "zero". Default: released code (verl).
    singleton: str = "raw"

    def __post_init__(self) -> None:
        require_one_of(self, "singleton", ("raw", "zero"))

    def __call__(
        self,
        advantage_B: Tensor,
        length_B: Tensor,
        group_B: Tensor,
        scored_B: Tensor,
        num_groups: int,
    ) -> Result:
        weight_B = length_B.to(advantage_B.dtype)
        mean_P = segments.mean_within(advantage_B, group_B, num_groups, scored_B, weight_B)
        if self.singleton == "raw":
            mean_P = torch.where(segments.count(group_B, num_groups) == 1, 0, mean_P)
        centred_B = torch.where(scored_B, advantage_B - mean_P[group_B], 0)
        shift = shift_of(centred_B, advantage_B, group_B, num_groups, scored_B)
        return Result(centred_B, metrics=shift)
