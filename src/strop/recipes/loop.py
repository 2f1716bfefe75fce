"""Leave-one-out policy optimisation of long interactions, with one model."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Term, Use
from strop.parts.advantage.baseline.subtract_group_mean import SubtractGroupMean
from strop.parts.advantage.credit.spread_evenly import SpreadEvenly
from strop.parts.advantage.scale.divide_by_group_std import DivideByGroupStd
from strop.parts.loss.average.average_per_sequence import AveragePerSequence
from strop.parts.loss.bound.clip_both_sides import ClipBothSides
from strop.parts.loss.bound.follow_advantage import FollowAdvantage
from strop.parts.loss.ratio.ratio_per_sequence import RatioPerSequence
from strop.parts.loss.ratio.ratio_per_token import RatioPerToken
from strop.parts.plan.split_into_rollouts import SplitIntoRollouts
from strop.parts.selection.keep_large_advantages import KeepLargeAdvantages
from strop.recipes._base import CLIP, check_choice
from strop.recipes._door import door
from strop.recipes._inherit import inherits
from strop.recipes.rloo import rloo

BASELINES = {"leave_one_out": True, "mean": False}
RATIOS = {
    "token": RatioPerToken(),
    "turn": RatioPerSequence(product=True, unit="turn"),
    "trajectory": RatioPerSequence(product=True),
}


@door(also=("loop_loss",))
@inherits(
    rloo, without=(*CLIP, "aggregation", "beta", "num_minibatches"), num_prompts=40, num_rollouts=6
)
def loop(
    *,
    # "leave_one_out" or "mean".
    baseline: str = "leave_one_out",
    # Whether rewards are divided by their group's deviation.
    normalize_std: bool = False,
    # "biased" (n) or "unbiased" (n - 1).
    std: str = "biased",
    # Smallest deviation that is divided by.
    std_floor: float = 1e-7,
    # The ratio is held between 1 / (1 + clip_eps) and 1 + clip_eps.
    clip_eps: float = 0.1,
    # Unit of the ratio: "token", "turn" or "trajectory" (its tokens' ratios multiplied).
    level: str = "token",
    # Whether there is a ratio and a clip at all.
    clipping: bool = True,
    # Rollouts of an update, and what its sum is divided by.
    minibatch_size: int = 32,
    # Rollouts with a smaller absolute advantage are left out.
    min_advantage: float = 0.01,
    positive_only: bool = False,
    num_epochs: int = 2,
    # Change of a rollout's log-probability, nats, at which the step ends; 0: never.
    max_kl: float = 20.0,
    singleton: str = "raw",
    **parent: Any,
) -> Algorithm:
    """Reinforcement Learning for Long-Horizon Interactive LLM Agents (LOOP).

    arXiv 2502.01600. Code: apple/ml-loop. Parent: rloo. Status: exact.

    Family: turns.
    In short: leave-one-out, several epochs.
    Choose it when: long tasks pass or fail as a whole, memory holds one model (no critic, no
    reference) and each batch should be used several times.
    Equation: A_i = R_i - mean_{j != i} R_j; of those with |A| >= min_advantage, loss =
    -1/minibatch_size sum_i mean_t min(rho A_i, clip(rho, 1 / (1 + clip_eps), 1 + clip_eps) A_i).
    Differs from the parent: means over a rollout's tokens, a fixed divisor, so left-out rollouts do
    not make the others weigh more; a clip that is symmetric in the log; several epochs.
    Differs from the paper: rollouts are not cancelled once most of an iteration ended; the number
    kept is not rounded to the workers'; a gradient that is not finite ends the run. Its rewards are
    shares of passed unit tests; rollout play_turns makes it interact.
    Try: level ("turn"), num_rollouts, max_kl, normalize_std (worse in the paper).
    """
    check_choice("loop", BASELINES, baseline=baseline)
    check_choice("loop", RATIOS, level=level)
    deviation = Use(DivideByGroupStd(0.0, std, floor=std_floor))  # refuses what is no std
    scale = (deviation,) if normalize_std else ()
    centre = Use(SubtractGroupMean(singleton, leave_one_out=BASELINES[baseline]))
    clip = ClipBothSides(clip_low=1 - 1 / (1 + clip_eps), clip_high=clip_eps)
    objective = Use(clip if clipping else FollowAdvantage())
    average = Use(AveragePerSequence(num_rollouts=minibatch_size))
    term = Term("policy", objective, average, Use(RATIOS[level]) if clipping else None)
    return dataclasses.replace(
        rloo(**parent),
        advantage=(*scale, centre, Use(SpreadEvenly())),
        selection=(Use(KeepLargeAdvantages(min_advantage, positive_only)),),
        terms=(term,),
        plan=Use(SplitIntoRollouts(minibatch_size, num_epochs, max_kl)),
    )
