"""Group relative policy optimisation over answers that start as a tree."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.method.schedule import Points, Schedule
from strop.parts.rollout.fork_at_close_calls import ForkAtCloseCalls
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo

# The paper's 500 steps: 1, then from step 10 on 0.75, 20 0.5, 80 0.25, 200 0.
ETA = Points(
    ((0, 1), (0.02, 1), (0.02, 0.75), (0.04, 0.75), (0.04, 0.5), (0.16, 0.5), (0.16, 0.25),
     (0.4, 0.25), (0.4, 0)),
)  # fmt: skip


@inherits(grpo, beta=0.01, num_rollouts=8)
def latr(
    *,
    # Share of a prompt's answers that start as a tree.
    eta: float | Schedule = ETA,
    # Likeliest tokens that may fork.
    M: int = 2,
    # A second token forks above this probability,
    tau_abs: float = 0.25,
    # and where the likeliest one's is larger by less than this.
    tau_rel: float = 0.15,
    # Ages at which a branch is compared with its parent, tokens.
    r: tuple[int, ...] = (20, 30, 50),
    # A branch is dropped below this share of edits; 0: never.
    tau_ed: float = 0.4,
    # A branch is dropped above this share of a common suffix; 1: never.
    tau_suf: float = 1.0,
    # A branch is dropped above this share of a common subsequence; 1: never.
    tau_rl: float = 1.0,
    # Most tokens of the tree.
    force_step: int = 512,
    **parent: Any,
) -> Algorithm:
    """Lookahead Tree-Based Rollouts for Enhanced Trajectory-Level Exploration in RLVR.

    arXiv 2510.24302. Code: starreeze/latr. Parent: grpo. Status: exact.

    Family: draws. Model: tiny-worked.
    In short: forks where top tokens are close.
    Choose it when: sampled answers of a prompt hardly differ, so that groups have equal outcomes,
    and early training tolerates answers that are slightly off-policy.
    Equation: grpo's, over G answers: round(eta G) from a tree of likeliest tokens that forks at c
    if p_c > tau_abs and p_max - p_c < tau_rel, and drops forks that stay like their parents for r
    tokens; the rest plain.
    Differs from the parent: answers share prefixes, differ where the policy was uncertain, and are
    sampled only after the tree; a weak KL penalty towards the reference.
    Differs from the paper: 1. places in the tree are given by rank, as in its code (in the paper by
    probability); 2. eta's steps are shares of the run; 3. its code's switches sample_nk and
    keep_math_symbols are left out; 4. tokens of the tree count as on-policy in the loss, as in its
    code, and have no logp_behavior_T; 5. its code takes the mean over all tokens
    (aggregation="token-mean").
    Try: r ((4, 8) for short answers), eta (0.5), tau_abs with tau_rel.
    """
    rollout = ForkAtCloseCalls(
        share=eta,  # type: ignore[arg-type]
        forks=(M, tau_abs, tau_rel),
        windows=r,
        similarity=(tau_ed, tau_suf, tau_rl),
        tree_tokens=force_step,
    )
    return dataclasses.replace(grpo(**parent), rollout=Use(rollout))
