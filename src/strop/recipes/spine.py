"""Learning from majority votes, on fork tokens only, with their entropy held in a band."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Term, Use
from strop.parts.loss.penalty.hold_entropy_between_quantiles import HoldEntropyBetweenQuantiles
from strop.parts.reward.reward_majority_answer import RewardMajorityAnswer
from strop.parts.selection.keep_high_entropy_tokens import KeepHighEntropyTokens
from strop.recipes._base import average
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo


@inherits(grpo, num_rollouts=8)
def spine(
    *,
    # Share of the tokens, by entropy, that is trained on.
    rho: float = 0.2,
    # Weight of the penalty for leaving the band, per nat; 0: none.
    band_weight: float = 0.01,
    # Quantiles of a rollout's fork entropies between which they are held.
    band_low: float = 0.1,
    band_high: float = 0.5,
    # Whether the vote of a rollout for itself is left out.
    leave_one_out: bool = False,
    aggregation: str = "token-mean",
    **parent: Any,
) -> Algorithm:
    """SPINE: Token-Selective Test-Time RL with Entropy-Band Regularization.

    arXiv 2511.17938. Code: JianghaoWu/SPINE (not obtainable). Parent: grpo. Status: partial.

    Family: rewards.
    In short: majority vote, fork tokens only.
    Choose it when: prompts have no labels and learning from votes makes answers short and alike;
    only few tokens are trained on, and their entropy is kept in a band.
    Equation: R_i = [answer_i is its group's majority answer]; loss = agg over F of grpo's + beta
    KL(start), + band_weight mean_F (relu(H_t - hi_i) + relu(lo_i - H_t)), F the rho tokens of
    highest entropy, lo_i and hi_i quantiles of H over F in rollout i.
    Differs from the parent: the label is the majority answer; only fork tokens are trained on;
    their entropy has a band.
    Differs from the paper: inferred are the scope of F (an update), band_weight and beta (0), which
    were not found; its second version picks forks by a rule that was not found either. Half of the
    fork tokens always lie above the band, so that it pulls entropy down.
    Try: rho (1: all tokens), band_weight (0: none), beta. The given rewards are only logged.
    """
    algorithm = grpo(aggregation=aggregation, **parent)
    forks = Use(KeepHighEntropyTokens(rho)) if rho < 1 else None
    band = Term(
        "band",
        objective=Use(HoldEntropyBetweenQuantiles((band_low, band_high))),
        average=average("token-mean"),
        coef=band_weight,
    )
    terms = (*algorithm.terms, *((band,) if band_weight else ()))
    vote = Use(RewardMajorityAnswer(leave_one_out))
    return dataclasses.replace(
        algorithm,
        reward=(*algorithm.reward, vote),
        terms=tuple(dataclasses.replace(term, on=forks) for term in terms),
    )
