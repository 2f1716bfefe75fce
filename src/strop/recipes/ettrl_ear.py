"""Learning from majority votes, without labels, that damps uncertain rollouts."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.advantage.scale.favour_sure_rollouts import FavourSureRollouts
from strop.parts.advantage.weight.limit_size import LimitSize
from strop.parts.reward.reward_majority_answer import RewardMajorityAnswer
from strop.recipes._base import check_choice
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo


@inherits(grpo)
def ettrl_ear(
    *,
    # "residual" (by the rollout's entropy, the paper's main form) or "clip".
    form: str = "residual",
    # Largest size of an advantage, where form is "clip".
    b: float = 2.0,
    # Whether a factor that would flip an advantage's sign is set to 0.
    keep_sign: bool = False,
    # Whether the vote of a rollout for itself is left out.
    leave_one_out: bool = False,
    **parent: Any,
) -> Algorithm:
    """ETTRL: Balancing Exploration and Exploitation in LLM Test-Time RL Via Entropy Mechanism.

    arXiv 2508.11356 (entropy-based advantage reshaping). Code: none found. Parent: grpo.
    Status: partial.

    Family: rewards.
    In short: majority vote weighted by entropy.
    Choose it when: prompts have no labels, the majority answer serves as one, and uncertain votes
    should count less at first.
    Equation: R_i = [answer_i is its group's majority answer]; A_i = grpo's (1 + (mean_g H - H_i) /
    mean_g H), H_i the mean entropy of rollout i; or, form "clip", min(max(grpo's, -b), b).
    Differs from the parent: the label is the majority answer of the rollouts; uncertain rollouts
    count less.
    Differs from the paper: inferred from two summaries are the mean over the group and 1e-8 in the
    division. Above twice the mean entropy the factor is negative, as in the equation, unless
    keep_sign. Its tree rollouts, the second half of the paper, are a recipe of their own.
    Try: keep_sign, form, num_rollouts (64: better labels). The given rewards are only logged.
    """
    check_choice("ettrl_ear", ("residual", "clip"), form=form)
    algorithm = grpo(**parent)
    *scaled, spread = algorithm.advantage
    chain = (*scaled, Use(FavourSureRollouts(keep_sign)), spread)
    if form == "clip":
        chain = (*scaled, spread, Use(LimitSize(b)))
    vote = Use(RewardMajorityAnswer(leave_one_out))
    return dataclasses.replace(algorithm, reward=(*algorithm.reward, vote), advantage=chain)
