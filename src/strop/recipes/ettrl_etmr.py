"""Learning from the majority vote of a tree of answers, without labels."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.reward.reward_majority_answer import RewardMajorityAnswer
from strop.parts.rollout.fork_at_entropy_peaks import ForkAtEntropyPeaks
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo


@inherits(grpo, without=("num_rollouts",))
def ettrl_etmr(
    *,
    # Whole answers of a prompt, the trunks.
    M: int = 12,
    # Places at which a trunk forks, those of largest entropy.
    N: int = 2,
    # New continuations at each of them.
    B: int = 2,
    # Whether the vote of a rollout for itself is left out.
    leave_one_out: bool = False,
    **parent: Any,
) -> Algorithm:
    """ETTRL: Balancing Exploration and Exploitation in LLM Test-Time RL Via Entropy Mechanism.

    arXiv 2508.11356 (entropy-fork tree majority rollout). Code: none found. Parent: grpo.
    Status: partial.

    Family: rewards. Model: tiny-worked.
    In short: majority vote of forked answers.
    Choose it when: prompts have no labels, many votes are wanted, and answers are long enough that
    sharing prefixes saves much of the sampling.
    Equation: R_i = [answer_i is the majority's of all M (1 + B N) leaves]; B leaves keep a trunk's
    tokens before each of its N largest entropies; A_i = grpo's over the leaves. Tokens sampled:
    about (1 + B N / 2) / (1 + B N) of as many plain answers.
    Differs from the parent: the label is the majority answer of the rollouts; most of these
    continue from a prefix of another.
    Differs from the paper: 1. it says neither whether the forked token may come again (it may) nor
    how far forks lie apart (anywhere); 2. its other half, ettrl_ear's advantages, is a recipe of
    its own: leaves of a trunk count as votes and as samples of their own here.
    Try: M (4) with N and B, leave_one_out, advantage of ettrl_ear.
    """
    algorithm = grpo(num_rollouts=M, **parent)
    return dataclasses.replace(
        algorithm,
        rollout=Use(ForkAtEntropyPeaks(num_places=N, num_branches=B)),
        reward=(*algorithm.reward, Use(RewardMajorityAnswer(leave_one_out))),
    )
