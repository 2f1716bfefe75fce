"""Group relative policy optimisation that rewards right answers with flaws less."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.reward.penalise_flawed_answers import PenaliseFlawedAnswers
from strop.parts.reward.rescale_reward import RescaleReward
from strop.recipes._inherit import inherits
from strop.recipes.dapo import dapo


@inherits(dapo, dual_clip_c=10.0, dynamic_sampling=False, num_rollouts=8)
def fapo(
    *,
    # What a flaw costs, where right and wrong are 1 and -1.
    penalty: float = 1.0,
    # Outcome of the reward functions from which an answer is right.
    success: float = 1.0,
    **parent: Any,
) -> Algorithm:
    """FAPO: Flawed-Aware Policy Optimization for Efficient and Reliable Reasoning.

    arXiv 2510.22543, eq. 5. Code: yyDing1/FAPO, verl-project/verl-recipe. Parent: dapo.
    Status: exact.

    Family: rewards.
    In short: flawed right answers earn less.
    Choose it when: answers reach right results by wrong steps, and you have a judge that finds the
    first wrong step.
    Equation: R_i = 1 - penalty where the answer is right and the judge finds a wrong step, 1 where
    it is right and sound, -1 where it is wrong; then A, clip and length penalty as in dapo.
    Differs from the parent: right answers with a flaw earn less, so that they are pushed down once
    sound ones are in the majority; rewards are -1 and 1; uniform groups are kept.
    Differs from the paper: no. The judge is a reward function called `flaw` (index of the first
    wrong step, or -1): `strop.rewards.first_error` has the reward for training such a judge, and
    queries a frozen one (docs/REWARDS.md).
    Try: penalty (0: dapo without dynamic sampling), num_rollouts.
    """
    algorithm = dapo(**parent)
    score, *others = algorithm.reward
    flaws = PenaliseFlawedAnswers(penalty, success)
    reward = (score, Use(RescaleReward()), Use(flaws), *others)
    return dataclasses.replace(algorithm, reward=reward)
