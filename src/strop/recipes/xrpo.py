"""Rollouts where a prompt's mean is uncertain, examples where all failed, a bonus for novelty."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.advantage.scale.favour_unlikely_successes import FavourUnlikelySuccesses
from strop.parts.curation.ask_where_unsure import AskWhereUnsure
from strop.parts.curation.ask_with_solved_examples import AskWithSolvedExamples
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo


@inherits(grpo, num_rollouts=8)
def xrpo(
    *,
    # Rounds of rollouts; in each after the first, `extra` rollouts a prompt on average.
    phases: int = 3,
    extra: int = 4,
    # Error rate of the confidence intervals; weight of the bonus on prompts with few rollouts.
    a: float = 0.05,
    lam: float = 0.05,
    # Examples for a prompt that no rollout solved, and rollouts sampled after them; K 0: none.
    K: int = 2,
    seeded: int = 4,
    # Bonus of right answers that are unlikely, and its largest share of the advantage.
    lam_nov: float = 2.5,
    kappa: float = 0.5,
    **parent: Any,
) -> Algorithm:
    """XRPO: Pushing the Limits of GRPO with Targeted Exploration and Exploitation.

    arXiv 2510.06672. Code: announced, not obtained. Parent: grpo. Status: partial.

    Family: draws.
    In short: rollouts for uncertain prompts.
    Choose it when: a fixed number of rollouts should be as informative as possible, some prompts
    are never solved, and similar solved ones can serve as examples.
    Equation: next rollout to the largest h(n) - h(n + 1) + lam sqrt(log(1 + T) / n), h(n) =
    t_{1-a/2, n-1} s / sqrt(n); A_i > 0: A_i += min(max(lam_nov (1 - eta_i), 0), kappa A_i), eta_i =
    exp(s_i - mean s), s_i the mean log-probability of its tokens.
    Differs from the parent: 8 rollouts first, then two rounds of more where they are most
    informative; prompts without a success are tried again after solved examples; a bonus on
    unlikely right answers.
    Differs from the paper: 1. lam, a, the budgets and what T counts (the step's rollouts) were not
    found; 2. examples are found by the policy's own input embeddings; 3. seeded rollouts are
    trained on with their examples in front.
    Try: extra, lam (larger: more even), K=0, lam_nov=0.
    """
    algorithm = grpo(**parent)
    asks = (Use(AskWhereUnsure(phases - 1, extra, a, lam)),) if phases > 1 else ()
    shows = (Use(AskWithSolvedExamples(K, seeded)),) if K else ()
    *compared, spread = algorithm.advantage
    praise = (Use(FavourUnlikelySuccesses(lam_nov, kappa)),) if lam_nov else ()
    return dataclasses.replace(
        algorithm, curation=(*asks, *shows), advantage=(*compared, *praise, spread)
    )
