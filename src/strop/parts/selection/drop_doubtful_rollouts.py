"""Do not train on answers whose grade is probably luck or an error."""

from dataclasses import dataclass

import torch
from torch import Tensor

from strop.batch import segments
from strop.method.part import Selected, require


@dataclass(frozen=True)
class DropDoubtfulRollouts:
    """Right answers that surprise the reference, and wrong ones that it is sure of, do not teach.

        perplexity_i = exp(-mean_{t in i} logp_ref_t)
        right: keeps its gradient if perplexity_i <= high; wrong: if perplexity_i >= low

    The first are likely lucky, the second likely mislabelled. They still count in averages, and
    in the baseline. Right: reward >= success.

    Reads: reward_B [B] float, logp_ref_T [T] float, mask_T [T] bool, rollout_T [T] int.
    Writes: gradient_T, denominator_T [T] bool.
    Source: arXiv 2604.12632 (the mask on the advantages).
    Differs from the source: no.
    Nearest part: none.
    Edges: a rollout without policy tokens has none to lose.
    """

    # Highest perplexity of a right answer. Default: paper.
    high: float = 2.5
    # Lowest perplexity of a wrong answer. Default: paper.
    low: float = 1.05
    # Reward from which an answer is right. Default: ours (rewards of 0 and 1).
    success: float = 1.0

    def __post_init__(self) -> None:
        require(self, "high", "low", low=0.0)
        require(self, "success")

    def __call__(
        self, reward_B: Tensor, logp_ref_T: Tensor, mask_T: Tensor, rollout_T: Tensor
    ) -> Selected:
        mean_B = segments.mean(logp_ref_T, rollout_T, reward_B.shape[0], mask_T)
        perplexity_B = torch.exp(-mean_B)
        right_B = reward_B >= self.success
        keep_B = torch.where(right_B, perplexity_B <= self.high, perplexity_B >= self.low)
        return Selected(keep_B[rollout_T] & mask_T, mask_T, "doubtful")
