"""Hold a prompt's answers together: they may move as one, but not far apart."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop.batch import segments
from strop.method.part import Result


@dataclass(frozen=True)
class PenaliseRatioVariance:
    """Answers to a prompt pay for how differently their probabilities moved from a reference.

        d_i = sum over the answer's tokens of (logp - logp_ref)
        objective of a prompt = -1/2 sum_i (d_i - mean d)^2 / (k - 1) over its k answers

    What all answers of a prompt have in common is free, so no normaliser is needed. The answers'
    tokens share the objective equally, so any average of sequence sums fits.

    Reads: logp_T, logp_ref_T [T] float, group_B [B] int, num_groups int, rollout_T [T] int,
    num_rollouts int, gradient_T [T] bool.   Writes: objective_T [T] float (nats squared).
    Source: arXiv 2504.19599, sec. 3 (its variance and covariance); k - 1: corollary 3.5.
    Differs from the source: no.
    Nearest part: penalise_kl_to_reference, whose k2 holds every token, without a mean.
    Edges: policy = reference, or a group of one -> 0, no gradient; answers without a token that
    learns are no members; the reference gets no gradient.
    """

    scope: ClassVar[str] = "update"

    def __call__(
        self,
        logp_T: Tensor,
        logp_ref_T: Tensor,
        group_B: Tensor,
        rollout_T: Tensor,
        gradient_T: Tensor,
        num_groups: int,
        num_rollouts: int,
    ) -> Result:
        moved_B = segments.total(logp_T - logp_ref_T.detach(), rollout_T, num_rollouts, gradient_T)
        tokens_B = segments.count(rollout_T, num_rollouts, gradient_T)
        members = (group_B, num_groups, tokens_B > 0)
        apart_B = moved_B - segments.mean(moved_B, *members)[group_B]
        free_P = (segments.count(*members) - 1).clamp(min=1)
        variance_P = segments.total(apart_B.square(), *members) / free_P
        objective_B = -variance_P[group_B] / (2 * tokens_B.clamp(min=1))
        variance_T = variance_P.detach()[group_B][rollout_T]
        objective_T = torch.where(gradient_T, objective_B[rollout_T], 0)
        return Result(objective_T, metrics={"answers/variance_mean": variance_T})
