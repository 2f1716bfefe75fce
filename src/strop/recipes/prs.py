"""Profiled rewards, without right programs whose own code hardly runs."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.selection.drop_unprofiled_rollouts import DropUnprofiledRollouts
from strop.recipes._inherit import inherits
from strop.recipes.profiling_reward import profiling_reward


@inherits(profiling_reward)
def prs(
    *,
    # Share of the running time in generated code from which a program may be kept.
    tau: float = 0.3,
    # Further share over which the probability of keeping it rises to 1; 0: a hard cut.
    width: float = 0.1,
    # Speedup from which a program is kept anyway; 0: none.
    enough_speedup: float = 0.0,
    **parent: Any,
) -> Algorithm:
    """Dr. Kernel: Reinforcement Learning Done Right for Triton Kernel Generations (PRS).

    arXiv 2602.05885. Code: hkust-nlp/KernelGYM. Parent: profiling_reward. Status: exact.

    Family: rewards.
    In short: drops lazy right programs.
    Choose it when: profiled rewards alone still reinforce programs that are right but leave nearly
    all the work to a library.
    Equation: a correct, non-decoy program is trained on with probability
    clip((PR - tau) / width, 0, 1), every other one always.
    Differs from the parent: lazy right programs are left out of loss and averages at random.
    Differs once: an answer has less than its share (profile/dropped_fraction > 0).
    Differs from the paper: its equation drops wrong ones by the same rule, the code (here) keeps
    them; a draw depends on the rollout's uid, seed and step, so runs repeat exactly.
    Try: tau, width (0), enough_speedup (1.2).
    """
    chosen = DropUnprofiledRollouts(tau, width, enough_speedup)
    return dataclasses.replace(profiling_reward(**parent), selection=(Use(chosen),))
