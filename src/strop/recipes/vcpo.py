"""Group relative policy optimisation on stale answers, with controlled variance."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.advantage.baseline.subtract_least_variance_mean import SubtractLeastVarianceMean
from strop.parts.advantage.credit.spread_evenly import SpreadEvenly
from strop.parts.advantage.scale.divide_by_group_std import DivideByGroupStd
from strop.parts.loss.bound.follow_advantage import FollowAdvantage
from strop.parts.loss.correction.weigh_by_engine_ratio import WeighByEngineRatio
from strop.parts.probe.measure_rollout_gradients import MeasureRolloutGradients
from strop.parts.rate.shrink_step_by_sample_size import ShrinkStepBySampleSize
from strop.recipes._base import CLIP, ESTIMATOR, check_choice, with_policy
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo


@inherits(grpo, without=(*ESTIMATOR, *CLIP), aggregation="token-mean")
def vcpo(
    *,
    # Added to the sum of the baseline's weights.
    eps: float = 1e-8,
    # Share of the weight at either end whose rewards are winsorised for the baseline; 0: none.
    winsor: float = 0.0,
    # Largest weight of an answer in the loss.
    cap: float = 8.0,
    # Effective sample size, as a share of the rollouts, from which the step is full.
    base: float = 1.0,
    # How the step shrinks with the sample size: "sqrt" or "linear".
    scaling: str = "sqrt",
    # Whether advantages are divided by the group's deviation.
    normalize_std: bool = True,
    # "paper", or "code", whose baseline includes the truncated weight once more.
    variant: str = "paper",
    **parent: Any,
) -> Algorithm:
    """Stable Asynchrony: Variance-Controlled Off-Policy RL for LLMs.

    arXiv 2602.17616. Code: mit-han-lab/vcpo. Parent: grpo. Status: exact.

    Family: staleness.
    In short: smaller steps on stale answers.
    Choose it when: answers are many steps old and a clip would discard most of them; steps shrink
    instead, at the cost of one backward pass an answer.
    Equation: A_i = (R_i - b_g) / sigma_g, b_g = sum W R / (sum W + eps), W = w^2 |g|^2,
    w_i = exp(sum_t logp_old - logp_behavior), g_i the gradient of the answer's log-probability;
    loss = -1/N sum_t min(w, cap) A logp; lr <- lr sqrt(min(1, (sum w)^2 / (B sum w^2) / base)).
    Differs from the parent: no clip: answers are weighted by w, the step shrinks with the effective
    sample size, and the baseline is that of least variance; sigma counts by 1/G.
    In full once: `engine.staleness=2` (ess/lr_scale < 1).
    Differs from the paper: norms and w are those of the step's start, also in a later update. The
    released scripts average per answer (aggregation "seq-mean-token-mean"), over answers up to 10
    to 128 steps old (2 with tools); here they are fresh unless `engine.staleness` or
    `training.max_staleness` is given.
    Try: engine.staleness (16), base (0.55), scaling ("linear").
    """
    check_choice("vcpo", ("paper", "code"), variant=variant)
    mean = SubtractLeastVarianceMean(eps, winsor, cap if variant == "code" else 0.0)
    scale = (Use(DivideByGroupStd(0.0, "biased", floor=1e-8)),) if normalize_std else ()
    algorithm = dataclasses.replace(
        grpo(**parent),
        probes=(Use(MeasureRolloutGradients()),),
        advantage=(Use(mean), *scale, Use(SpreadEvenly())),
        rates=(Use(ShrinkStepBySampleSize(base, scaling)),),
    )
    weigh = WeighByEngineRatio("sequence", high=cap)
    return with_policy(
        algorithm, objective=Use(FollowAdvantage()), ratio=None, correction=Use(weigh)
    )
