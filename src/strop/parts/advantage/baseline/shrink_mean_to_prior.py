"""Trust a prior of the prompt's success as long as the group does not contradict it."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop.batch import segments
from strop.method.part import Result


@dataclass(frozen=True)
class ShrinkMeanToPrior:
    """With few rollouts the baseline is a prior of the success, with many their mean.

        R' = 2 R - 1, V = 2 prior - 1, v = mean of R' over the group's k rollouts
        D2 = max(0, (v - V)^2 - 1 / k);  w = D2 / (D2 + 1 / k)
        advantage_i = R'_i - (w v + (1 - w) V)

    1 / k bounds the noise of v, as rewards are -1 or 1; w is the weight of least squared error.
    Metric: prior/trust (mean of 1 - w over groups with a scored rollout).

    Reads: advantage_B [B] float (the reward, 0 to 1), prior_B [B] float, group_B [B] int,
    num_groups int, scored_B [B] bool.   Writes: advantage_B [B] float.
    Source: arXiv 2603.10848.
    Differs from the source: known only from a note on the paper, which does not show whether it
    divides by a deviation or leaves the rollout out of its mean; neither is done here.
    Nearest part: subtract_group_mean; twice that where the prior is far from what was seen.
    Edges: groups of one outcome teach; unscored rollouts -> 0 and outside the mean.
    """

    facts: ClassVar[frozenset[str]] = frozenset(
        {"rewards_from_0_to_1", "learns_from_uniform_groups", "advantage_mean_is_not_zero"}
    )

    def __call__(
        self,
        advantage_B: Tensor,
        prior_B: Tensor,
        group_B: Tensor,
        scored_B: Tensor,
        num_groups: int,
    ) -> Result:
        signed_B = torch.where(scored_B, 2 * advantage_B - 1, 0)
        prior_B = (2 * prior_B - 1).to(signed_B.dtype)
        size_P = segments.count(group_B, num_groups, scored_B)
        noise_B = (1 / size_P.clamp(min=1).to(signed_B.dtype))[group_B]
        mean_B = segments.mean(signed_B, group_B, num_groups, scored_B)[group_B]
        off_B = ((mean_B - prior_B).square() - noise_B).clamp(min=0)
        weight_B = off_B / (off_B + noise_B)
        base_B = weight_B * mean_B + (1 - weight_B) * prior_B
        trust_P = segments.mean(1 - weight_B, group_B, num_groups, scored_B)
        trust = segments.overall(trust_P, size_P > 0)
        value_B = torch.where(scored_B, signed_B - base_B, 0)
        return Result(value_B, metrics={"prior/trust": trust})
