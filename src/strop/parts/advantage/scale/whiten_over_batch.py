"""Give the advantages of all rollouts of the step mean 0 and deviation 1."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop.batch import segments
from strop.method.part import Result, require


@dataclass(frozen=True)
class WhitenOverBatch:
    """A rollout learns from how its advantage compares with those of all rollouts of the step.

        advantage_i <- (advantage_i - mean) / (std + eps);   std <= floor: advantage_i - mean

    Mean and deviation (n - 1) are over the scored rollouts of the step.

    Reads: advantage_B [B] float, scored_B [B] bool.   Writes: advantage_B [B] float.
    Source: arXiv 2601.05242 (batch-wise normalisation); code huggingface/trl (grpo_trainer.py,
    normalize_then_sum).
    Differs from the source: no.
    Nearest part: whiten_over_batch_tokens, where long answers count more.
    Edges: one rollout or all equal -> exactly 0; unscored rollouts -> 0 and outside the moments.
    """

    facts: ClassVar[frozenset[str]] = frozenset({"whitens_advantage"})
    # Added to the deviation. Default: released code (TRL).
    eps: float = 1e-4
    # Largest deviation that is not divided by. Default: ours (0; 1e-6 in arXiv 2602.06554's code).
    floor: float = 0.0

    def __post_init__(self) -> None:
        require(self, "eps", "floor", low=0.0)

    def __call__(self, advantage_B: Tensor, scored_B: Tensor) -> Result:
        key_B = torch.zeros_like(scored_B, dtype=torch.int64)
        centred_B = segments.centred(advantage_B, key_B, 1, scored_B)
        std = segments.std(advantage_B, key_B, 1, scored_B)
        std_B = std[key_B]
        whole_B = torch.where(std_B > self.floor, centred_B / (std_B + self.eps), centred_B)
        metrics = {"advantage/batch_std": float(std)}
        return Result(torch.where(scored_B, whole_B, 0), metrics=metrics)
