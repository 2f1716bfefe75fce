"""Rollouts of the last policies beside fresh ones, in several updates, then fresh ones alone."""

import dataclasses
from typing import Any

from strop.algorithm import Algorithm, Term
from strop.curation.keep_share_of_replayed import KeepShareOfReplayed
from strop.curation.replay_rollouts import ReplayRollouts
from strop.loss.bound.clip_around_old_ratio import ClipAroundOldRatio
from strop.loss.penalty.penalise_kl_to_reference import PenaliseKlToReference
from strop.loss.ratio.ratio_per_token import RatioPerToken
from strop.part import Use
from strop.plan.split_into_minibatches import SplitIntoMinibatches
from strop.recipes._base import average, with_policy
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo
from strop.schedule import Linear, Points


@inherits(grpo, without=("beta",))
def remix(
    *,
    # Share of the groups that are replayed in the first phase.
    p: float = 0.4,
    # Earlier steps whose rollouts are replayed.
    window: int = 2,
    # Passes over a step's rollouts.
    updates: int = 2,
    # Share of the run after which rollouts are fresh ones alone.
    mixed_until: float = 0.5,
    # Weight of both penalties on leaving a policy together.
    beta: float = 1e-3,
    # Share of that weight which holds to the base in the end; 1 at first.
    base_share: float = 0.5,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    aggregation: str = "seq-mean-token-mean",
    **parent: Any,
) -> Algorithm:
    """Squeeze the Soaked Sponge: Efficient Off-policy RFT for Large Language Model (ReMix).

    arXiv 2507.06892. Code: none released. Parent: grpo. Status: partial.

    Family: draws.
    In short: old groups beside fresh ones.
    Choose it when: sampling holds up the start of a run: groups of the last steps are used again
    under penalties, later only fresh ones.
    Equation: rho over the policy that drew the token, c = pi_old / that policy; loss =
    -mean min(rho A, clip(rho, c - clip_low, c + clip_high) A) + beta (l KL_base + (1 - l) KL_old).
    Differs from the parent: a share p of replayed groups, updates passes, the clip's centre, both
    penalties; replayed groups keep the advantages of their own rewards.
    Differs from the paper: 1. l falls on a line over the run (there by 0.1 every 10 steps after
    50); 2. KL is to the policy at the start of the step, not the one before; 3. at mixed_until the
    base is not replaced; 4. clip, beta and how old advantages are refreshed were not found; no
    entropy bonus.
    Try: p, mixed_until (a share of the run; there 50 to 100 steps), window.
    """
    algorithm = grpo(clip_low=clip_low, clip_high=clip_high, aggregation=aggregation, **parent)
    sampler = (("logp_old_T", "logp_behavior_T"),)
    algorithm = with_policy(
        algorithm,
        objective=Use(ClipAroundOldRatio(clip_low, clip_high)),
        ratio=Use(RatioPerToken(), sampler),
    )
    old = (("logp_ref_T", "logp_old_T"),)
    falling, rising = Linear(beta, beta * base_share), Linear(0.0, beta * (1 - base_share))
    terms = (
        Term("kl_base", Use(PenaliseKlToReference()), average(aggregation), coef=falling),
        Term("kl_old", Use(PenaliseKlToReference(), old), average(aggregation), coef=rising),
    )
    share = Points(((0.0, p), (mixed_until, p), (mixed_until, 0.0)))
    return dataclasses.replace(
        algorithm,
        curation=(
            Use(ReplayRollouts(capacity=0, max_age=window + 1)),
            Use(KeepShareOfReplayed(share)),
        ),
        terms=(*algorithm.terms, *terms) if beta else algorithm.terms,
        plan=Use(SplitIntoMinibatches(num_epochs=updates)),
    )
