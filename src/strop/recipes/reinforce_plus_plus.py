"""REINFORCE whose advantages are normalised over the whole step."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.advantage.baseline.subtract_group_mean import SubtractGroupMean
from strop.parts.advantage.credit.discount_from_end import DiscountFromEnd
from strop.parts.advantage.credit.spread_evenly import SpreadEvenly
from strop.parts.advantage.weight.whiten_over_batch_tokens import WhitenOverBatchTokens
from strop.recipes._base import ESTIMATOR
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo


@inherits(grpo, without=ESTIMATOR)
def reinforce_plus_plus(
    *,
    # Discount of a token; 1: the outcome reaches all tokens alike.
    gamma: float = 1.0,
    # Added to the variance of the whitening.
    whiten_eps: float = 1e-8,
    **parent: Any,
) -> Algorithm:
    """REINFORCE++: Stabilizing Critic-Free Policy Optimization with Global Normalization.

    arXiv 2501.03262. Code: OpenRLHF/OpenRLHF (verl carries it). Parent: grpo. Status: exact.

    Family: baselines.
    In short: REINFORCE whitened over the step.
    Choose it when: there is one answer a prompt and no critic, and prompts are alike enough that
    the step's mean can be the baseline.
    Equation: A_t = (G_t - mean) / sqrt(var + whiten_eps) over the step's policy tokens,
    G_t = gamma ** (policy tokens after t) R; loss = -mean_i mean_t min(rho A_t, clip(rho) A_t).
    Differs from the parent: no baseline and no deviation of the group; all tokens of the step are
    whitened together.
    Differs from the paper: 1. no KL penalty unless beta > 0, and then as a loss term (paper: inside
    the token's reward); 2. tokens of an environment neither decay nor stop the return (the paper
    has none; verl's until August 2026 stopped it there). OpenRLHF and verl average over all tokens
    of the step, not per answer: aggregation "token-mean".
    Try: num_rollouts (1 is enough), gamma, aggregation ("token-mean", the released code's).
    """
    credit = SpreadEvenly() if gamma == 1 else DiscountFromEnd(gamma)
    chain = (Use(credit), Use(WhitenOverBatchTokens(whiten_eps)))
    return dataclasses.replace(grpo(**parent), advantage=chain)


@inherits(reinforce_plus_plus, without=("gamma",))
def reinforce_plus_plus_baseline(
    *,
    # What a group of one gets before whitening: "raw" (its reward) or "zero".
    singleton: str = "raw",
    **parent: Any,
) -> Algorithm:
    """REINFORCE++: Stabilizing Critic-Free Policy Optimization with Global Normalization.

    arXiv 2501.03262 (the variant with a baseline). Code: OpenRLHF/OpenRLHF (verl carries it).
    Parent: reinforce_plus_plus. Status: exact.

    Family: baselines.
    In short: group mean, step's deviation.
    Choose it when: you have groups, but their own deviations are too noisy to divide by and one
    scale for the whole step should do.
    Equation: A_t = (R_i - mean_g - mean) / sqrt(var + whiten_eps) over the step's policy tokens;
    loss = -mean_i mean_t min(rho A_t, clip(rho) A_t).
    Differs from the parent: the mean of the prompt's group is subtracted first.
    Differs from the paper: there is no KL penalty unless beta > 0. The released code averages over
    all tokens of the step: aggregation "token-mean".
    Try: num_rollouts, clip_high, beta.
    """
    algorithm = reinforce_plus_plus(**parent)
    chain = (Use(SubtractGroupMean(singleton)), *algorithm.advantage)
    return dataclasses.replace(algorithm, advantage=chain)
