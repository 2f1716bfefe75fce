"""Credits the segments of an answer by values estimated from fresh continuations."""

import dataclasses
from typing import Any

import torch

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.advantage.credit.credit_value_steps import CreditValueSteps
from strop.parts.advantage.weight.whiten_over_batch_tokens import WhitenOverBatchTokens
from strop.parts.loss.ratio.ratio_per_token import RatioPerToken
from strop.parts.probe.cut_at_unlikely_tokens import CutAtUnlikelyTokens
from strop.parts.probe.estimate_values_by_continuing import EstimateValuesByContinuing
from strop.parts.selection.keep_marked_tokens import KeepMarkedTokens
from strop.recipes._base import ESTIMATOR, average, with_policy, with_term
from strop.recipes._door import door
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo


@door(
    tensors={
        "probs": ("logp_beh", torch.log),
        # [B, T + 1], the prompt's value first; the last is that of the whole answer
        "values_after_position_minus1_first": ("prefix_value", lambda value: value[:, :-1]),
    }
)
@inherits(
    grpo, without=ESTIMATOR, aggregation="token-mean", beta=1e-4, num_rollouts=8, num_minibatches=4
)
def spo_chain(
    *,
    # Probability below which a token is unlikely: answers are cut there, and only these tokens are
    # trained on.
    p0: float = 0.9,
    # Unlikely tokens from one cut to the next.
    interval: int = 5,
    # Continuations sampled from each cut; 9 for short answers, 4 for long ones.
    num_continuations: int = 9,
    # Added to the variance of the whitening.
    whiten_eps: float = 1e-8,
    **parent: Any,
) -> Algorithm:
    """Segment Policy Optimization: Effective Segment-Level Credit Assignment in RL for LLMs.

    arXiv 2505.23564 (SPO-chain). Code: AIFrameResearch/SPO. Parent: grpo. Status: exact.

    Family: credit.
    In short: segment values by continuations.
    Choose it when: you need to know which segment of an answer won or lost it, and can afford fresh
    continuations from inside each answer.
    Equation: A_t = V(next cut) - V(last cut), V(cut) = mean outcome of n continuations from it,
    V(end) = the reward; whitened over the tokens with p_old < p0; loss as grpo's on these alone.
    Differs from the parent: the baseline is a value at each cut in place of the group's mean,
    tokens of which the policy was certain are neither trained on nor counted, and the KL penalty
    towards the reference is summed over an answer's tokens, its mean taken over answers; four
    updates a step.
    Differs from the paper: advantages are whitened over the step (its code: over a micro-batch of
    all processes), and no update is skipped (there where the mean ratio exceeds 10). As in its
    code, the penalty is a sum, tokens before the first unlikely one get 0, and a continuation that
    is cut off counts 0.
    Try: interval (1 to 10), num_continuations, p0.
    """
    cut = Use(CutAtUnlikelyTokens(p0, interval))
    algorithm = with_policy(grpo(**parent), ratio=Use(RatioPerToken(clamp_nats=10.0)))
    return dataclasses.replace(
        with_term(algorithm, "kl", average=average("seq-mean-token-sum")),
        probes=(cut, Use(EstimateValuesByContinuing(num_continuations))),
        advantage=(
            cut,
            Use(CreditValueSteps()),
            unlikely(p0),
            Use(WhitenOverBatchTokens(whiten_eps), columns=(("mask_T", "learning_T"),)),
        ),
        selection=(Use(KeepMarkedTokens()),),
    )


def unlikely(p0: float) -> Use:
    """Marks all tokens of a probability below p0, which alone learn."""
    every = CutAtUnlikelyTokens(p0, interval=1)
    return Use(every, (("cut_T", "learning_T"),), "mark_unlikely_tokens")
