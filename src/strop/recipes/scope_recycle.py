"""Group relative policy optimisation that mends failed answers where they first went wrong."""

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
    # What the reward logs of each answer: its first false step, from 0; -1: none.
    column: str = "first_false_step",
    # Text between steps.
    separator: str = "\n",
    # Who writes the ends: "policy" or "demonstration".
    source: str = "policy",
    # Failed rollouts of a prompt that are repaired, at most.
    num_repaired: int = 1,
    # Ends of the policy that are tried for each.
    num_tries: int = 4,
    # Whether tokens of a demonstration are learnt.
    learn_given: bool = True,
    **parent: Any,
) -> Algorithm:
    """Recycling Failures: Salvaging Exploration in RLVR via Fine-Grained Off-Policy Guidance.

    arXiv 2602.24110. Code: none. Parent: grpo. Status: abstract.

    Family: demonstrations. Model: tiny-worked.
    In short: a failed answer's right beginning.
    Choose it when: most groups fail as a whole, answers have steps that can be checked one by one,
    and a wrong answer is usually right for a while.
    Equation: a failed rollout keeps its steps before the first false one and gets another end; if
    that is graded right it takes the failed one's place; grpo's loss on the group.
    Differs from the parent: one failed rollout of a prompt is mended where that succeeds, so that
    groups without a success have one; its end is chosen among tries, or given.
    Differs once: `training.steps=1` with tiny-worked: a failed answer was mended (splice/repaired >
    0).
    Differs from the paper: its abstract alone is known. Ours: a checker of steps in place of the
    process reward model, ends by the policy itself or by the given answer, one repair a prompt (the
    one with most right steps), repaired ones replace, and given tokens learn like the policy's.
    Try: num_tries, num_repaired, source ("demonstration") with learn_given (false).
    """
    algorithm = grpo(**parent)
    rollout = SpliceAtFirstError(
        column=column, separator=separator, source=source, num_repaired=num_repaired,
        num_tries=num_tries,
    )  # fmt: skip
    own = () if learn_given else (Use(KeepOrigins()),)
    return dataclasses.replace(algorithm, rollout=Use(rollout), selection=own)
