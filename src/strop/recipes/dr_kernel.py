"""Programs improved over several turns, rewarded by the speed of the policy's own code."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.curation.drop_uniform_starts import DropUniformStarts
from strop.parts.reward.note_turn_profiles import NoteTurnProfiles
from strop.parts.reward.reward_profiled_speed import RewardProfiledSpeed
from strop.parts.selection.drop_unprofiled_rollouts import DropUnprofiledRollouts
from strop.recipes._inherit import inherits
from strop.recipes.mrs import mrs

OF_TURNS = tuple((f"{name}_B", f"{name}_K") for name in ("correct", "speedup", "profiled", "decoy"))
PAID = (*OF_TURNS, ("reward_B", "reward_K"))
DRAWN = (*OF_TURNS, ("rollout_uid_B", "key_K"), ("rollout_T", "turn_T"))
LAST = (("return_K", "reward_K"),)


@inherits(mrs, num_prompts=16, num_rollouts=16)
def dr_kernel(
    *,
    # "code" (half of the paper's) or "paper".
    variant: str = "code",
    # Largest speedup that is rewarded.
    cap: float = 3.0,
    # Whether a wrong program that ran is rewarded for its speed.
    pay_incorrect: bool = False,
    # Share of the running time in generated code from which a right program may be kept.
    tau: float = 0.3,
    # Further share over which the probability of keeping it rises to 1; 0: a hard cut.
    width: float = 0.1,
    # Standard deviation of the last turns' rewards that a prompt must exceed; 0: any but 0.
    min_std: float = 1e-3,
    **parent: Any,
) -> Algorithm:
    """Dr. Kernel: Reinforcement Learning Done Right for Triton Kernel Generations (all of it).

    arXiv 2602.05885. Code: hkust-nlp/KernelGYM (8b_trloo_mrs_pr_prs.sh). Parent: mrs.
    Status: exact.

    Family: turns.
    In short: trloo, mrs and prs over turns.
    Choose it when: an environment times the policy's program after every turn, and reports how much
    of the time is spent in the policy's own code.
    Equation: r_{i,k} = (C + min(speedup, cap) + PR) / 2 of a turn's right program, else 0; A of
    trloo; a rollout is trained on if lo <= w_i <= hi, a turn of it unless a token vetoes it, and a
    right, non-decoy program's turn with probability clip((PR - tau) / width, 0, 1).
    Differs from the parent: rewards are computed from each turn's profile; lazy right turns are
    dropped at random; prompts whose last turns earn alike are dropped.
    Differs from the paper: 1. the environment is yours, or kernel_timing, a model of time in place
    of a GPU; 2. groups whose answers were all cut off are not dropped; 3. the code divides the loss
    by 1000, which changes gradient clipping but not a step of Adam. The equation drops wrong
    programs by the same rule, the code (here) keeps them.
    Try: gamma, tau, cap, pay_incorrect (true: as in the code).
    """
    algorithm = mrs(**parent)
    pay = RewardProfiledSpeed(variant, cap, pay_incorrect=pay_incorrect)
    return dataclasses.replace(
        algorithm,
        reward=(*algorithm.reward, Use(NoteTurnProfiles()), Use(pay, PAID)),
        curation=(Use(DropUniformStarts(min_std, max_rounds=1, last=True), LAST),),
        selection=(*algorithm.selection, Use(DropUnprofiledRollouts(tau, width), DRAWN)),
    )
