"""Policy optimisation without the gradient of a few tokens that would cost the most entropy."""

from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.loss.bound.drop_high_covariance_tokens import DropHighCovarianceTokens
from strop.recipes._base import ESTIMATOR, with_policy
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo


@inherits(grpo, without=ESTIMATOR, aggregation="token-mean", num_minibatches=8)
def clip_cov(
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    clip_cov_ratio: float = 2e-4,
    clip_cov_lb: float = 1.0,
    clip_cov_ub: float = 5.0,
    **parent: Any,
) -> Algorithm:
    """The Entropy Mechanism of Reinforcement Learning for Reasoning Language Models (Clip-Cov).

    arXiv 2505.22617, eq. 10 to 12. Code: PRIME-RL/Entropy-Mechanism-of-RL. Parent: grpo.
    Status: exact.

    Family: entropy.
    In short: drops tokens that drain entropy.
    Choose it when: a few likely tokens with large advantages drain the entropy; some of them,
    chosen at random, can go without a gradient.
    Equation: loss = -1/N sum_t c_t min(rho A, clip(rho, 1 - clip_low, 1 + clip_high) A); c_t = 0 on
    max(int(clip_cov_ratio N), 1) tokens chosen at random from those with clip_cov_lb < (A - mean
    A)(logp - mean logp) < clip_cov_ub, else 1.
    Differs from the parent: those tokens get no gradient; all tokens weigh the same; eight updates
    a step.
    Differs from the paper: means and N are taken over the whole update, not a micro-batch, so the
    result does not depend on how rows are split.
    Try: clip_cov_ratio (more keeps more entropy), clip_cov_lb, num_rollouts.
    """
    part = DropHighCovarianceTokens(
        clip_low, clip_high, drop_share=clip_cov_ratio, cov_low=clip_cov_lb, cov_high=clip_cov_ub
    )
    return with_policy(grpo(**parent), objective=Use(part))
