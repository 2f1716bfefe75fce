"""Explores unmastered prompts, and rehearses the others under a mass-covering divergence."""

import dataclasses
from typing import Any

from strop.batch.columns import POLICY, REPLAY
from strop.method.algorithm import Algorithm
from strop.method.part import Term, Use
from strop.parts.loss.penalty.cover_reference import CoverReference
from strop.parts.rollout.sample_and_replay import SampleAndReplay
from strop.parts.sampling.rehearse_mastered_prompts import RehearseMasteredPrompts
from strop.parts.selection.keep_origins import KeepOrigins
from strop.recipes._base import average, with_policy
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo


@inherits(grpo, without=("beta",), clip_high=0.28)
def dph_rl(
    *,
    # "forward" (DPH-F), "js" (DPH-JS) or "alpha".
    divergence: str = "forward",
    # Parameter of the divergence "alpha".
    alpha: float = 0.2,
    # Weight of the divergence, per nat: 0.01 to 0.05, with "js" 0.05 to 0.2; 0: grpo.
    eta: float = 0.05,
    # Answers before training that decide whether a prompt is mastered.
    num_trials: int = 8,
    # Stored answers in a step, beside its rollouts.
    num_stored: int = 256,
    aggregation: str = "token-mean",
    **parent: Any,
) -> Algorithm:
    """The Choice of Divergence: A Neglected Key to Mitigating Diversity Collapse in RLVR (DPH-RL).

    arXiv 2509.07430. Code: seamoke/DPH-RL. Parent: grpo. Status: exact.

    Family: draws.
    In short: rehearses mastered prompts.
    Choose it when: the range of problems that the initial model solves (pass@k) must not shrink;
    its own stored answers are rehearsed, without a reference model.
    Equation: loss = grpo's on prompts that the initial policy did not always solve + eta agg f(u)
    on its stored answers to the others, u = pi / pi_first of a token; forward: f = u - ln u - 1,
    js: u ln u - (u + 1) ln((u + 1) / 2), alpha: (u^(1-a) - (1-a) u - a) / (a (a - 1)).
    Differs from the parent: mastered prompts are rehearsed, not sampled; wider clip above; all
    tokens weigh the same; no reference model is kept.
    Differs once: `'dph_rl(num_trials=1)' data.train_size=200`, or trials that some prompt always
    passes (rehearsal/replayed > 0).
    Differs from the paper: an update has rows of both kinds, each averaged over it; the code's
    micro-batches are of one kind and weigh the same. Its form of js with an online reference is
    left out; its reverse baseline is grpo with beta.
    Try: divergence ("js" with eta 0.1), eta, num_trials. Rewards logged include stored answers.
    """
    algorithm = with_policy(grpo(aggregation=aggregation, **parent), on=Use(KeepOrigins((POLICY,))))
    if eta == 0:
        return with_policy(algorithm, on=None)
    stored = Term(
        "rehearsal",
        objective=Use(
            CoverReference(divergence, alpha), columns=(("logp_ref_T", "logp_stored_T"),)
        ),
        average=average(aggregation),
        on=Use(KeepOrigins((REPLAY,))),
        coef=eta,
    )
    return dataclasses.replace(
        algorithm,
        sampling=(*algorithm.sampling, Use(RehearseMasteredPrompts(num_trials, num_stored))),
        rollout=Use(SampleAndReplay()),
        terms=(*algorithm.terms, stored),
    )
