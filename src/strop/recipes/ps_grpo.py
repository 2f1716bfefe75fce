"""Group relative policy optimisation that is rewarded for the same answer to every wording."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.reward.reward_agreement_in_sets import RewardAgreementInSets
from strop.parts.sampling.add_paraphrases import AddParaphrases
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo


@inherits(grpo, std="biased", num_prompts=8, num_rollouts=4)
def ps_grpo(
    *,
    # Weight of agreement with the answers to other wordings.
    agreement: float = 1.0,
    # Weight of the run's own rewards.
    label: float = 1.0,
    # "bleu" (words and pairs of words) or "exact".
    similarity: str = "bleu",
    **parent: Any,
) -> Algorithm:
    """Improving Consistency in Retrieval-Augmented Systems with Group Similarity Rewards.

    arXiv 2510.04392. Code: none found. Parent: grpo. Status: partial.

    Family: rewards.
    In short: same answer to every wording.
    Choose it when: answers should not depend on how a question is worded, and the data has several
    wordings of each.
    Equation: R_ij = agreement * mean_{u != i, m} sim(o_ij, o_um) + label * outcome_ij for rollout
    j of wording i; advantages within each wording.
    Differs from the parent: all wordings of a question (equal `set` in the data) are sampled
    together, and an answer is rewarded by its similarity to the answers to the others.
    Differs from the paper: read through notes: both weights, the deviation (by 1/n), its constant
    and the KL penalty towards the reference (none) are ours; num_prompts counts questions.
    Try: similarity ("exact" for short answers), label (0: agreement alone), num_rollouts.
    """
    algorithm = grpo(**parent)
    return dataclasses.replace(
        algorithm,
        sampling=(*algorithm.sampling, Use(AddParaphrases())),
        reward=(*algorithm.reward, Use(RewardAgreementInSets(agreement, label, similarity))),
    )
