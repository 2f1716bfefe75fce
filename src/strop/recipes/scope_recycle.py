"""Group relative policy optimisation that repairs failed answers from their first wrong step."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.rollout.splice_at_first_error import SpliceAtFirstError
from strop.parts.selection.keep_origins import KeepOrigins
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo


@inherits(grpo)
def scope_recycle(
    *,
    # Column that the reward logs, an answer's first wrong step, from 0; -1: none.
    column: str = "first_false_step",
    # Text between steps.
    separator: str = "\n",
    # Who writes the new endings: "policy" or "demonstration".
    source: str = "policy",
    # Failed rollouts of a prompt that are repaired, at most.
    num_repaired: int = 1,
    # Endings of the policy that are tried for each.
    num_tries: int = 4,
    # Whether tokens of a demonstration are trained on.
    learn_given: bool = True,
    **parent: Any,
) -> Algorithm:
    """Recycling Failures: Salvaging Exploration in RLVR via Fine-Grained Off-Policy Guidance.

    arXiv 2602.24110. Code: none. Parent: grpo. Status: abstract.

    Family: demonstrations. Model: tiny-worked.
    In short: repairs failed answers mid-way.
    Choose it when: most groups are all wrong, answers have steps that can be checked one by one,
    and wrong answers usually start right.
    Equation: a failed rollout keeps its steps before the first false one and gets a new ending; if
    that is graded right it replaces the failed one; grpo's loss on the group.
    Differs from the parent: one failed rollout of a prompt is repaired where that succeeds, so that
    groups without a success get one; its ending is chosen among tries, or given.
    Differs once: `training.steps=1` with tiny-worked: a failed answer was repaired (splice/repaired
    > 0).
    Differs from the paper: only its abstract is known. We inferred a checker of steps in place of
    the process reward model, endings by the policy itself or by the given answer, one repair a
    prompt (the one with most right steps), that repaired answers replace failed ones, and that
    given tokens are trained on like the policy's.
    Try: num_tries, num_repaired, source ("demonstration") with learn_given (false).
    """
    algorithm = grpo(**parent)
    rollout = SpliceAtFirstError(
        column=column, separator=separator, source=source, num_repaired=num_repaired,
        num_tries=num_tries,
    )  # fmt: skip
    own = () if learn_given else (Use(KeepOrigins()),)
    return dataclasses.replace(algorithm, rollout=Use(rollout), selection=own)
