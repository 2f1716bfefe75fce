"""PPO over turns, whose steps shrink where clipping has biased the gradient."""

from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.loss.bound.shrink_by_clipping_bias import ShrinkByClippingBias
from strop.parts.loss.ratio.ratio_per_sequence import RatioPerSequence
from strop.recipes._base import with_policy
from strop.recipes._inherit import inherits
from strop.recipes.gae import gae


@inherits(gae)
def turn_ppo(**parent: Any) -> Algorithm:
    """ST-PPO: Stabilized Off-Policy Proximal Policy Optimization for Multi-Turn Agents Training.

    arXiv 2511.20718 (Turn-PPO). Code: none released. Parent: gae. Status: exact.

    Family: critics.
    In short: one importance ratio per turn.
    Choose it when: episodes are trained with a critic and a turn is one decision, whose tokens
    should be clipped or kept together.
    Equation: w_k = exp(mean over the policy tokens of turn k of (logp - logp_old)); loss = -mean_t
    min(w A_t, clip(w, 1 - clip_low, 1 + clip_high) A_t), w of the turn of t; critic as in gae.
    Differs from the parent: all tokens of a turn share one ratio.
    Differs once: `plan.num_minibatches=4`, or once the critic distinguishes the tokens of a turn
    (ratio/token_distance_mean > 0).
    Differs from the paper: the log-ratio is bounded above at 10 nats against overflow.
    Try: plan.num_minibatches (4), lam (0.95), clip_low, clip_high.
    """
    return with_policy(gae(**parent), ratio=Use(RatioPerSequence(unit="turn")))


@inherits(gae)
def s_ppo(
    *,
    # Smallest norm of the clipping bias that the update is divided by.
    floor: float = 1.0,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    **parent: Any,
) -> Algorithm:
    """ST-PPO: Stabilized Off-Policy Proximal Policy Optimization for Multi-Turn Agents Training.

    arXiv 2511.20718, eq. 7 and 8 (S-PPO). Code: none released. Parent: gae. Status: partial.

    Family: critics.
    In short: shrinks steps by clipping bias.
    Choose it when: PPO becomes unstable over many updates of one batch, at moments when much is
    clipped; the step should shrink just then.
    Equation: loss = gae's / ||C||, C_t = 1{t clipped} rho_t A_t / |y_t| over the update; not
    divided where ||C|| is below floor.
    Differs from the parent: the policy's loss is divided by the size of the clipping bias.
    Differs once: `'s_ppo(floor=0)' plan.num_minibatches=4 training.lr=5e-3`, where the clip acts
    (clip_bias/factor != 1).
    Differs from the paper: the norm is of the per-token terms (the paper's text leaves open which
    one is meant), and the floor is ours. It trains on several updates a step, their number was not
    found; here it is one, in which nothing is clipped.
    Try: floor (0.1), plan.num_minibatches (4; one update a step clips nothing), lam (0.95).
    """
    shrink = ShrinkByClippingBias(clip_low, clip_high, floor)
    return with_policy(gae(**parent), objective=Use(shrink))


@inherits(turn_ppo)
def st_ppo(
    *,
    # Smallest norm of the clipping bias that the update is divided by.
    floor: float = 1.0,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    **parent: Any,
) -> Algorithm:
    """ST-PPO: Stabilized Off-Policy Proximal Policy Optimization for Multi-Turn Agents Training.

    arXiv 2511.20718, eq. 7 and 8 (ST-PPO). Code: none released. Parent: turn_ppo. Status: partial.

    Family: critics.
    In short: turn ratios and smaller steps.
    Choose it when: episodes need both: one ratio for each turn, and steps that shrink where much is
    clipped.
    Equation: loss = turn_ppo's / ||C||, C_t = 1{t clipped} w_k A_t / |y_t| over the update, w_k the
    ratio of t's turn; not divided where ||C|| is below floor.
    Differs from the parent: the policy's loss is divided by the size of the clipping bias.
    Differs once: `'st_ppo(floor=0)' data.task=corridor 'data.task_config={size: 2, style: compact}'
    plan.num_minibatches=4 training.lr=5e-3`, where a turn is clipped (clip_bias/factor != 1).
    Differs from the paper: as s_ppo. With the floor of 1 it remains turn_ppo in long episodes,
    whose clipped tokens weigh 1 / |y| each.
    Try: floor (0.1), plan.num_minibatches (4; one update a step clips nothing), lam (0.95).
    """
    shrink = ShrinkByClippingBias(clip_low, clip_high, floor)
    return with_policy(turn_ppo(**parent), objective=Use(shrink))
