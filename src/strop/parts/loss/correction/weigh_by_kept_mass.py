"""Weigh tokens by the share of the policy's probability that the draw's cuts left."""

from dataclasses import dataclass

import torch
from torch import Tensor

from strop.method.part import Result


@dataclass(frozen=True)
class WeighByKeptMass:
    """Tokens that top-p, top-k or min-p drew count as often as the whole policy would draw them.

        w_t = exp(logp_sampler_t - logp_behavior_t) = sum_{j in S_t} p_t(j)
        S_t: tokens left to draw from;  p_t: the engine's whole distribution at the temperature

    It is the importance ratio of the whole policy to the cut one, token by token: their quotient
    inside S_t; tokens outside are never drawn. Metric: correction/mean.

    Reads: logp_sampler_T, logp_behavior_T [T] float, mask_T [T] bool.
    Writes: correction_T [T] float.
    Source: code only: verl-project/verl:verl/trainer/ppo/rollout_corr_helper.py (rollout_is).
    Differs from the source: both log-probabilities are the engine's, so the weight corrects the cut
    alone, is at most 1 and needs no bound; age and rounding are left to the ratio.
    Nearest part: weigh_by_engine_ratio; equal to it (unit "token") where the trainer is the engine.
    Edges: nothing cut -> 1; a void log-probability (NaN) -> 1; masked tokens -> 1; no gradient.
    """

    def __call__(self, logp_sampler_T: Tensor, logp_behavior_T: Tensor, mask_T: Tensor) -> Result:
        gap_T = (logp_sampler_T - logp_behavior_T).detach()
        weight_T = torch.where(mask_T & ~gap_T.isnan(), gap_T, 0).exp()
        return Result(weight_T, metrics={"correction/mean": weight_T})
