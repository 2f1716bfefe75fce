"""Rewards few windows of high entropy on easy prompts, and many on hard ones."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Term, Use
from strop.method.schedule import Schedule
from strop.parts.control.hold_kl_by_difficulty import HoldKlByDifficulty
from strop.parts.curation.drop_uniform_groups import DropUniformGroups
from strop.parts.loss.penalty.penalise_kl_by_difficulty import PenaliseKlByDifficulty
from strop.parts.reward.mark_open_windows import MarkOpenWindows
from strop.parts.reward.mark_windows_after_words import MarkWindowsAfterWords
from strop.parts.reward.reward_open_windows import RewardOpenWindows
from strop.recipes._base import average
from strop.recipes._inherit import inherits, refuse_unused
from strop.recipes.grpo import grpo


@inherits(grpo, clip_high=0.3, num_rollouts=8, num_minibatches=4)
def ares_aepo(
    *,
    # "paper" or "code": how windows change the reward.
    variant: str = "paper",
    # Tokens in a window.
    w: int = 4,
    # Words after which variant "code" counts windows, separated by spaces; "": any token.
    words: str = "",
    # Likeliest tokens over which variant "code" takes the entropy, all others being one more.
    num_top: int = 10,
    # Most that variant "code" adds to a reward or subtracts from it.
    alpha: float = 0.5,
    # Weight of the KL penalty, multiplied by the weight of each difficulty.
    beta: float = 0.01,
    # KL at which each difficulty is held, nats, and the steps between two adjustments; 0: not held.
    kl_target: float | Schedule = 0.01,
    kl_every: int = 100,
    # Weight of the penalty where windows (paper) or easy wrong answers (code) relax it.
    relax: float = 0.67,
    # Outcome from which an answer is right.
    success: float = 1.0,
    aggregation: str = "token-mean",
    **parent: Any,
) -> Algorithm:
    """ARES: Multimodal Adaptive Reasoning via Difficulty-Aware Token-Level Entropy Shaping (AEPO).

    arXiv 2510.08457, sec. 3.2. Code: shawn0728/ARES. Parent: grpo. Status: partial.

    Family: entropy.
    In short: entropy windows by difficulty.
    Choose it when: easy prompts get too much reasoning and hard ones too little, and you measure
    reasoning by its stretches of high entropy.
    Equation: R = R_acc - 1[wrong] lambda_d g_d(N - target_d), N = windows of high mean entropy, d
    the prompt's difficulty by its group's accuracy; loss = grpo's + beta beta_d r_t KL(ref).
    Differs from the parent: a reward by windows of high entropy; a KL penalty by difficulty, weaker
    in windows, whose weights are moved towards a target; groups whose rewards are all equal are
    dropped; all tokens weigh the same; four updates a step.
    Differs once: `plan.num_minibatches=4 training.lr=5e-3` (ares/change_mean != 0).
    Differs from the paper: targets are carried over from earlier steps (relative to its own batch
    lambda is always 0); their rate is ours, and so is r_t (the code's 0.67). It does not branch
    rollouts. variant "code": its windows and rewards; its 174 words are those of its repository or
    of `strop.evaluation.high_entropy_words`, which finds yours in a run; its own way is unstated.
    Try: w, kl_target, variant="code" with alpha, words.
    """
    algorithm = grpo(aggregation=aggregation, **parent)
    shaping = RewardOpenWindows(variant, alpha, relax, success)
    found: Any = MarkWindowsAfterWords(w, words, num_top)
    if variant != "code":
        found = MarkOpenWindows(w)
        given = {"words": words, "num_top": num_top, "alpha": alpha}
        refuse_unused(f"ares_aepo(variant={variant!r})", given, ares_aepo, *given)
    kl = Term("kl", Use(PenaliseKlByDifficulty()), average(aggregation), coef=beta)
    hold = (Use(HoldKlByDifficulty(target=kl_target, every=kl_every)),) if kl_every else ()
    return dataclasses.replace(
        algorithm,
        reward=(*algorithm.reward, Use(found), Use(shaping)),
        curation=(Use(DropUniformGroups(max_rounds=1)),),
        terms=(*algorithm.terms, *((kl,) if beta else ())),
        control=hold if beta else (),
    )
