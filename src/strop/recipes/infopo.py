"""Outcome advantages, and credit for turns whose feedback changed the next action."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.advantage.baseline.begin_with_first_return import BeginWithFirstReturn
from strop.parts.advantage.baseline.subtract_group_mean import SubtractGroupMean
from strop.parts.advantage.credit.discount_turn_rewards import DiscountTurnRewards
from strop.parts.advantage.credit.map_turn_rewards import MapTurnRewards
from strop.parts.advantage.credit.share_by_turn_credit import ShareByTurnCredit
from strop.parts.advantage.credit.spread_evenly import SpreadEvenly
from strop.parts.advantage.scale.divide_by_group_std import DivideByGroupStd
from strop.parts.advantage.weight.add_feedback_gain import AddFeedbackGain
from strop.parts.probe.measure_feedback_gain import MeasureFeedbackGain
from strop.parts.rollout.play_turns import PlayTurns
from strop.recipes._base import ESTIMATOR, check_choice, entropy_terms
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo

CREDIT = (("return_K", "credit_K"),)


@inherits(grpo, without=ESTIMATOR, aggregation="token-mean", num_rollouts=5, num_minibatches=4)
def infopo(
    *,
    # Weight of the feedback's gains at the start of training.
    beta0: float = 0.5,
    # Deviation of a group's scores at which the gains have mostly faded.
    T: float = 0.5,
    # How fast the weight falls: beta0 exp(-decay epoch).
    decay: float = 0.0,
    # Passes over the prompts so far; a number or a schedule.
    epoch: float = 0.0,
    # How a turn shares in the outcome: "equal", by "discounted" rewards to go, or by its own
    # reward, "mapped".
    turn_credit: str = "equal",
    # What rollouts are compared by: the "sum" of rewards, or the "discounted" ones of all turns.
    score: str = "sum",
    # Discount of a turn, where something is discounted.
    gamma: float = 0.8,
    eps: float = 1e-6,
    # Whether outcomes and gains are divided by their group's deviation, not only centred.
    divide_by_std: bool = True,
    entropy_coef: float = 1e-3,
    **parent: Any,
) -> Algorithm:
    """InfoPO: Information-Driven Policy Optimization for User-Centric Agents.

    arXiv 2603.00656. Code: kfq20/InfoPO. Parent: grpo. Status: exact.

    Family: turns.
    In short: credit for informative feedback.
    Choose it when: the policy should learn to ask: turns whose reply changes the next action earn
    more, above all where outcomes are equal.
    Equation: A = A_out + beta sigmoid(-std_g / T) ratio A_int; A_int the z-score over the group's
    tokens of I_k / |action k|, I_k = mean logp of action k+1 given feedback k less that given a
    placeholder; ratio = min(1, max(std(A_out), 1) / std(A_int)); beta = beta0 exp(-decay epoch);
    A_out = z_i credit_k, scaled to the mean z_i over the tokens of a rollout.
    Differs from the parent: turns with informative feedback gain, most where outcomes are equal;
    all tokens weigh the same; an entropy bonus; four updates a step.
    Differs from the paper: epoch is a number, in a run a schedule such as epoch=linear(0, 3) for
    three epochs; scores and mapped credits are not rounded to four digits.
    Try: beta0, T (0.05 in the code), turn_credit, num_rollouts.
    """
    check_choice("infopo", ("equal", "discounted", "mapped"), turn_credit=turn_credit)
    check_choice("infopo", ("sum", "discounted"), score=score)
    divide = (Use(DivideByGroupStd(eps)),) if divide_by_std else ()
    outcome: tuple[Use, ...] = (Use(SubtractGroupMean()), *divide, *_shared(turn_credit, gamma))
    gain = Use(AddFeedbackGain(beta0, T, (eps, divide_by_std), decay, epoch))
    if score == "discounted":
        outcome = (Use(DiscountTurnRewards(gamma)), Use(BeginWithFirstReturn()), *outcome)
        gain = dataclasses.replace(gain, columns=(("reward_B", "score_B"),))
    algorithm = grpo(**parent)
    return dataclasses.replace(
        algorithm,
        rollout=Use(PlayTurns()),
        probes=(Use(MeasureFeedbackGain()),),
        advantage=(*outcome, gain),
        terms=(*algorithm.terms, *entropy_terms(entropy_coef)),
    )


def _shared(turn_credit: str, gamma: float) -> tuple[Use, ...]:
    """The parts that bring a rollout's advantage to its tokens."""
    if turn_credit == "equal":
        return (Use(SpreadEvenly()),)
    to_go = Use(DiscountTurnRewards(gamma), CREDIT, "credit_turns")
    return (
        to_go if turn_credit == "discounted" else Use(MapTurnRewards()),
        Use(ShareByTurnCredit()),
    )
