"""Fine-tuning on given answers as a policy gradient over single tokens."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.loss.bound.reward_own_guesses import RewardOwnGuesses
from strop.parts.probe.seed_guesses import SeedGuesses
from strop.recipes._base import with_policy
from strop.recipes._inherit import inherits
from strop.recipes.sft import sft


@inherits(sft, aggregation="seq-mean-token-mean")
def one_token_rollout(
    *,
    # Tokens sampled at each position; 0: their expectation.
    K: int = 256,
    # Reward of a wrong token.
    beta: float = -0.1,
    # Temperature at which these tokens are sampled.
    kappa: float = 1.1,
    **parent: Any,
) -> Algorithm:
    """One-Token Rollout: Guiding Supervised Fine-Tuning of LLMs with Policy Gradient.

    arXiv 2509.26313. Code: none released. Parent: sft. Status: partial.

    Family: demonstrations.
    In short: imitation as one-token RL.
    Choose it when: you have only demonstrations, plain fine-tuning overfits or forgets, and tokens
    that the policy finds unlikely should pull less.
    Equation: loss = -mean over answers of mean_t 1/K sum_k R(a_k) logp(a_k | answer before t), a_k
    sampled from softmax(logits / kappa), R = 1 where a_k is the answer's token, else beta.
    Differs from the parent: a token is learned in proportion to the policy's own probability of it,
    and the tokens sampled in its place are unlearned a little.
    Differs from the paper: beta and kappa are inferred: the paper says slightly below 0 and
    slightly above 1. K = 0, the expectation, is ours: at kappa 1 its gradient is (1 - beta) p grad
    logp, supervised fine-tuning weighted by p (known as DFT).
    Try: K (0: no noise, one pass over the vocabulary), beta, kappa.
    """
    algorithm = with_policy(sft(**parent), objective=Use(RewardOwnGuesses(K, beta, kappa)))
    return dataclasses.replace(algorithm, probes=(Use(SeedGuesses()),) if K else ())
