"""Sequence-level policy optimisation of the turns of a dialogue, one after the other."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.advantage.baseline.subtract_group_mean import SubtractGroupMean
from strop.parts.advantage.credit.spread_evenly import SpreadEvenly
from strop.parts.advantage.scale.whiten_over_batch import WhitenOverBatch
from strop.parts.advantage.weight.limit_size import LimitSize
from strop.parts.loss.ratio.ratio_per_sequence import RatioPerSequence
from strop.parts.plan.update_turn_by_turn import UpdateTurnByTurn
from strop.parts.rollout.play_turns import PlayTurns
from strop.recipes._base import with_policy
from strop.recipes._inherit import inherits
from strop.recipes.gspo import gspo

OF_ROLLOUTS = (("advantage_T", "advantage_B"), ("mask_T", "scored_B"))


@inherits(
    gspo, without=("num_minibatches",), clip_low=0.2, clip_high=0.2, beta=0.002, num_rollouts=8
)
def seeupo(
    *,
    # Largest absolute advantage; 0: any.
    clamp: float = 3.0,
    # Deviations up to this are not divided by.
    std_floor: float = 1e-6,
    # Order of the turns: "reverse", "forward" or "random".
    order: str = "reverse",
    # Clip below and above 1 of the factor that a turn passes to those updated after it.
    carry_low: float = 0.2,
    carry_high: float = 0.2,
    # Largest mean log-ratio of a turn, nats.
    log_clamp: float = 10.0,
    **parent: Any,
) -> Algorithm:
    """SeeUPO: Sequence-Level Agentic-RL with Convergence Guarantees.

    arXiv 2602.06554. Code: modelscope/AgentEvolver (branch seeupo). Parent: gspo. Status: exact.

    Family: turns.
    In short: one update a turn, last first.
    Choose it when: early turns should be trained given the already updated later ones, and one
    update for every turn is affordable.
    Equation: A_i = clamp(whitened(R_i - mean_g)); for k = last turn to first: one update on turn
    k with A_i M_i and one ratio per turn; M_i <- clip(M_i clip(exp(mean_t change of logp))).
    Differs from the parent: one update a turn, with logp_old recomputed; the ratio is per turn; no
    division by the group's deviation, but by that of the step; a KL penalty towards the reference;
    a wider clip.
    Differs from the paper: a turn that a rollout does not reach is ignored here; in its code the
    rollout's last turn takes its place with advantage 0: it counts in the turn's averages and in
    the whitening (here over the step's rollouts), is penalised towards the reference again, and its
    change enters M. At most 10 turns there: rollout.max_turns.
    Try: order, carry_low and carry_high (0: turns are independent), clip_high.
    """
    plan = UpdateTurnByTurn(order, carry_low, carry_high, log_clamp)
    whiten = WhitenOverBatch(eps=0.0, floor=std_floor)
    limit = (Use(LimitSize(clamp), OF_ROLLOUTS),) if clamp else ()
    algorithm = with_policy(gspo(**parent), ratio=Use(RatioPerSequence(unit="turn")))
    return dataclasses.replace(
        algorithm,
        rollout=Use(PlayTurns()),
        advantage=(Use(SubtractGroupMean("zero")), Use(whiten), *limit, Use(SpreadEvenly())),
        plan=Use(plan),
    )
