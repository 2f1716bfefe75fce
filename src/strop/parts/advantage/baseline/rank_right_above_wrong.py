"""Push right and wrong answers of a prompt apart where the policy prefers the wrong one."""

from dataclasses import dataclass

import torch
from torch import Tensor

from strop.batch import segments
from strop.method.part import Result, require, require_one_of


@dataclass(frozen=True)
class RankRightAboveWrong:
    """A right answer gains by every wrong one of its prompt that is about as likely or likelier.

        push_ij = 1 / tau * sigmoid(-(confidence_i - confidence_j) / tau), i right, j wrong
        advantage_i = sum_j push_ij        advantage_j = -sum_i push_ij

    confidence is the mean of logp_old over the policy tokens of a rollout. The advantages descend
    the sum over pairs of log(1 + exp(-(confidence_i - confidence_j) / tau)), a smooth count of
    pairs in the wrong order: they are minus its gradient. Right: reward >= success.

    Reads: reward_B [B] float, group_B [B] int, num_groups int, scored_B [B] bool, logp_old_T [T]
    float, rollout_T [T] int, mask_T [T] bool.   Writes: advantage_B [B] float.
    Source: arXiv 2604.12632 (the loss over pairs and its weights).
    Differs from the source: the sum over pairs, the factor 1 / tau, the old policy's confidence and
    the wrong answers' side are inferred.
    Nearest part: subtract_group_mean; G / (2 tau) times it for large tau and rewards of 0 and 1.
    Edges: no right or no wrong answer in a group -> 0; the sum over a group is 0; unscored
    rollouts -> 0 and in no pair; an answer without policy tokens has confidence 0 nats.
    """

    # Gap of confidences that counts as about equal, nats. Default: paper (1.5B model; 0.5 at 7B).
    tau: float = 0.6
    # "sum" over the pairs, or "mean" over those of the group. Default: ours (not in the source).
    pair_reduction: str = "sum"
    # Whether the factor 1 / tau stands in front. Default: ours (not in the source; the gradient's).
    include_inv_tau: bool = True
    # Reward from which an answer is right. Default: ours (rewards of 0 and 1).
    success: float = 1.0

    def __post_init__(self) -> None:
        require(self, "tau", low=1e-6)
        require(self, "success")
        require_one_of(self, "pair_reduction", ("sum", "mean"))

    def __call__(
        self,
        reward_B: Tensor,
        group_B: Tensor,
        scored_B: Tensor,
        logp_old_T: Tensor,
        rollout_T: Tensor,
        mask_T: Tensor,
        num_groups: int,
    ) -> Result:
        num = reward_B.shape[0]
        right_N = (scored_B & (reward_B >= self.success)).nonzero().squeeze(1)
        wrong_N = (scored_B & (reward_B < self.success)).nonzero().squeeze(1)
        wrong_N = wrong_N[torch.argsort(group_B[wrong_N], stable=True)]
        partners_P = segments.count(group_B[wrong_N], num_groups)
        # One entry for every pair (i, j) of a right and a wrong answer of one group.
        i = torch.repeat_interleave(right_N, partners_P[group_B[right_N]])
        j = wrong_N[segments.rows_of(group_B[wrong_N], group_B[right_N], num_groups)]
        confidence_B = segments.mean(logp_old_T, rollout_T, num, mask_T)
        ahead = confidence_B[j] - confidence_B[i]
        push = torch.sigmoid(ahead / self.tau)
        if self.include_inv_tau:
            push = push / self.tau
        if self.pair_reduction == "mean":
            push = push / segments.count(group_B[i], num_groups)[group_B[i]]
        pushed_B = segments.total(push, i, num) - segments.total(push, j, num)
        metrics = {"ranking/frac_wrong_order": segments.overall(ahead >= 0)}
        return Result(pushed_B.to(reward_B.dtype), metrics=metrics)
