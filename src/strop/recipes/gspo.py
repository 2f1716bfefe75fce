"""Policy optimisation with one importance ratio per answer."""

from strop.algorithm import Algorithm
from strop.loss.ratio.ratio_per_sequence import RatioPerSequence
from strop.part import Use
from strop.recipes._base import with_policy
from strop.recipes.grpo import grpo


def gspo(
    *,
    clip_low: float = 3e-4,
    clip_high: float = 4e-4,
    beta: float = 0.0,
    aggregation: str = "seq-mean-token-mean",
    num_prompts: int = 32,
    num_rollouts: int = 16,
) -> Algorithm:
    """Group Sequence Policy Optimization.

    arXiv 2507.18071, eq. 5 and 7. Code: none released (verl, TRL carry it). Parent: grpo.
    Status: exact.

    Equation: s_i = exp(mean_t (logp - logp_old));
    loss = -mean_i min(s_i A_i, clip(s_i, 1 - clip_low, 1 + clip_high) A_i).
    Differs from the parent: the ratio, and so the clip, is of the whole answer; the clip is
    narrow, since a mean of log-ratios moves little.
    Differs from the paper: no. The rollouts of a step need several updates for the clip to act.
    Try: clip_high, plan.num_minibatches (4), aggregation.
    """
    algorithm = grpo(
        clip_low=clip_low,
        clip_high=clip_high,
        beta=beta,
        aggregation=aggregation,
        num_prompts=num_prompts,
        num_rollouts=num_rollouts,
    )
    return with_policy(algorithm, ratio=Use(RatioPerSequence()))
