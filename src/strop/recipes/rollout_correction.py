"""Importance weights between the policy that sampled the answers and the trained policy."""

from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.loss.bound.clip_both_sides import ClipBothSides
from strop.parts.loss.bound.weight_by_clipped_ratio import WeightByClippedRatio
from strop.parts.loss.correction.weigh_by_engine_ratio import UNITS, WeighByEngineRatio
from strop.parts.loss.ratio.ratio_per_sequence import RatioPerSequence
from strop.parts.loss.ratio.ratio_per_token import RatioPerToken
from strop.parts.selection.drop_mismatched_rollouts import MEASURES, DropMismatchedRollouts
from strop.recipes._base import CLIP, check_choice, with_policy
from strop.recipes._door import door
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo

SAMPLER = (("logp_old_T", "logp_behavior_T"),)  # a ratio to the policy that sampled the token
REJECTING = (("logp_sampler_T", "logp_behavior_T"),)
MOST_NATS = 20.0


@door(
    parameters={
        "rollout_is": "unit", "rollout_is_threshold": "high",
        "rollout_is_batch_normalize": "normalise", "vllm_importance_sampling_clip_max": "high",
        "vllm_importance_sampling_clip_min": "low",
    }
)  # fmt: skip
@inherits(grpo, aggregation="token-mean")
def rollout_correction(
    *,
    # Unit that has one weight: token, turn, turn-mean, sequence, sequence-mean (geometric means).
    unit: str = "token",
    # Smallest weight, a ratio.
    low: float = 0.0,
    # Largest weight, a ratio.
    high: float = 2.0,
    # "truncate" (TIS: to the band) or "mask" (MIS, IcePop: 0 outside the band).
    outside: str = "truncate",
    # Whether weights are divided by their mean over the update.
    normalise: bool = False,
    # Measure by which tokens are rejected, such as token_k1, seq_mean_k1, seq_max_k3, turn_mean_k3.
    reject: str = "none",
    # Smallest ratio that is not rejected (k1).
    reject_low: float = 0.5,
    # Largest ratio (k1) or divergence in nats (k2, k3) that is not rejected.
    reject_high: float = 2.0,
    # Whether rejected tokens still count in averages.
    still_counts: bool = True,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    # Largest ratio where the advantage is negative (verl: 3); 0: none.
    dual_clip_c: float = 0.0,
    **parent: Any,
) -> Algorithm:
    """Truncated and masked importance sampling between engine and trainer (TIS, MIS, IcePop).

    arXiv 2510.18855 (IcePop; TIS and MIS have no paper). Code: verl-project/verl,
    rollout_corr_helper (TRL, AReaL carry forms of it). Parent: grpo. Status: exact.

    Family: staleness.
    In short: corrects engine/trainer mismatch.
    Choose it when: the engine's log-probabilities differ from the trainer's, or answers are a few
    steps old, and the loss should stay as it is.
    Equation: loss = -1/N sum_t w_t min(rho A, clip(rho) A), rho = pi / pi_old and
    w = clip(exp(X), low, high) (truncate), exp(X) 1{low <= exp(X) <= high} (mask), detached;
    X = logp_old - logp_behavior of the token, or its sum or mean over the turn or answer.
    Differs from the parent: importance weights to a third policy, the one that sampled the answers.
    Differs once: `engine.staleness=2` (correction/ess < 1).
    Differs from the paper: rejected tokens stay in averages unless still_counts is false, so that
    rejecting never gives the others more weight (verl takes them out, except in its bypass mode);
    bounds of k1 are on trainer / engine (verl: its inverse). Engine and trainer are two programs
    there, here one unless `engine.kind=vllm`: in one program w is 1 without `engine.staleness`.
    Try: unit ("sequence"), outside ("mask") with low 0.5 and high 5, engine.staleness (16).
    """
    weigh = WeighByEngineRatio(unit, low, high, outside, normalise)
    clip = ClipBothSides(clip_low, clip_high, dual_clip_c)
    algorithm = with_policy(grpo(**parent), objective=Use(clip), correction=Use(weigh))
    check_choice("rollout_correction", ("none", *MEASURES), reject=reject)
    if reject == "none":
        return algorithm
    drop = DropMismatchedRollouts(reject_low, reject_high, 0.0, reject, still_counts)
    return with_policy(algorithm, on=Use(drop, REJECTING))


@inherits(grpo, aggregation="token-mean")
def rollout_correction_bypass(
    *,
    # Unit that has one ratio: token, turn, turn-mean, sequence, sequence-mean (geometric means).
    unit: str = "token",
    **parent: Any,
) -> Algorithm:
    """Clipped policy optimisation against the policy that sampled the answers (bypass mode).

    arXiv 1707.06347, eq. 7. Code: verl-project/verl, rollout_corr_helper (bypass_mode, ppo_clip).
    Parent: grpo. Status: exact.

    Family: staleness.
    In short: clips against the sampling policy.
    Choose it when: the forward pass of the old policy should be saved, and clipping around the
    engine's recorded log-probabilities is good enough.
    Equation: loss = -1/N sum_t min(rho A, clip(rho, 1 - clip_low, 1 + clip_high) A),
    rho = pi / pi_behavior, by token or over the turn or answer.
    Differs from the parent: the ratio and the clip are relative to the engine's log-probabilities,
    so old answers are clipped from the first update on; no further weight (it would count twice).
    Differs once: `engine.staleness=2` (ratio/log_abs_mean > 1e-4).
    Differs from the paper: no. A correction beside it is refused. verl's engine is a program of its
    own, here that is `engine.kind=vllm`; without it the policies differ only by `engine.staleness`.
    Try: unit ("sequence-mean"), clip_high (0.28), engine.staleness (4).
    """
    return with_policy(grpo(**parent), ratio=Use(_ratio(unit), SAMPLER))


@inherits(grpo, without=CLIP, aggregation="token-mean")
def rollout_correction_reinforce(
    *,
    # Unit that has one weight: token, turn, turn-mean, sequence, sequence-mean (geometric means).
    unit: str = "token",
    # Smallest weight, a ratio.
    low: float = 0.0,
    # Largest weight, a ratio.
    high: float = 2.0,
    **parent: Any,
) -> Algorithm:
    """The policy gradient with truncated weights to the policy that sampled the answers.

    arXiv 2510.18855 (the weights). Code: verl-project/verl, rollout_corr_helper (bypass_mode,
    reinforce). Parent: grpo. Status: exact.

    Family: staleness.
    In short: truncated weights, no clip.
    Choose it when: answers of another policy are used once, without a clip, and truncated
    importance weights are protection enough.
    Equation: loss = -1/N sum_t sg[clip(w, low, high)] A logp, w = pi / pi_behavior of the token,
    turn or answer.
    Differs from the parent: no clip: every token keeps a gradient, and its weight is truncated.
    Differs once: `engine.staleness=2` (ratio/log_abs_mean > 1e-4).
    Differs from the paper: w is taken with the current policy of the whole update, not of a
    micro-batch. In verl's example engine and trainer are two programs and a step has four updates;
    here w is 1 without `engine.kind=vllm`, `engine.staleness` or `num_minibatches=4`.
    Try: unit ("sequence"), high, engine.staleness (16).
    """
    bound = WeightByClippedRatio(1 - low, high - 1)
    return with_policy(grpo(**parent), objective=Use(bound), ratio=Use(_ratio(unit), SAMPLER))


def _ratio(unit: str) -> Any:
    """The ratio part of a unit. Raises UserError for an unknown one."""
    check_choice("rollout_correction", UNITS, unit=unit)
    if unit == "token":
        return RatioPerToken(MOST_NATS)
    shared = "turn" if unit.startswith("turn") else "rollout"
    return RatioPerSequence(MOST_NATS, product="-" not in unit, unit=shared)
