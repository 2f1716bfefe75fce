"""Regression of log-probability changes on the value of a random policy."""

from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.loss.bound.regress_on_random_policy_value import RegressOnRandomPolicyValue
from strop.recipes._base import CLIP, with_policy
from strop.recipes._door import door
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo


@door(also=("rover_reward",))
@inherits(
    grpo, without=("std", *CLIP, "beta"), normalize_std=False, aggregation="token-mean",
    num_rollouts=8, num_minibatches=4)  # fmt: skip
def rover(
    *,
    # Advantage units that correspond to a nat of log-ratio.
    tau: float = 1.0,
    # Weight of the value after the token.
    kappa: float = 1.0,
    **parent: Any,
) -> Algorithm:
    """Random Policy Valuation is Enough for LLM Reasoning with Verifiable Rewards.

    arXiv 2509.24981. Code: tinnerhrhe/ROVER. Parent: grpo. Status: exact.

    Family: ratios.
    In short: regression on random-policy value.
    Choose it when: several ways to a right answer should survive without a bonus or a clip; it
    needs the whole distribution and several updates a batch.
    Equation: Q_t = tau (logp_t - logp_old_t), M_t = mean over the vocabulary of logp(. | s_t);
    loss = mean_t (Q_t - sg(R_i - mean_g + kappa tau (M_{t+1} - M_old_{t+1})))^2.
    Differs from the parent: a regression in place of the clipped ratio, no deviation, all tokens
    weigh the same. The first update of a step is 2 tau times the plain policy gradient; four
    updates a step.
    Differs from the paper: the released code's clip of Q and loss per answer, both off there, are
    left out. Its mathematics runs divide by the deviation (normalize_std with eps 1e-6).
    Try: normalize_std, tau, num_minibatches (1: Q stays 0).
    """
    part = RegressOnRandomPolicyValue(tau, kappa)
    return with_policy(grpo(**parent), objective=Use(part))
