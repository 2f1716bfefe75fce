"""Group relative policy optimisation that corrects overconfident errors harder."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.advantage.scale.blame_overconfident_errors import BlameOverconfidentErrors
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo


@inherits(grpo)
def ace(
    *,
    # Strength of the correction.
    alpha: float = 1.0,
    # Whether the gain in confidence is measured per token instead of per answer.
    per_token: bool = False,
    # Largest gain in confidence that counts, nats; 0: any.
    cap: float = 0.0,
    **parent: Any,
) -> Algorithm:
    """Overconfident Errors Need Stronger Correction: Asymmetric Confidence Penalties for RL.

    arXiv 2602.21420. Code: none found. Parent: grpo. Status: partial.

    Family: baselines.
    In short: overconfident errors weigh more.
    Choose it when: some wrong answers persist that have become likelier than under the reference,
    while other errors should be left to explore.
    Equation: c_i = sum_t logp_t - sum_t logp_ref_t;
    A_i < 0: A_i <- A_i (1 + alpha log(1 + exp(c_i))), others stay.
    Differs from the parent: wrong answers weigh more, the likelier they have become relative to the
    reference.
    Differs from the paper: inferred are the softplus of a sum over tokens, that the log-probability
    is the old policy's, and alpha, which is not known. In long answers the sum can reach tens of
    nats: per_token and cap limit it.
    Try: alpha, per_token, cap (5).
    """
    algorithm = grpo(**parent)
    *estimator, spread = algorithm.advantage
    harder = Use(BlameOverconfidentErrors(alpha, per_token, cap))
    return dataclasses.replace(algorithm, advantage=(*estimator, harder, spread))
