"""Measure advantages in deviations of all the step's rewards."""

from dataclasses import dataclass

import torch
from torch import Tensor

from strop.batch import segments
from strop.method.part import Result, require


@dataclass(frozen=True)
class DivideByRewardStd:
    """Prompts keep their weight against each other: no group of similar rewards is blown up alone.

        advantage_i <- advantage_i / (std of all scored rewards of the step, biased, + eps)

    Reads: advantage_B [B] float, reward_B [B] float, scored_B [B] bool.
    Writes: advantage_B [B] float.
    Source: arXiv 2604.06916 (global_std); code NVlabs/Sana.
    Differs from the source: the std is assumed to be biased; the code was not read for that.
    Nearest part: divide_by_group_std; equal to its biased form with one group.
    Edges: all rewards equal -> divided by eps (0 without it); unscored rollouts -> 0 and outside
    the deviation.
    """

    # Added to the deviation. Default: released code (1e-4).
    eps: float = 1e-4

    def __post_init__(self) -> None:
        require(self, "eps", low=0.0)

    def __call__(self, advantage_B: Tensor, reward_B: Tensor, scored_B: Tensor) -> Result:
        one_B = torch.zeros_like(scored_B, dtype=torch.int64)
        std = segments.std(reward_B, one_B, 1, scored_B, ddof=0)
        divided_B = torch.where(scored_B, segments.divided(advantage_B, std[one_B] + self.eps), 0)
        return Result(divided_B, metrics={"advantage/batch_std": float(std)})
