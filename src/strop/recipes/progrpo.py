"""Group relative policy optimisation that favours answers which the policy underrates."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.advantage.baseline.subtract_excess_confidence import SubtractExcessConfidence
from strop.parts.probe.measure_prompt_confidence import MeasurePromptConfidence
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo


@inherits(grpo, clip_high=0.28, aggregation="token-mean")
def progrpo(
    *,
    # Weight of the difference of confidences.
    alpha: float = 0.3,
    # Share of the tokens, the least likely ones, that make up a confidence.
    share: float = 0.2,
    **parent: Any,
) -> Algorithm:
    """Back to Basics: Revisiting Exploration in RL for LLM Reasoning via Generative Probabilities.

    arXiv 2602.05281. Code: none found. Parent: grpo. Status: partial.

    Family: entropy.
    In short: boosts unlikely right answers.
    Choose it when: among right answers the unlikely ones should gain most, so that the policy does
    not collapse onto the one that it knows.
    Equation: A_i <- A_i + alpha (c_q - c_i) unless all rewards of the prompt are 0;
    c_i = exp(mean logp of the answer's least likely tokens), c_q the same of the prompt;
    loss = -1/N sum_t min(rho A, clip(rho, 1 - clip_low, 1 + clip_high) A).
    Differs from the parent: answers of which the policy is more confident than of the prompt lose,
    the others gain; a wider clip above, and all tokens weigh the same.
    Differs from the paper: inferred are alpha, the form of c_q (one pass over the prompts, without
    their first token), the unbiased deviation, and that prompts which are always right are trained
    on too.
    Try: alpha, share, clip_high.
    """
    algorithm = grpo(**parent)
    *estimator, spread = algorithm.advantage
    subtract = Use(SubtractExcessConfidence(alpha, share))
    return dataclasses.replace(
        algorithm,
        probes=(Use(MeasurePromptConfidence(share)),),
        advantage=(*estimator, subtract, spread),
    )
