"""Replays rollouts of recent policies beside fresh ones, and later trains on fresh ones only."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Term, Use
from strop.method.schedule import Stairs
from strop.parts.control.renew_reference import RenewReference
from strop.parts.curation.keep_share_of_replayed import KeepShareOfReplayed
from strop.parts.curation.replay_rollouts import ReplayRollouts
from strop.parts.loss.bound.clip_around_old_ratio import ClipAroundOldRatio
from strop.parts.loss.penalty.penalise_kl_to_reference import PenaliseKlToReference
from strop.parts.loss.ratio.ratio_per_token import RatioPerToken
from strop.parts.plan.split_into_minibatches import SplitIntoMinibatches
from strop.recipes._base import average, with_policy
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo

STAIR = 0.1  # decrement of the base's share of the penalty


@inherits(grpo, without=("beta", "num_minibatches"))
def remix(
    *,
    # Share of the groups that are replayed in the first phase.
    p: float = 0.4,
    # Earlier steps whose rollouts are replayed.
    window: int = 2,
    # Passes over a step's rollouts.
    updates: int = 2,
    # Steps after which only fresh rollouts are used and the current policy replaces the base.
    mixed_steps: int = 50,
    # Total weight of both KL penalties.
    beta: float = 1e-3,
    # Share l of that weight on the penalty towards the base in the end; 1 at first.
    base_share: float = 0.5,
    # Steps before l falls, and steps between its decrements of 0.1.
    base_steps: int = 50,
    stair_steps: int = 10,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    aggregation: str = "seq-mean-token-mean",
    **parent: Any,
) -> Algorithm:
    """Squeeze the Soaked Sponge: Efficient Off-policy RFT for Large Language Model (ReMix).

    arXiv 2507.06892. Code: none released. Parent: grpo. Status: partial.

    Family: draws.
    In short: replays groups, then fresh only.
    Choose it when: sampling is the bottleneck early in a run: groups of recent steps are reused
    under KL penalties, later only fresh ones.
    Equation: rho relative to the policy that sampled the token, c = pi_old / that policy; loss =
    -mean min(rho A, clip(rho, c - clip_low, c + clip_high) A) + beta (l KL_base + (1 - l) KL_old),
    l = max(base_share, 1 - 0.1 ceil(max(step - base_steps, 0) / stair_steps)).
    Differs from the parent: a share p of replayed groups, two passes a step, the clip's centre,
    both penalties; after mixed_steps only fresh groups, with a penalty towards the policy of that
    step instead of the base; replayed groups keep the advantages of their own rewards.
    Differs once: `training.steps=2`, whose second step replays the first (replay/share > 0).
    Differs from the paper: 1. KL is to the policy at the start of the step, not the one before;
    2. clip, beta, from which of the last steps old groups come and how their advantages are
    refreshed were not found; no entropy bonus, whose weight was not found either.
    Try: p, mixed_steps (there 50 to 100), window.
    """
    algorithm = with_policy(
        grpo(clip_low=clip_low, clip_high=clip_high, aggregation=aggregation, **parent),
        objective=Use(ClipAroundOldRatio(clip_low, clip_high)),
        ratio=Use(RatioPerToken(), (("logp_old_T", "logp_behavior_T"),)),
    )
    falls = Stairs(1.0, base_share, _stairs(base_share), stair_steps, base_steps)
    share = Stairs(p, 0.0, after=mixed_steps)
    renewed = (Use(RenewReference(mixed_steps)),) if beta and mixed_steps else ()
    return dataclasses.replace(
        algorithm,
        curation=(
            Use(ReplayRollouts(capacity=0, max_age=window + 1)),
            Use(KeepShareOfReplayed(share)),
        ),
        terms=(*algorithm.terms, *_penalties(beta, falls, aggregation)),
        plan=Use(SplitIntoMinibatches(num_epochs=updates)),
        control=renewed,
    )


def _stairs(base_share: float) -> int:
    """The number of the paper's decrements that lead from 1 to the share."""
    return max(1, round((1 - base_share) / STAIR))


def _penalties(beta: float, share: Stairs, aggregation: str) -> tuple[Term, ...]:
    """Both penalties, of the weight `beta` together; the base's share of it falls."""
    if not beta:
        return ()
    falling = dataclasses.replace(share, start=beta * share.start, end=beta * share.end)
    rising = dataclasses.replace(share, start=beta * (1 - share.start), end=beta * (1 - share.end))
    old = (("logp_ref_T", "logp_old_T"),)
    return (
        Term("kl_base", Use(PenaliseKlToReference()), average(aggregation), coef=falling),
        Term("kl_old", Use(PenaliseKlToReference(), old), average(aggregation), coef=rising),
    )
