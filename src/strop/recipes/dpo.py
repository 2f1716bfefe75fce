"""Preference optimisation on pairs of given answers, with and without a reference."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Term, Use
from strop.parts.loss.bound.follow_log_likelihood import FollowLogLikelihood
from strop.parts.loss.bound.prefer_by_likelihood import PreferByLikelihood
from strop.parts.loss.bound.prefer_over_reference import PreferOverReference
from strop.parts.rollout.read_answers import ReadAnswers
from strop.parts.sampling.draw_in_shuffled_order import DrawInShuffledOrder
from strop.parts.selection.keep_preferred import KeepPreferred
from strop.recipes._base import average, with_policy
from strop.recipes.sft import sft

PAIR = ("chosen", "rejected")


def dpo(
    *,
    beta: float = 0.1,
    # "sigmoid", "hinge" or "ipo".
    loss_type: str = "sigmoid",
    label_smoothing: float = 0.0,
    # Weight of the reference's log-probabilities; 0 is no reference, 1 is DPO.
    reference_weight: float = 1.0,
    num_prompts: int = 32,
) -> Algorithm:
    """Direct Preference Optimization: Your Language Model is Secretly a Reward Model.

    arXiv 2305.18290, eq. 7. Code: eric-mitchell/direct-preference-optimization. Parent: sft.
    Status: exact.

    Family: demonstrations.
    In short: preference pairs with a reference.
    Choose it when: you have pairs of a better and a worse answer instead of a reward function, and
    memory for a reference model.
    Equation: loss = -mean over pairs of log sigmoid(beta (d_chosen - d_rejected)),
    d = sum_t (logp_t - logp_ref_t) over the answer.
    Differs from the parent: answers come in pairs, from the columns `chosen` and `rejected`, and
    only their difference counts.
    Differs from the paper: no.
    Try: beta (0.01 to 0.5), loss_type ("ipo"), training.lr (5e-7 to 5e-6).
    """
    objective = PreferOverReference(beta, loss_type, label_smoothing, reference_weight)
    return _on_pairs(num_prompts, objective)


def simpo(
    *,
    beta: float = 2.0,
    # The margin, nats a token; the paper's gamma divided by beta.
    gamma_beta_ratio: float = 0.25,
    # The paper's gamma, in place of gamma_beta_ratio; 0: use gamma_beta_ratio.
    gamma: float = 0.0,
    # "sigmoid" or "hinge".
    loss_type: str = "sigmoid",
    label_smoothing: float = 0.0,
    # Weight of a supervised term on the chosen answers.
    sft_weight: float = 0.0,
    num_prompts: int = 32,
) -> Algorithm:
    """SimPO: Simple Preference Optimization with a Reference-Free Reward.

    arXiv 2405.14734, eq. 6. Code: princeton-nlp/SimPO. Parent: dpo. Status: exact.

    Family: demonstrations.
    In short: preference pairs, no reference.
    Choose it when: preference pairs are given, and a reference does not fit into memory or dpo has
    made answers too long.
    Equation: loss = -mean over pairs of log sigmoid(beta (a_chosen - a_rejected) - gamma),
    a = mean_t logp_t over the answer.
    Differs from the parent: means over tokens instead of sums, a margin, and no reference.
    Differs from the paper: no.
    Try: beta (2 to 10), gamma_beta_ratio (0.1 to 0.8), training.lr (3e-7 to 1e-6).
    """
    margin = gamma / beta if gamma else gamma_beta_ratio
    objective = PreferByLikelihood(beta, margin, loss_type, label_smoothing)
    algorithm = _on_pairs(num_prompts, objective)
    if not sft_weight:
        return algorithm
    imitate = Term(
        "sft",
        Use(FollowLogLikelihood()),
        average("token-mean"),
        on=Use(KeepPreferred()),
        coef=sft_weight,
    )
    return dataclasses.replace(algorithm, terms=(*algorithm.terms, imitate))


def _on_pairs(num_prompts: int, objective: Any) -> Algorithm:
    """The supervised loop over pairs of answers, with another objective."""
    return dataclasses.replace(
        with_policy(sft(), objective=Use(objective), average=average("prompt-mean")),
        sampling=(Use(DrawInShuffledOrder(num_prompts, num_rollouts=len(PAIR))),),
        rollout=Use(ReadAnswers(answers=PAIR)),
    )
