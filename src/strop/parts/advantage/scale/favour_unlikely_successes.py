"""Praise right answers more if the policy found them less likely than others of their group."""

from dataclasses import dataclass

import torch
from torch import Tensor

from strop.batch import segments
from strop.method.part import Result, require


@dataclass(frozen=True)
class FavourUnlikelySuccesses:
    """New ways to a right answer are learnt faster than the usual one.

        s_i = mean over its tokens of logp_sampler;  eta_i = exp(s_i - mean_{j in group} s_j)
        where advantage_i > 0:
            advantage_i <- advantage_i + min(max(weight (1 - eta_i), 0), most * advantage_i)

    Metric: novelty/bonus_mean (mean bonus of the rollouts with a positive advantage).

    Reads: advantage_B [B] float, logp_sampler_T [T] float, mask_T [T] bool, rollout_T [T],
    group_B [B] int, scored_B [B] bool, num_groups, num_rollouts int.
    Writes: advantage_B [B] float.
    Source: arXiv 2510.06672 (novelty), from reviews and summaries.
    Differs from the source: no.
    Nearest part: favour_sure_rollouts, which goes the other way.
    Edges: likelier than the mean -> no bonus; group of one -> none; tokens whose log-probability
    is void (NaN), and rollouts with no other token -> in no mean, no bonus; unscored -> 0.
    """

    # Size of the bonus, units of the advantage. Default: paper (2.5).
    weight: float = 2.5
    # Largest bonus, a share of the advantage. Default: paper (0.5).
    most: float = 0.5

    def __post_init__(self) -> None:
        require(self, "weight", "most", low=0.0)

    def __call__(
        self, advantage_B: Tensor, logp_sampler_T: Tensor, mask_T: Tensor, rollout_T: Tensor,
        group_B: Tensor, scored_B: Tensor, num_groups: int, num_rollouts: int,
    ) -> Result:  # fmt: skip
        known_T = mask_T & ~logp_sampler_T.isnan()
        mean_B = segments.mean(logp_sampler_T, rollout_T, num_rollouts, known_T)
        known_B = scored_B & (segments.count(rollout_T, num_rollouts, known_T) > 0)
        group_P = segments.mean(mean_B, group_B, num_groups, known_B)
        eta_B = torch.where(known_B, (mean_B - group_P[group_B]).exp(), 1)
        good_B = scored_B & (advantage_B > 0)
        bonus_B = (self.weight * (1 - eta_B)).clamp(min=0).to(advantage_B.dtype)
        bonus_B = torch.where(good_B, torch.minimum(bonus_B, self.most * advantage_B), 0)
        bonus = segments.overall(bonus_B, good_B)
        raised_B = torch.where(scored_B, advantage_B + bonus_B, 0)
        return Result(raised_B, metrics={"novelty/bonus_mean": bonus})
