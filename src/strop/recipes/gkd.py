"""Distils a teacher's whole distribution on the policy's own answers."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Term, Use
from strop.parts.advantage.credit.spread_evenly import SpreadEvenly
from strop.parts.loss.penalty.penalise_full_kl_to_reference import PenaliseFullKlToReference
from strop.recipes._base import CLIP, ESTIMATOR, average
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo


@inherits(grpo, without=(*ESTIMATOR, *CLIP, "beta"), num_rollouts=1)
def gkd(
    *,
    # "jensen_shannon", "reverse" or "forward".
    divergence: str = "jensen_shannon",
    # Share of the teacher in the mixture of "jensen_shannon".
    beta: float = 0.5,
    # Tokens of the vocabulary that the sums run over; 0: all.
    top_k: int = 0,
    # Whose likeliest tokens these are: "reference" (the teacher's) or "current".
    top_of: str = "reference",
    # How the other tokens are treated: as one further token ("tail") or dropped ("renormalise").
    others: str = "tail",
    aggregation: str = "token-mean",
    **parent: Any,
) -> Algorithm:
    """On-Policy Distillation of Language Models: Learning from Self-Generated Mistakes.

    arXiv 2306.13649, eq. 1. Code: none released (TRL carries it). Parent: grpo. Status: exact.

    Family: rewards.
    In short: full-distribution distillation.
    Choose it when: a better model with the same tokenizer fits into memory: its whole distribution
    at every token of the policy's answers says more than the sampled token, without noise.
    Equation: loss = mean_t D(teacher || policy)_t; jensen_shannon: beta KL(p || m) + (1 - beta)
    KL(q || m), m = beta p + (1 - beta) q, p the teacher's and q the policy's distribution;
    reverse: KL(q || p); forward: KL(p || q). The teacher is the reference: model.reference=FOLDER.
    Differs from the parent: no reward, no advantage: the divergence is the loss, over all tokens.
    Differs from the paper: answers are the policy's own (there a share lambda of them, the others
    from a data set).
    Try: divergence ("reverse", "forward"), beta, top_k (20), num_prompts.
    """
    algorithm = grpo(aggregation=aggregation, **parent)
    part = PenaliseFullKlToReference(divergence, beta, top_k, top_of, others)
    term = Term("distillation", Use(part), average(aggregation))
    return dataclasses.replace(algorithm, advantage=(Use(SpreadEvenly()),), terms=(term,))
