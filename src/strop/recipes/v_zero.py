"""Allocates rollouts to prompts by the failures and successes that a predictor expects."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.sampling.allocate_by_failures import AllocateByFailures
from strop.parts.sampling.predict_success_from_history import PredictSuccessFromHistory
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo


@inherits(grpo)
def v_zero(
    *,
    # Prompts in the history.
    context: int = 256,
    # Distance of texts at which their outcomes stop informing each other.
    bandwidth: float = 0.1,
    # Fewest rollouts of a prompt.
    least: int = 2,
    # Most rollouts of a prompt.
    most: int = 128,
    # File of a trained adapter, and a classifier, in place of pieces of text and the kernel.
    adapter: str = "",
    classifier: str = "",
    **parent: Any,
) -> Algorithm:
    """V_0: A Generalist Value Model for Any Policy at State Zero.

    arXiv 2602.03584. Code: Now-Join-Us/V0. Parent: grpo. Status: partial.

    Family: draws.
    In short: rollouts by predicted success.
    Choose it when: sampling is the main cost and prompts differ in difficulty: those certain to
    fail or to succeed should get fewer answers.
    Equation: p_i predicted from the policy's (prompt, outcome) history; budgets maximise
    sum U(B_i, p_i), U = B (1 - p) (1 - (1 - p)^(B - 1)), sum B_i = num_prompts num_rollouts.
    Differs from the parent: prompts get rollouts by their predicted success, num_rollouts each on
    average; group sizes differ.
    Differs once: `training.steps=2`, whose prompts have a history (prior/mean != 0.5).
    Differs from the paper: 1. by default the predictor is a kernel over pieces of text; adapter is
    its own over a frozen embedder, which `strop.evaluation.success_forecast` trains, and classifier
    takes an in-context one, as its TabPFN; 2. the budget rule, and that of routing (`route` there),
    are known from a note on the paper.
    Try: bandwidth, most (32), least.
    """
    algorithm = grpo(**parent)
    predict = Use(
        PredictSuccessFromHistory(context, bandwidth, adapter=adapter, classifier=classifier)
    )
    spend = Use(AllocateByFailures(least, most))
    return dataclasses.replace(algorithm, sampling=(*algorithm.sampling, predict, spend))
