"""Group relative policy optimisation."""

from strop.method.algorithm import Algorithm
from strop.method.part import Term, Use
from strop.parts.advantage.baseline.subtract_group_mean import SubtractGroupMean
from strop.parts.advantage.credit.spread_evenly import SpreadEvenly
from strop.parts.advantage.scale.divide_by_group_std import DivideByGroupStd
from strop.parts.loss.bound.clip_both_sides import ClipBothSides
from strop.parts.loss.ratio.ratio_per_token import RatioPerToken
from strop.recipes._base import around, average, kl_terms


def grpo(
    *,
    eps: float = 1e-6,
    std: str = "unbiased",
    normalize_std: bool = True,
    singleton: str = "raw",
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    beta: float = 0.0,
    aggregation: str = "seq-mean-token-mean",
    num_prompts: int = 32,
    num_rollouts: int = 16,
    num_minibatches: int = 1,
) -> Algorithm:
    """DeepSeekMath: Pushing the Limits of Mathematical Reasoning in Open Language Models.

    arXiv 2402.03300, eq. 3. Code: none released (verl, TRL carry it). Parent: none. Status: exact.

    Family: baselines.
    In short: reward against its group's mean.
    Choose it when: you start out, or need the baseline of most papers: one reward an answer,
    several answers a prompt, no critic and little to tune.
    Equation: A_i = (R_i - mean_g) / (std_g + eps);
    loss = -mean_i mean_t min(rho A_i, clip(rho, 1 - clip_low, 1 + clip_high) A_i) + beta KL(ref).
    Differs from the parent: it is the root of the group-relative family.
    Differs from the paper: 1. no KL penalty towards the reference unless beta > 0 (paper: 0.04), as
    in TRL; 2. eps is not given in the paper (1e-6 is verl's).
    Try: num_rollouts, clip_high (0.28 keeps more entropy), aggregation ("token-mean").
    """
    deviation = Use(DivideByGroupStd(eps, std))  # in any case: it refuses what is no eps or std
    scale = (deviation,) if normalize_std else ()
    policy = Term(
        "policy",
        objective=Use(ClipBothSides(clip_low, clip_high)),
        ratio=Use(RatioPerToken()),
        average=average(aggregation),
    )
    return Algorithm(
        **around(num_prompts, num_rollouts, num_minibatches),
        advantage=(Use(SubtractGroupMean(singleton)), *scale, Use(SpreadEvenly())),
        terms=(policy, *kl_terms(beta, aggregation)),
    )
