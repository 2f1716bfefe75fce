"""A token's entropy sets its temperature, its advantage and its clip range."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.advantage.baseline.normalise_over_group_tokens import NormaliseOverGroupTokens
from strop.parts.advantage.credit.spread_evenly import SpreadEvenly
from strop.parts.loss.bound.widen_clip_by_entropy import WidenClipByEntropy
from strop.parts.rollout.sample_at_entropy_temperature import SampleAtEntropyTemperature
from strop.recipes._base import with_policy
from strop.recipes._door import door
from strop.recipes._inherit import inherits
from strop.recipes.dapo import dapo


@door(also=("hapo_loss",))
@inherits(dapo, num_rollouts=16)
def hapo(
    *,
    # Added to deviations; in reward units.
    eps: float = 1e-6,
    # Deviation over the group's tokens: "biased" or "unbiased".
    std: str = "biased",
    # Size of an advantage from which its group is normalised over rollouts instead.
    fallback_threshold: float = 5.0,
    # "paper" (signed), or "code": what its repository runs, sign slip included.
    variant: str = "paper",
    # Quantile of the entropy that separates certain from uncertain tokens.
    quantile: float = 0.8,
    clip_low: float = 0.2,
    clip_high: float = 0.28,
    dual_clip_c: float = 10.0,
    # How strongly the signal widens the clip.
    clip_alpha: float = 1.0,
    # How strongly the signal changes advantages.
    adv_beta: float = 1.0,
    # How strongly the signal moves the temperature; 0: one temperature.
    tau: float = 0.1,
    **parent: Any,
) -> Algorithm:
    """From Uniform to Heterogeneous: Tailoring Policy Optimization to Every Token's Nature (HAPO).

    arXiv 2509.16591, eq. 5 to 13. Code: starriver030515/HAPO. Parent: dapo. Status: partial.

    Family: entropy.
    In short: entropy sets temperature and clip.
    Choose it when: with dapo, tokens of low and of high entropy should be treated differently
    throughout: in sampling, in advantages and in the clip.
    Equation: h in [-1, 1] from log-entropies around their quantile; temperature 1 + tau h0;
    A = (R - mean) / std over the group's tokens, times 1 + h where h > 0 and rho moved or h <= 0
    and it did not; clip below clip_low (1 - h) where h <= 0, above clip_high (1 + h) where h > 0.
    Differs from the parent: h acts on temperature, advantages and clip; means over tokens; a dual
    clip.
    Differs from the paper: 1. the loss computes its signals over the update, the released code over
    a micro-batch; 2. the sign of h for certain tokens is inferred; in the released code it is
    positive (variant "code"); 3. the ratio is to the policy at `temperature`, not at the adapted
    one. A step has one update, not 16 (`num_minibatches=16`), which took more time.
    Try: tau (0.05, released code), adv_beta (0), quantile.
    """
    algorithm = dapo(**parent)
    baseline = NormaliseOverGroupTokens(eps, std, fallback_threshold, variant)
    clip = WidenClipByEntropy(
        clip_low, clip_high, dual_clip_c, quantile, clip_alpha, adv_beta, variant
    )
    if tau:
        rollout = SampleAtEntropyTemperature(tau=tau, quantile=quantile, source_form=variant)
        algorithm = dataclasses.replace(algorithm, rollout=Use(rollout))
    algorithm = dataclasses.replace(algorithm, advantage=(Use(baseline), Use(SpreadEvenly())))
    return with_policy(algorithm, objective=Use(clip))
