"""A prior of success as the baseline, until the prompt's rollouts contradict it."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.advantage.baseline.shrink_mean_to_prior import ShrinkMeanToPrior
from strop.parts.advantage.credit.spread_evenly import SpreadEvenly
from strop.parts.curation.ask_while_uncertain import AskWhileUncertain
from strop.parts.sampling.predict_success_from_history import PredictSuccessFromHistory
from strop.recipes._base import ESTIMATOR
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo


@inherits(grpo, without=ESTIMATOR, num_rollouts=4)
def v_half(
    *,
    # What a further rollout costs, in squared reward units.
    cost: float = 0.0039,
    # Most rollouts of a prompt.
    most: int = 16,
    # Prompts in the history.
    context: int = 256,
    # Distance of texts at which their outcomes stop informing each other.
    bandwidth: float = 0.1,
    **parent: Any,
) -> Algorithm:
    """V_{0.5}: Generalist Value Model as a Prior for Sparse RL Rollouts.

    arXiv 2603.10848. Code: none released. Parent: grpo. Status: partial.

    Family: draws.
    In short: success prediction as baseline.
    Choose it when: few answers a prompt should suffice: its predicted success is the baseline until
    they contradict it, and then more are sampled.
    Equation: R in {-1, 1}, V in [-1, 1]; D2 = max(0, (v - V)^2 - 1/k), w = D2 / (D2 + 1/k),
    A_i = R_i - (w v + (1 - w) V); one more rollout while MSE(k) - MSE(k+1) > cost.
    Differs from the parent: few rollouts, a prior of the prompt's success beside their mean, more
    rollouts where they contradict it, no deviation. Groups with equal outcomes are trained on.
    Differs from the paper: 1. its frozen value model is a kernel over the policy's own history here
    (v_zero); 2. whether it divides by a deviation was not found: here it does not; 3. rewards must
    be 0 to 1 and become -1 to 1.
    Try: num_rollouts (k at the start), cost (0.01), bandwidth.
    """
    algorithm = grpo(**parent)
    predict = Use(PredictSuccessFromHistory(context, bandwidth))
    return dataclasses.replace(
        algorithm,
        sampling=(*algorithm.sampling, predict),
        curation=(Use(AskWhileUncertain(cost, most)),),
        advantage=(Use(ShrinkMeanToPrior()), Use(SpreadEvenly())),
    )
