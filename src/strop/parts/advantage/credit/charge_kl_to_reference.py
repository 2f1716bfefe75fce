"""Charge every token for how far the policy is from the reference there."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop.batch import segments
from strop.method.part import Result, require


@dataclass(frozen=True)
class ChargeKlToReference:
    """A token pays where it leaves the reference, so a critic learns which tokens cost.

        reward_t = -coef * d_t + [t is the last policy token of its rollout i] advantage_i
        d_t = KL(old || reference)_t over the vocabulary; with `full` false logp_old_t -
        logp_ref_t, whose expected value is that KL

    advantage_i is the rollout's reward: the part stands before any baseline.
    Metrics: price/kl (sum over a rollout's policy tokens, mean over rollouts, nats), price/coef.

    Reads: advantage_B [B] float, mask_T [T] bool, rollout_T [T] int; kl_ref_old_T [T] float, or
    logp_old_T, logp_ref_T [T] float where not `full`.   Writes: reward_T [T] float.
    Source: arXiv 1909.08593, eq. 2; full as in huggingface/trl (ppo_trainer.py before 0.12,
    kl_penalty="full"), which Harry67Hu/CORY builds on.
    Differs from the source: no.
    Nearest part: subtract_kl_to_reference, which takes the sum off the rollout's reward.
    Edges: masked tokens -> 0; a rollout without policy tokens loses its reward. With `full` d_t
    does not depend on token t and teaches only the tokens before t: to end early, where one can.
    """

    writes: ClassVar[tuple[str, ...]] = ("reward_T",)
    # Reward units per nat. Default: released code (TRL).
    coef: float = 0.2
    # Whether the whole vocabulary counts, not the sampled token alone. Default: released code
    # (CORY on IMDB).
    full: bool = True

    def __post_init__(self) -> None:
        require(self, "coef", low=0.0)

    @property
    def unread(self) -> frozenset[str]:
        """The columns that only the other form reads."""
        return frozenset({"logp_old_T", "logp_ref_T"} if self.full else {"kl_ref_old_T"})

    def __call__(
        self,
        advantage_B: Tensor,
        mask_T: Tensor,
        rollout_T: Tensor,
        kl_ref_old_T: Tensor | None = None,
        logp_old_T: Tensor | None = None,
        logp_ref_T: Tensor | None = None,
    ) -> Result:
        kl_T = kl_ref_old_T
        if not self.full and logp_old_T is not None and logp_ref_T is not None:
            kl_T = logp_old_T - logp_ref_T
        assert kl_T is not None, "the columns of its form are there"
        num = advantage_B.shape[0]
        last_T = segments.is_last(rollout_T, num, mask_T)
        reward_T = torch.where(last_T, advantage_B[rollout_T], 0) - self.coef * kl_T
        metrics = {"price/coef": self.coef}
        if num:
            metrics["price/kl"] = float(torch.where(mask_T, kl_T.double(), 0).sum()) / num
        return Result(torch.where(mask_T, reward_T, 0).to(advantage_B.dtype), metrics=metrics)
