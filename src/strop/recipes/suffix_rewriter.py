"""A policy that learns to rewrite unsafe texts and to copy safe ones."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.reward.reward_copies_of_safe_text import RewardCopiesOfSafeText
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo


@inherits(grpo)
def suffix_rewriter(**parent: Any) -> Algorithm:
    """Self-Improving Pretraining: using post-trained models to pretrain better models.

    arXiv 2601.21343, sec. 2 (the rewriter). Code: none released. Parent: grpo. Status: partial.

    Family: rewards.
    In short: copies safe text, rewrites unsafe.
    Choose it when: texts should be cleaned before self_improving_pretraining, and a judge can score
    how good and how safe a rewritten text is.
    Equation: R = 1[answer = the original text] where the row's `safe` is true, else the reward
    functions' weighted sum: quality and safety with reward.weights=[0.5, 0.5]; then grpo's.
    Differs from the parent: rows marked `safe` are rewarded for an exact copy of their
    `completion`.
    Differs from the paper: group size, clip and the learning rate of this training were not found;
    several votes of a judge are left to the reward function; a prompt has to contain prefix,
    original text and the instruction. Validation scores by the reward functions only.
    Try: num_rollouts, reward.weights.
    """
    algorithm = grpo(**parent)
    copies = Use(RewardCopiesOfSafeText())
    return dataclasses.replace(algorithm, reward=(*algorithm.reward, copies))
