"""Proximal policy optimisation with a critic."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Term, Use
from strop.parts.advantage.credit.estimate_generalised_advantage import EstimateGeneralisedAdvantage
from strop.parts.advantage.weight.whiten_over_batch_tokens import WhitenOverBatchTokens
from strop.parts.loss.value.regress_value import RegressValue
from strop.recipes._base import ESTIMATOR, average
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo


@inherits(grpo, without=ESTIMATOR)
def gae(
    *,
    # Discount of a token.
    gamma: float = 1.0,
    # Lambda of GAE: 0 uses one-step errors, 1 whole returns.
    lam: float = 1.0,
    # Added to the variance of the whitening.
    whiten_eps: float = 1e-8,
    # Largest useful change of a value within a step, in reward units; 0: any.
    clip_value: float = 0.5,
    aggregation: str = "token-mean",
    **parent: Any,
) -> Algorithm:
    """High-Dimensional Continuous Control Using Generalized Advantage Estimation, in PPO.

    arXiv 1506.02438, eq. 16; the loss arXiv 1707.06347, eq. 7 and 9. Code: verl-project/verl (TRL,
    OpenRLHF carry it). Parent: grpo. Status: exact.

    Family: critics.
    In short: PPO with a critic and GAE.
    Choose it when: rewards come inside an answer or episode, or there is one answer a prompt, and a
    critic can be trained with the policy.
    Equation: A_t = sum_k (gamma lam)^k delta_{t+k}, delta_t = r_t + gamma V_{t+1} - V_t, whitened
    over the step's policy tokens; G_t = A_t + V_t before whitening; loss = -mean_t min(rho A_t,
    clip(rho) A_t), and for the critic mean_t 0.5 max((V - G)^2, (clip(V) - G)^2).
    Differs from the parent: a learned value of every token instead of the group's mean; all tokens
    are whitened together and weigh the same.
    Differs from the paper: 1. the critic reads the policy's last hidden states, without gradient
    into them (papers: a network of its own, or shared weights); 2. AdamW instead of the trust
    region for values; 3. gamma 1 and lam 1 are verl's; clip of the value as in verl; 4. a step has
    one update, where PPO makes several (`ppo_clip`: 4).
    Try: lam (0.95), critic.lr, plan.num_minibatches (4), num_rollouts (1 is enough).
    """
    estimate = EstimateGeneralisedAdvantage(gamma, lam)
    value = Term("value", Use(RegressValue(clip_value)), average(aggregation), learner="critic")
    algorithm = grpo(aggregation=aggregation, **parent)
    return dataclasses.replace(
        algorithm,
        advantage=(Use(estimate), Use(WhitenOverBatchTokens(whiten_eps))),
        terms=(*algorithm.terms, value),
    )
