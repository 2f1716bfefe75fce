"""Blame an error the more, the more the policy has come to believe in it."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop.batch import segments
from strop.method.part import Result, require


@dataclass(frozen=True)
class BlameOverconfidentErrors:
    """Errors that training made likelier are pushed down harder; exploring ones hardly more.

        advantage_i < 0: advantage_i <- advantage_i * (1 + alpha * softplus(gain_i))
        gain_i = sum_{t in i} (logp_old_t - logp_ref_t), or its mean with per_token

    Advantages of 0 or more stay. The metric `advantage/overconfident_errors` is the share of
    negative advantages whose gain is above 0.

    Reads: advantage_B [B] float, logp_old_T, logp_ref_T [T] float, rollout_T [T] int, mask_T [T]
    bool.   Writes: advantage_B [B] float.
    Source: arXiv 2602.21420 (the confidence penalty).
    Differs from the source: the sum over tokens and the old policy's confidence are inferred.
    Nearest part: subtract_kl_to_reference, which charges every rollout for leaving the reference.
    Edges: no policy token -> gain 0; nothing after it may centre the advantages again.
    """

    facts: ClassVar[frozenset[str]] = frozenset({"advantage_mean_is_not_zero"})
    # Strength. Default: ours (the source's is not known).
    alpha: float = 1.0
    # Whether the gain is a mean over tokens instead of their sum. Default: paper (sum).
    per_token: bool = False
    # Largest gain, nats; 0: none. Default: paper (none).
    cap: float = 0.0

    def __post_init__(self) -> None:
        require(self, "alpha", "cap", low=0.0)

    def __call__(
        self,
        advantage_B: Tensor,
        logp_old_T: Tensor,
        logp_ref_T: Tensor,
        rollout_T: Tensor,
        mask_T: Tensor,
    ) -> Result:
        reduce = segments.mean if self.per_token else segments.total
        gain_B = reduce(logp_old_T - logp_ref_T, rollout_T, advantage_B.shape[0], mask_T)
        if self.cap:
            gain_B = gain_B.clamp(max=self.cap)
        harder_B = 1 + self.alpha * torch.nn.functional.softplus(gain_B).to(advantage_B.dtype)
        error_B = advantage_B < 0
        share = (error_B & (gain_B > 0)).sum() / error_B.sum().clamp(min=1)
        metrics = {"advantage/overconfident_errors": float(share)}
        return Result(torch.where(error_B, advantage_B * harder_B, advantage_B), metrics=metrics)
