"""Policy optimisation of the lower tail of scores over bundles of prompts."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.advantage.baseline.sum_over_bundles import SumOverBundles
from strop.parts.advantage.baseline.weigh_lower_tail import WeighLowerTail
from strop.parts.advantage.credit.spread_evenly import SpreadEvenly
from strop.parts.advantage.scale.share_among_bundle import ShareAmongBundle
from strop.recipes._base import ESTIMATOR, check_choice
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo


@inherits(grpo, without=ESTIMATOR, num_prompts=40, num_rollouts=10, num_minibatches=4)
def riskpo(
    *,
    # Prompts in a bundle.
    bundle_size: int = 5,
    # Level of the lower quantile.
    alpha: float = 0.2,
    # Level of the upper quantile.
    beta: float = 0.8,
    # Weight of the tail below the lower quantile.
    w: float = 1.5,
    # Whether the difference of the quantiles is added, so that no advantage is above 0.
    natural: bool = False,
    # How a bundle's advantage reaches its rollouts: "sum-mean", "uniform", "score" or "std".
    credit: str = "sum-mean",
    normalize_std: bool = True,
    eps: float = 1e-6,
    # "batch" (each bundle's own) or "tracked" over the run.
    quantiles: str = "batch",
    # Speed of the tracked quantiles, points of a bundle's score.
    lr_q: float = 0.1,
    # Weight of the KL penalty towards the reference (grpo's beta).
    kl_coef: float = 0.0,
    **parent: Any,
) -> Algorithm:
    """RiskPO: Risk-based Policy Optimization via Verifiable Reward for LLM Post-Training.

    arXiv 2510.00911. Code: RTkenny/RiskPO. Parent: grpo. Status: exact.

    Family: baselines.
    In short: lower tail of bundled scores.
    Choose it when: easy prompts dominate the mean and hard ones are left behind; bundles of prompts
    also turn rewards of 0 and 1 into graded scores.
    Equation: Z_j = sum of the j-th rewards of a bundle's prompts; A = (w CVaR_alpha +
    RVaR_{alpha,beta}) / (w + 1) / (std Z + eps), given to the rollouts by their share of
    R - mean.
    Differs from the parent: the lower tail of the scores of bundles replaces the group's mean; four
    updates a step.
    Differs from the paper: token-level ratio and clip as in its scripts (paper: as gspo); quantiles
    are each bundle's own, as in the code, whose tracker is reset in every step: the paper's
    "tracked" ones move by at most lr_q a step, so they fall behind a policy whose scores rise by
    more, and one pair of them serves easy and hard bundles. The code's mean baseline and its
    upper-tail option are left out. num_prompts is best a multiple of bundle_size.
    Try: bundle_size, w, quantiles ("tracked"), credit ("std", with natural=true and beta 0.9).
    """
    check_choice("riskpo", ("tracked", "batch"), quantiles=quantiles)
    rate = lr_q if quantiles == "tracked" else 0.0
    return dataclasses.replace(
        grpo(beta=kl_coef, **parent),
        advantage=(
            Use(SumOverBundles(bundle_size)),
            Use(WeighLowerTail((alpha, beta), w, natural, rate)),
            Use(ShareAmongBundle(credit, normalize_std, eps)),
            Use(SpreadEvenly()),
        ),
    )
