"""Give the advantages of all tokens of the step mean 0 and variance 1."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop.batch import segments
from strop.method.part import Result, require


@dataclass(frozen=True)
class WhitenOverBatchTokens:
    """A token learns from how its advantage compares with that of the step's average token.

        advantage_t <- (advantage_t - mean) / sqrt(variance + eps)

    Mean and variance (n - 1) are over the policy tokens of all scored rollouts of the step, so
    long answers move them more than short ones. Where a run trains several adapters, each has the
    mean and variance of its own tokens.

    Reads: advantage_T [T] float, mask_T [T] bool, rollout_T [T] int, scored_B [B] bool; adapter_T
    [T] int where there are several adapters.
    Writes: advantage_T [T] float.
    Source: arXiv 2501.03262 (global batch normalisation of advantages).
    Differs from the source: no; eps stands under the root, as in verl.
    Nearest part: divide_by_group_std, whose unit is the rollout and whose scope is the group.
    Edges: one token or all equal -> exactly 0; unscored rollouts -> 0 and outside the moments.
    """

    facts: ClassVar[frozenset[str]] = frozenset({"whitens_advantage"})
    # Added to the variance; in squared reward units. Default: released code (verl).
    eps: float = 1e-8

    def __post_init__(self) -> None:
        require(self, "eps", low=0.0)

    def __call__(
        self,
        advantage_T: Tensor,
        mask_T: Tensor,
        rollout_T: Tensor,
        scored_B: Tensor,
        adapter_T: Tensor | None = None,
    ) -> Result:
        counting_T = mask_T & segments.at(scored_B, rollout_T)
        key_T, num = torch.zeros_like(rollout_T), 1
        if adapter_T is not None:
            key_T, num = adapter_T.clamp(min=0), max(segments.count_of(adapter_T), 1)
        centred_T, std_N = segments.centred_and_std(advantage_T, key_T, num, counting_T)
        whitened_T = centred_T * (std_N.square() + self.eps).rsqrt()[key_T]
        whitened_T = torch.where(counting_T & (centred_T != 0), whitened_T, 0)
        return Result(whitened_T, metrics={"advantage/batch_std": float(std_N.sum()) / num})
