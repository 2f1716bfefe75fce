"""Group advantages of whole episodes and of the steps that started from the same state."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.advantage.baseline.centre_turns import CentreTurns
from strop.parts.advantage.baseline.subtract_group_mean import SubtractGroupMean
from strop.parts.advantage.credit.discount_turn_rewards import DiscountTurnRewards
from strop.parts.advantage.credit.spread_turns import SpreadTurns
from strop.parts.advantage.scale.divide_by_group_std import DivideByGroupStd
from strop.parts.probe.merge_similar_states import MergeSimilarStates
from strop.parts.rollout.play_turns import PlayTurns
from strop.recipes._base import ESTIMATOR, check_choice
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo

SCALES = {"mean_norm": "none", "mean_std_norm": "unbiased"}
SECOND = (("advantage_K", "second_advantage_K"),)


@inherits(grpo, without=ESTIMATOR, aggregation="token-mean")
def gigpo(
    *,
    # Discount of a turn.
    gamma: float = 0.95,
    # Weight of the advantage among turns that started from the same state.
    w: float = 1.0,
    # "mean_norm" (centred) or "mean_std_norm" (and divided by the deviation).
    mode: str = "mean_std_norm",
    # Penalty on a turn with an invalid action (paper: 0.1).
    invalid_penalty: float = 0.0,
    # Whether an episode counts once per turn ("rows", the code) or once ("trajectories", paper).
    episode_statistics: str = "rows",
    # Ratio of matching tokens from which two observations are the same state; 0: equal states only.
    similarity_threshold: float = 0.0,
    eps: float = 1e-6,
    **parent: Any,
) -> Algorithm:
    """Group-in-Group Policy Optimization for LLM Agent Training.

    arXiv 2505.10978, eq. 3, 6 to 8. Code: langfengQ/verl-agent. Parent: grpo. Status: exact.

    Family: turns.
    In short: episode and same-state advantages.
    Choose it when: only the end of an episode is rewarded, and rollouts of a task pass through the
    same states (pages, rooms, boards).
    Equation: A = A_E + w A_S; A_E = (R_i - mean_g) / (std_g + eps) of whole episodes; A_S the same
    of the discounted return D_k = r_k + gamma D_{k+1} among all turns of the group that started
    from the same state.
    Differs from the parent: turns that started from the same state are compared with each other as
    well; all tokens weigh the same.
    Differs from the paper: means and deviations of episodes are over turns, as in the code, unless
    episode_statistics is "trajectories"; then the penalty on invalid actions is left out of A_E.
    The KL penalty is off unless beta > 0 (0.01 there). So is the one on invalid actions, unless
    invalid_penalty is 0.1: before the first success it is the only signal, and the optimiser takes
    steps of the same size for it.
    Try: w, gamma, mode ("mean_norm"), num_rollouts (8), similarity_threshold (0.95),
    invalid_penalty (0.1).
    """
    check_choice("gigpo", SCALES, mode=mode)
    check_choice("gigpo", ("rows", "trajectories"), episode_statistics=episode_statistics)
    scale = SCALES[mode]
    rows = episode_statistics == "rows"
    whole = DiscountTurnRewards(whole=True, invalid_penalty=invalid_penalty)
    centre = CentreTurns("group", scale=scale, eps=eps, singleton="raw")
    over_rows = (Use(whole), Use(centre, columns=SECOND))
    divide = (Use(DivideByGroupStd(eps)),) if scale != "none" else ()
    return dataclasses.replace(
        grpo(**parent),
        rollout=Use(PlayTurns()),
        probes=(Use(MergeSimilarStates(similarity_threshold)),) if similarity_threshold else (),
        advantage=(
            *(over_rows if rows else (Use(SubtractGroupMean()), *divide)),
            Use(DiscountTurnRewards(gamma, invalid_penalty=invalid_penalty)),
            Use(CentreTurns("state", scale=scale, eps=eps)),
            Use(SpreadTurns(w, second_weight=float(rows), rollout_weight=float(not rows))),
        ),
    )
