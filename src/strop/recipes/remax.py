"""REINFORCE with the prompt's greedy answer as the baseline."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.advantage.baseline.subtract_greedy_reward import SubtractGreedyReward
from strop.parts.advantage.credit.spread_evenly import SpreadEvenly
from strop.parts.curation.drop_rollouts_of_stage import DropRolloutsOfStage
from strop.parts.reward.note_greedy_reward import NoteGreedyReward
from strop.parts.rollout.sample_with_greedy import SampleWithGreedy
from strop.recipes._inherit import inherits
from strop.recipes.rloo import rloo


@inherits(rloo, without=("singleton",))
def remax(**parent: Any) -> Algorithm:
    """ReMax: A Simple, Effective, and Efficient Reinforcement Learning Method for Aligning LLMs.

    arXiv 2310.10505. Code: liziniu/ReMax (verl carries it). Parent: rloo. Status: exact.

    Family: baselines.
    In short: greedy answer as the baseline.
    Choose it when: you want to train on one sampled answer a prompt, and one further greedy answer
    is cheaper than a group or a critic.
    Equation: A_i = R_i - R(greedy answer of the prompt);
    loss = -1/B sum_i sum_t min(rho A_i, clip(rho, 1 - clip_low, 1 + clip_high) A_i).
    Differs from the parent: each prompt is answered once more, greedily; that answer is scored the
    same way, is the baseline, and is removed from the batch before anything is computed from it.
    Differs from the paper: 1. beta is 0 (paper: a KL penalty in the reward); 2. a clip as in verl,
    without effect at one update per batch (verl's example: 4); 3. 16 samples a prompt (paper: 1).
    Try: num_rollouts (1), num_prompts (256), beta.
    """
    algorithm = rloo(**parent)
    price = algorithm.advantage[:-2]
    return dataclasses.replace(
        algorithm,
        rollout=Use(SampleWithGreedy()),
        reward=(*algorithm.reward, Use(NoteGreedyReward())),
        curation=(Use(DropRolloutsOfStage()),),
        advantage=(*price, Use(SubtractGreedyReward()), Use(SpreadEvenly())),
    )
