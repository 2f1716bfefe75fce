"""Learns self-correction over two attempts: first the second attempt is trained, then both."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm, Phase, Phases, read_until
from strop.method.part import Term, Use
from strop.parts.advantage.credit.spread_evenly import SpreadEvenly
from strop.parts.loss.bound.follow_advantage import FollowAdvantage
from strop.parts.loss.penalty.penalise_kl_to_reference import PenaliseKlToReference
from strop.parts.reward.reward_improvement import RewardImprovement
from strop.parts.rollout.sample_two_attempts import FIRST, SECOND, SampleTwoAttempts
from strop.parts.selection.keep_rollouts_of_stage import KeepRolloutsOfStage
from strop.recipes._base import CLIP, ESTIMATOR, average
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo

NAMES = ("first", "policy")  # of the terms, by attempt


def _follow(attempt: int) -> Term:
    """The policy gradient of an attempt, by the sum over its tokens."""
    one = Use(KeepRolloutsOfStage(attempt))
    return Term(NAMES[attempt], Use(FollowAdvantage()), average("seq-mean-token-sum"), on=one)


def _hold(attempt: int, beta: float) -> tuple[Term, ...]:
    """An attempt's divergence from the reference, with the gradient of its expectation."""
    if not beta:
        return ()
    name, kl = ("kl_first", "kl")[attempt], Use(PenaliseKlToReference(estimator="k1+"))
    one = Use(KeepRolloutsOfStage(attempt))
    return (Term(name, kl, average("seq-mean-token-sum"), on=one, coef=beta),)


@inherits(grpo, without=(*ESTIMATOR, *CLIP, "beta", "aggregation"))
def score_two_attempt(
    *,
    # Weight of the improvement in the reward of a second attempt, in the second phase.
    alpha: float = 10.0,
    # Weight of both attempts' divergence in the second phase, and of the first one's in the first.
    beta1: float = 0.01,
    beta2: float = 0.1,
    # Text between the attempts; {prompt} is the prompt; empty: one that the model can read.
    words: str = "",
    # When the first phase ends: a step, a share of the run, or a condition.
    until: float | str = 0.5,
    **parent: Any,
) -> Phases:
    """Training Language Models to Self-Correct via Reinforcement Learning (SCoRe).

    arXiv 2409.12917, eq. 3 and 4. Code: none released. Parent: grpo. Status: exact.

    Family: rewards.
    In short: self-correction in two attempts.
    Choose it when: answers should be corrected in a second attempt, and the policy is strong enough
    to tell right from wrong in its own answer.
    Equation: stage I: max E[r(y2)] - beta2 KL(y1); stage II: max E[r(y1) + r(y2) + b] - beta1
    (KL(y1) + KL(y2)), b = alpha (r(y2) - r(y1)) for y2 alone; loss: -mean sum_t r logp.
    Differs from the parent: two attempts, each credited with its own reward; no baseline, ratio or
    clip; two phases, the first of which trains only the second attempt.
    Differs from the paper: 1. phases change at half of the run; 2. the request to find the mistake
    is ours, and the prompt alone for the shipped models, whose tokenizer has no words; 3. no first
    attempt is sampled from the base model.
    Try: words, until, alpha (0: two-turn REINFORCE in stage II),
    advantage='subtract_group_mean | spread_evenly' (a baseline, for less noise).
    """
    common = dataclasses.replace(
        grpo(**parent),
        rollout=Use(SampleTwoAttempts(words=words)),
        advantage=(Use(SpreadEvenly()),),
    )

    def stage(weight: float, terms: tuple[Term, ...]) -> Algorithm:
        shaped = (*common.reward, Use(RewardImprovement(weight)))
        return dataclasses.replace(common, reward=shaped, terms=terms)

    kept, both = _hold(FIRST, beta2), (*_hold(SECOND, beta1), *_hold(FIRST, beta1))
    second = stage(alpha, (_follow(SECOND), _follow(FIRST), *both))
    first = stage(0.0, (_follow(SECOND), *kept))
    return Phases((Phase(first, read_until(until), "stage_1"), Phase(second, None, "stage_2")))
