"""Group relative policy optimisation that does not wait for the longest answers."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.curation.drop_uniform_groups import DropUniformGroups
from strop.parts.rollout.leave_slow_groups_for_later import LeaveSlowGroupsForLater
from strop.parts.sampling.draw_spare_prompts import DrawSparePrompts
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo
from strop.support.errors import UserError


@inherits(grpo, num_rollouts=8)
def april_partial_rollout(
    *,
    # Prompts in flight at once; num_prompts: none is put off.
    chunk: int = 64,
    # Steps after which an unfinished group is restarted; 0: never.
    max_age: int = 0,
    # Whether groups whose rewards are all equal are replaced by others.
    dynamic_sampling: bool = False,
    num_prompts: int = 32,
    **parent: Any,
) -> Algorithm:
    """APRIL: Active Partial Rollouts in RL to Tame Long-Tail Generation.

    arXiv 2509.18521. Code: RLsys-Foundation/APRIL. Parent: grpo. Status: exact.

    Family: staleness. Model: tiny-worked.
    In short: long answers resume in next step.
    Choose it when: a few long answers hold up every step while the engine is nearly idle, and
    answers sampled with the weights of several steps are acceptable.
    Equation: grpo's, over the first num_prompts groups of `chunk` under way that end; the others
    resume in the next step from the tokens that they have.
    Differs from the parent: a step ends when num_prompts groups have ended; long answers are
    trained on later and hold tokens of several policies.
    Differs from the paper: 1. tokens are stored, each with the probability with which it was
    sampled, so that no text is tokenised again; 2. further groups that end meanwhile are kept,
    there lost; 3. dynamic_sampling requests more after the step's groups, there as they end; 4.
    temperature 1 (there 0.8). No limit on age unless max_age, as there.
    Try: chunk, max_age (4), correction=weigh_by_engine_ratio.
    """
    if chunk < num_prompts:
        raise UserError(
            f"april_partial_rollout: chunk={chunk} prompts under way cannot end "
            f"num_prompts={num_prompts} of them: raise chunk or lower num_prompts"
        )
    algorithm = grpo(num_prompts=num_prompts, **parent)
    spare = (Use(DrawSparePrompts(chunk / num_prompts - 1)),) if chunk > num_prompts else ()
    return dataclasses.replace(
        algorithm,
        sampling=(*algorithm.sampling, *spare),
        rollout=Use(LeaveSlowGroupsForLater(max_age=max_age)),
        curation=(Use(DropUniformGroups()),) if dynamic_sampling else (),
    )
