"""Online rollouts over recorded expert trajectories, credited by step and by episode."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.advantage.baseline.centre_turns import CentreTurns
from strop.parts.advantage.baseline.subtract_group_mean import SubtractGroupMean
from strop.parts.advantage.credit.discount_turn_rewards import DiscountTurnRewards
from strop.parts.advantage.credit.spread_turns import SpreadTurns
from strop.parts.advantage.scale.divide_by_group_std import DivideByGroupStd
from strop.parts.curation.drop_uniform_starts import DropUniformStarts
from strop.parts.rollout.play_turns import PlayTurns
from strop.recipes._base import ESTIMATOR, check_choice
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo

SCALES = {"mean_norm": "none", "mean_std_norm": "unbiased"}


@inherits(grpo, without=ESTIMATOR, aggregation="token-mean", num_rollouts=8)
def ui_s1_semi_online(
    *,
    # "paper" or "code": where returns stop, and what the episode's advantage compares.
    variant: str = "paper",
    # Discount of a turn.
    gamma: float = 0.5,
    # Weight of the episode's advantage.
    w_E: float = 1.0,
    # Weight of the step's advantage.
    w_S: float = 1.0,
    # "mean_norm" (centred) or "mean_std_norm" (and divided by the deviation).
    mode: str = "mean_std_norm",
    # Deviation of the returns of turn 0 that a prompt must exceed.
    eta: float = 0.3,
    eps: float = 1e-6,
    **parent: Any,
) -> Algorithm:
    """UI-S1: Advancing GUI Automation via Semi-online Reinforcement Learning.

    arXiv 2509.11543. Code: X-PLUG/MobileAgent (UI-S1). Parent: grpo. Status: exact.

    Family: turns.
    In short: online rollouts on expert traces.
    Choose it when: you have recorded expert trajectories and no live environment (user interfaces),
    and imitating step by step breaks down over a whole task.
    Equation: A = w_E A_E + w_S A_S; A_S = z(D_{i,k}) among the prompt's rollouts at the same turn,
    D_{i,k} = sum_{j = k}^{end} gamma^(j - k) r_{i,j}, end the first action that the expert did not
    take; A_E = z of the rollouts' sums ("code": of each turn's own reward over the prompt's turns).
    Differs from the parent: credit by turn and episode; prompts whose rollouts start alike are
    replaced; all tokens weigh the same.
    Differs from the paper: 1. recordings are texts, not screens (strop.environments.replay:Replay,
    which rewrites each turn's context); 2. patches are the expert's action without a thought, not
    one of the policy's or the data's; 3. the KL penalty towards the reference is off unless beta >
    0 (1e-4 there). In "code" a wrong action ends the returns before it.
    Try: gamma, w_S, eta, data.task_config.eps_patch (1 or 2; -1: no limit).
    """
    check_choice("ui_s1_semi_online", ("paper", "code"), variant=variant)
    check_choice("ui_s1_semi_online", SCALES, mode=mode)
    paper, scale = variant == "paper", SCALES[mode]
    returns = Use(DiscountTurnRewards(gamma, stop="after" if paper else "before"))
    divide = (Use(DivideByGroupStd(eps)),) if scale != "none" else ()
    rows = CentreTurns("group", scale=scale, eps=eps, singleton="raw")
    episode = (Use(SubtractGroupMean()), *divide)
    if not paper:
        second = (("values_K", "reward_K"), ("advantage_K", "second_advantage_K"))
        episode = (Use(rows, columns=second),)
    algorithm = grpo(**parent)
    return dataclasses.replace(
        algorithm,
        rollout=Use(PlayTurns()),
        reward=(*algorithm.reward, returns),  # the filter reads them before the advantages do
        curation=(Use(DropUniformStarts(eta)),),
        advantage=(
            *episode,
            returns,
            Use(CentreTurns("index", scale=scale, eps=eps)),
            Use(SpreadTurns(w_S, *((0.0, w_E) if paper else (w_E, 0.0)))),
        ),
    )
