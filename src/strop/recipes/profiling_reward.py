"""Leave-one-out advantages of programs that are rewarded for the speed of their own code."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.reward.note_profiles import NoteProfiles
from strop.parts.reward.reward_profiled_speed import RewardProfiledSpeed
from strop.recipes._inherit import inherits
from strop.recipes.rloo import rloo


@inherits(rloo, clip_high=0.28)
def profiling_reward(
    *,
    # "code" (half of the paper's) or "paper".
    variant: str = "code",
    # Largest speedup that is rewarded.
    cap: float = 3.0,
    # Reward of a program that failed, is wrong or is a decoy.
    penalty: float = 0.0,
    # Whether a wrong program that ran is rewarded for its speed.
    pay_incorrect: bool = False,
    # Outcome from which a program is correct.
    success: float = 1.0,
    **parent: Any,
) -> Algorithm:
    """Dr. Kernel: Reinforcement Learning Done Right for Triton Kernel Generations (reward).

    arXiv 2602.05885. Code: hkust-nlp/KernelGYM. Parent: rloo. Status: exact.

    Family: rewards.
    In short: speed of the policy's own code.
    Choose it when: programs should become fast, and a profiler reports how much of the time is
    spent in code that the policy wrote.
    Equation: R = (C + min(speedup, cap) + PR) / 2 for correct programs (code; the paper does not
    halve), penalty for failed, wrong and decoy ones. PR: time in generated kernels / total time.
    Differs from the parent: the reward; a wider clip above.
    Differs from the paper: answers of one turn (its leave-one-out per turn is then rloo); the code
    also rewards wrong programs that ran for their speed (pay_incorrect). The reward function gives
    1 or 0 and logs speedup, profiled and decoy with log_extra: docs/REWARDS.md shows one.
    Try: variant, cap, pay_incorrect.
    """
    algorithm = rloo(**parent)
    shaping = RewardProfiledSpeed(variant, cap, penalty, pay_incorrect)
    reward = (*algorithm.reward, Use(NoteProfiles(success=success)), Use(shaping))
    return dataclasses.replace(algorithm, reward=reward)
