"""No clip, but a KL penalty on the few tokens that would cost the most entropy."""

from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.loss.bound.penalise_high_covariance_tokens import PenaliseHighCovarianceTokens
from strop.recipes._base import CLIP, ESTIMATOR, with_policy
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo


@inherits(grpo, without=(*ESTIMATOR, *CLIP), aggregation="token-mean", num_minibatches=8)
def kl_cov(
    *,
    # Share of an update's tokens that are penalised.
    kl_cov_ratio: float = 2e-4,
    # Weight of the penalty, per nat.
    ppo_kl_coef: float = 1.0,
    **parent: Any,
) -> Algorithm:
    """The Entropy Mechanism of Reinforcement Learning for Reasoning Language Models (KL-Cov).

    arXiv 2505.22617, eq. 13 and 14. Code: PRIME-RL/Entropy-Mechanism-of-RL. Parent: grpo.
    Status: exact.

    Family: entropy.
    In short: KL on tokens that drain entropy.
    Choose it when: the tokens that drain entropy should move less instead of not at all, and a
    batch has several updates (with one this does nothing).
    Equation: loss = 1/N sum_t (-rho A + ppo_kl_coef |logp - logp_old| on S), S the
    max(int(kl_cov_ratio N), 1) tokens of largest (A - mean A)(logp - mean logp).
    Differs from the parent: no clip; a few tokens are penalised for leaving the old policy; all
    tokens weigh the same; eight updates a step, since in the first the penalty has no gradient.
    Differs from the paper: means and N are taken over the whole update, not a micro-batch, so the
    result does not depend on how rows are split.
    Try: kl_cov_ratio (2e-3, the paper's for 7B), ppo_kl_coef, num_minibatches.
    """
    part = PenaliseHighCovarianceTokens(kl_cov_ratio, ppo_kl_coef)
    return with_policy(grpo(**parent), objective=Use(part))
