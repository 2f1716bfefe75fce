"""Learning from right answers, from wrong ones, or from both by weights of their own."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.advantage.credit.praise_and_blame import PraiseAndBlame
from strop.recipes._base import ESTIMATOR, check_choice
from strop.recipes._door import door
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo

# The paper's names, those of its code, and whether right and wrong answers count.
MODES = {
    "weighted": (True, True), "w_reinforce": (True, True),
    "psr": (True, False), "positive": (True, False),
    "nsr": (False, True), "negative": (False, True),
}  # fmt: skip


@door(parameters={"advantage": "mode", "positive_advantage_weight": "positive_weight"})
@inherits(grpo, without=ESTIMATOR, aggregation="token-mean", num_rollouts=8)
def psr_nsr(
    *,
    # "psr" (right answers alone), "nsr" (wrong ones alone) or "weighted" (W-REINFORCE).
    mode: str = "weighted",
    # Weight of right answers beside wrong ones; "psr" has 1.
    positive_weight: float = 0.1,
    # Discount of a token, for right answers only.
    gamma: float = 1.0,
    **parent: Any,
) -> Algorithm:
    """The Surprising Effectiveness of Negative Reinforcement in LLM Reasoning (PSR, NSR).

    arXiv 2506.01347. Code: TianHongZXY/RLVR-Decomposed. Parent: grpo. Status: exact.

    Family: baselines.
    In short: mostly learns from wrong answers.
    Choose it when: rewards say right or wrong, and pass@k of many samples must not fall: wrong
    answers are unlearned, right ones hardly reinforced.
    Equation: A_t = positive_weight if R_i >= 1, else -1 (psr: 1 and 0, nsr: 0 and -1); loss as the
    parent's, all tokens alike.
    Differs from the parent: no baseline and no deviation, so groups with equal outcomes are trained
    on too; a weight for each outcome.
    Differs from the paper: no; its code leaves rewards that are neither right nor wrong as they
    are.
    Try: mode ("nsr"), positive_weight, num_rollouts; watch pass@k at several k (`strop eval
    --k 1,8,64`).
    """
    check_choice("psr_nsr", MODES, mode=mode)
    right, wrong = MODES[mode]
    praise = (positive_weight if wrong else 1.0) if right else 0.0
    credit = PraiseAndBlame(praise, float(wrong), gamma)
    return dataclasses.replace(grpo(**parent), advantage=(Use(credit),))
