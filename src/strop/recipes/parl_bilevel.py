"""A reward trained along with the policy, on preferences among the policy's own answers."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.probe.pool_states import PoolStates
from strop.parts.reward.learn_reward_weights import LearnRewardWeights
from strop.recipes._inherit import inherits
from strop.recipes.rloo import rloo


@inherits(rloo)
def parl_bilevel(
    *,
    # Reward function, or column that one logs, that gives the preferences.
    preference: str = "preference",
    # Learning rate of the reward's weights.
    upper_lr: float = 0.1,
    # Steps of the policy for each step of the weights.
    every: int = 1,
    # Share of the weights that is removed at each of their steps.
    decay: float = 0.0,
    # Whether the weights' gradient includes their effect on the policy.
    implicit: bool = True,
    # Whether the reward has a head on the policy's hidden states, beside the given rewards.
    head: bool = False,
    # Weight of the KL penalty towards the reference, reward per nat.
    beta: float = 0.05,
    **parent: Any,
) -> Algorithm:
    """PARL: A Unified Framework for Policy Alignment in Reinforcement Learning.

    arXiv 2308.02585. Code: none released. Parent: rloo. Status: partial.

    Family: rewards.
    In short: reward weights learnt on the fly.
    Choose it when: several rewards are at hand, a judge can say which of two answers is better, and
    the right weights of the rewards are unknown.
    Equation: policy: max E r_nu - beta KL; weights: nu <- nu - upper_lr * grad of
    E[-y log s(r_i - r_j) - (1 - y) log s(r_j - r_i)] + decay |nu|^2 / 2 over pairs of the policy
    that is best for nu: by r, and by what nu does to that policy, (phi - E phi) / beta.
    Differs from the parent: the reward is sum_m nu_m phi_m with trained nu; a KL penalty towards
    the reference.
    Differs once: after its first step it has trained weights (parl/loss > 0).
    Differs from the paper: 1. the reward is linear in given rewards and in the mean of an answer's
    last states (head), not a network of its own; 2. the current policy stands for the best one, and
    its answer to nu is that of the best distribution: the inverse-Hessian term itself where every
    logit is free, or the logits can move along the rewards. A real model's share their directions,
    and there it is another vector: of four logits with two directions its cosine with that term was
    .99, .70 and -.66 (of the whole gradient 1.00, .98 and .92); 3. the paper's equations were not
    read, so all of this is inferred from its objective; upper_lr, every and beta are ours.
    Preferences come from a reward function (a judge, say) over the policy's own answers.
    Try: head, upper_lr, every (4), implicit (false: rewards refitted, iterative RLHF).
    """
    algorithm = rloo(beta=beta, **parent)
    learn = LearnRewardWeights(preference, upper_lr, every, decay, beta if implicit else 0.0)
    pooled = (Use(PoolStates()),) if head else ()
    return dataclasses.replace(algorithm, reward=(*algorithm.reward, *pooled, Use(learn)))
