"""Credits the steps of an answer by how confident and right a forced answer is after each."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.advantage.baseline.subtract_group_mean import SubtractGroupMean
from strop.parts.advantage.credit.shape_by_potential import ShapeByPotential
from strop.parts.advantage.weight.whiten_over_batch_tokens import WhitenOverBatchTokens
from strop.parts.probe.mark_step_ends import MarkStepEnds
from strop.parts.probe.probe_answers import ProbeAnswers
from strop.recipes._inherit import inherits
from strop.recipes.dapo import dapo

OVERLONG = ("overlong_buffer", "overlong_factor", "overlong_filter")


@inherits(dapo, without=OVERLONG)
def spae(
    *,
    # Share of the advantage that steps after the solution can lose.
    alpha: float = 0.5,
    # Weight of a step's change in potential.
    xi: float = 0.5,
    # Potential above which a step counts as solved.
    eps_sat: float = 0.9,
    # Forced answers after each step.
    num_probes: int = 5,
    # Text that ends a step; empty: ".\n\n", or a line break where the model has no full stop.
    marker: str = "",
    # Text that requests the answer; empty: a heading and a box, or "=" as in tiny-worked.
    opening: str = "",
    # Column of the prompts with the right answer, or a list of right ones; empty: answer, answers.
    reference: str = "",
    **parent: Any,
) -> Algorithm:
    """Step Potential Advantage Estimation: Harnessing Intermediate Confidence and Correctness.

    arXiv 2601.03823. Code: cii030/SPAE-RL (a probe example). Parent: dapo. Status: partial.

    Family: credit. Model: tiny-worked.
    In short: steps valued by forced answers.
    Choose it when: reasoning comes in marked steps and continues after the solution is found; a
    forced answer after each step tells which ones helped.
    Equation: A_t = (R_i - mean_g) f_k + xi g_k for t in step k, whitened over the batch's tokens;
    f_k = 1 - alpha (1 - exp(-C_k)), g_k = exp(d_k) - mean exp(d), d_k the scaled change of
    Phi = 1.5 acc conf + 0.5 acc - conf, C_k the earlier steps with Phi > eps_sat.
    Differs from the parent: the group's mean without its deviation; steps are weighted by the
    potential that forced answers give them; no length penalty.
    Differs once: `training.steps=1` with tiny-worked: answers have the marker (potential/mean !=
    0).
    Differs from the paper: inferred are 1. the scope of scaling and mean (the batch); 2. d = 0 at
    the first step; 3. tokens after the last step belong to it; 4. eps_sat (of the diagnostic
    example). 5. the whitening's constant is under the root. A step has one update, not 20
    (`num_minibatches=20`), which took more time.
    Try: alpha and xi (0: reinforce_plus_plus_baseline's advantages), marker, num_probes.
    """
    probe = ProbeAnswers(opening, reference, num_probes)
    return dataclasses.replace(
        dapo(overlong_factor=0.0, **parent),
        probes=(Use(MarkStepEnds(marker)), Use(probe)),
        advantage=(
            Use(SubtractGroupMean()),
            Use(ShapeByPotential(alpha, xi, eps_sat)),
            Use(WhitenOverBatchTokens()),
        ),
    )
