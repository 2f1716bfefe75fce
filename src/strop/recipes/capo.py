"""Group relative policy optimisation that keeps confidence in line with correctness."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.advantage.baseline.rank_right_above_wrong import RankRightAboveWrong
from strop.parts.advantage.credit.spread_evenly import SpreadEvenly
from strop.parts.selection.drop_doubtful_rollouts import DropDoubtfulRollouts
from strop.recipes._base import ESTIMATOR
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo


@inherits(grpo, without=(*ESTIMATOR, "beta"), num_rollouts=8, num_minibatches=2)
def capo(
    *,
    # Temperature at which two confidences are compared, nats.
    tau: float = 0.6,
    # "sum" over the pairs of a right and a wrong answer, or "mean" over those of the prompt.
    pair_reduction: str = "sum",
    # Whether the factor 1 / tau is included.
    include_inv_tau: bool = True,
    # Highest perplexity under the reference of a right answer that is learned from.
    ref_high: float = 2.5,
    # Lowest perplexity under the reference of a wrong answer that is learned from.
    ref_low: float = 1.05,
    # Reward from which an answer is right.
    success: float = 1.0,
    **parent: Any,
) -> Algorithm:
    """Calibration-Aware Policy Optimization for Reasoning LLMs.

    arXiv 2604.12632. Code: none found. Parent: grpo. Status: partial.

    Family: baselines.
    In short: right-wrong pairs by confidence.
    Choose it when: confidence will be used after training, to vote by likelihood or to abstain, so
    right answers should be the likelier ones.
    Equation: for right i and wrong j of a prompt, c = mean logp of an answer:
    A_i = sum_j sigmoid(-(c_i - c_j) / tau) / tau, A_j = -sum_i sigmoid(-(c_i - c_j) / tau) / tau;
    0 for right ones of perplexity above ref_high, wrong ones below ref_low, under the reference.
    Differs from the parent: pairs of a right and a wrong answer replace mean and deviation, and
    weigh more the worse confidence orders them; doubtful answers get no gradient; two updates a
    step.
    In full once: `'capo(ref_low=1.3)'`, or doubtful answers (selection/dropped/doubtful > 0).
    Differs from the paper: inferred are the sum over pairs, the factor 1 / tau, that c is the old
    policy's, the wrong answers' side (the gradient's), and that doubtful answers still serve as
    partners and count in averages.
    Try: tau (0.5 for 7B), ref_high (inf with ref_low 1: no mask), pair_reduction.
    """
    rank = RankRightAboveWrong(tau, pair_reduction, include_inv_tau, success)
    return dataclasses.replace(
        grpo(**parent),
        advantage=(Use(rank), Use(SpreadEvenly())),
        selection=(Use(DropDoubtfulRollouts(ref_high, ref_low, success)),),
    )
