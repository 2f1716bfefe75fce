"""Group relative policy optimisation with each reward normalised on its own."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.advantage.baseline.normalise_each_reward import NormaliseEachReward
from strop.parts.advantage.credit.spread_evenly import SpreadEvenly
from strop.parts.advantage.scale.whiten_over_batch import WhitenOverBatch
from strop.parts.advantage.weight.whiten_over_batch_tokens import WhitenOverBatchTokens
from strop.parts.reward.note_reward_weights import NoteRewardWeights
from strop.recipes._base import ESTIMATOR, check_choice
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo


@inherits(grpo, without=ESTIMATOR, num_minibatches=4)
def gdpo(
    *,
    # Weight of every reward function, in their order; empty: those of the run.
    weights: tuple[float, ...] = (),
    eps: float = 1e-4,
    # What a group of one gets: "raw" (its rewards) or "zero".
    singleton: str = "raw",
    # What is normalised at the end: "rollouts" (TRL), "tokens" (verl) or "none".
    batch_norm: str = "rollouts",
    # Added to the deviation over rollouts, or to the variance over tokens.
    whiten_eps: float = 1e-4,
    **parent: Any,
) -> Algorithm:
    """Group reward-Decoupled Normalization Policy Optimization for Multi-reward RL.

    arXiv 2601.05242. Code: huggingface/trl (normalize_then_sum), verl-project/verl. Parent: grpo.
    Status: exact.

    Family: baselines.
    In short: each reward normalised separately.
    Choose it when: several reward functions are added, and one with a wide range dominates the
    others or different mixtures give the same sum.
    Equation: S_i = sum_m w_m (R_im - mean_g R_m) / (std_g R_m + eps) over the reward functions m;
    A_i = (S_i - mean) / (std + whiten_eps) over the rollouts of the step.
    Differs from the parent: every reward function is normalised in the group before the weighted
    sum, so that different rewards with an equal sum stay distinct; then once more over the step;
    four updates a step.
    Differs once: there are two rewards; with one it is grpo times a factor (rewards/frac_spread >
    0).
    Differs from the paper: no. Sums are TRL's; verl whitens tokens (batch_norm "tokens", with
    whiten_eps 1e-8 in the variance, and eps 1e-6).
    Try: several reward functions, weights, batch_norm.
    """
    algorithm = grpo(**parent)
    each = Use(NormaliseEachReward(tuple(weights), eps, singleton))
    chains = {
        "rollouts": (each, Use(WhitenOverBatch(whiten_eps)), Use(SpreadEvenly())),
        "tokens": (each, Use(SpreadEvenly()), Use(WhitenOverBatchTokens(whiten_eps))),
        "none": (each, Use(SpreadEvenly())),
    }
    check_choice("gdpo", chains, batch_norm=batch_norm)
    reward = (*algorithm.reward, Use(NoteRewardWeights()))
    return dataclasses.replace(algorithm, reward=reward, advantage=chains[batch_norm])
