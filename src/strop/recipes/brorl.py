"""Hundreds of rollouts of each prompt, and a learning rate that grows with them."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.advantage.scale.whiten_over_batch import WhitenOverBatch
from strop.parts.control.renew_reference import RenewReference
from strop.parts.curation.drop_uniform_groups import DropUniformGroups
from strop.parts.loss.correction.weigh_by_engine_ratio import WeighByEngineRatio
from strop.parts.rate.scale_step_by_rollouts import ScaleStepByRollouts
from strop.recipes._base import with_policy
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo


@inherits(
    grpo,
    without=("eps", "std", "normalize_std"),
    clip_high=0.28,
    aggregation="token-mean",
    num_prompts=8,
    num_rollouts=512,
)
def brorl(
    *,
    # Rollouts of an update for which the learning rate was set: those of the earlier run.
    base_rollouts: int = 512,
    # Steps between resets of the reference to the current policy; 0: never.
    reset_every: int = 100,
    # Largest importance weight of a token, trainer over engine.
    most_weight: float = 2.0,
    beta: float = 1e-4,
    **parent: Any,
) -> Algorithm:
    """BroRL: Scaling Reinforcement Learning via Broadened Exploration.

    arXiv 2510.01180. Code: none released. Parent: grpo. Status: exact.

    Family: draws.
    In short: hundreds of rollouts a prompt.
    Choose it when: a run with few rollouts a prompt has stalled and should continue: answers that
    no small group contains decide whether the right ones still gain.
    Equation: A_i = (R_i - mean_g), then (A - mean) / std over the step, of groups with outcomes
    that differ; lr = lr_0 sqrt(B / base_rollouts), B the rollouts of the update.
    Differs from the parent: many rollouts of few prompts; the step's deviation replaces the
    group's; groups whose rewards are all equal are dropped; a wider clip above, truncated
    importance weights, a KL penalty towards a reference that is reset now and then.
    In full once: `engine.staleness=2` (correction/ess < 1).
    Differs from the paper: 1. it goes from 16 rollouts of 512 prompts to 512 of 128; here 16 of 32
    become 512 of 8, also eight times as many rollouts; 2. beta and reset_every were not found; 3. B
    counts what the filter left.
    Try: num_prompts with num_rollouts at equal tokens, base_rollouts (0.5 of it: larger steps).
    """
    algorithm = grpo(normalize_std=False, beta=beta, **parent)
    centre, *rest = algorithm.advantage
    renew = RenewReference(reset_every, reset_every) if beta and reset_every else None
    weigh = Use(WeighByEngineRatio(high=most_weight))
    return dataclasses.replace(
        with_policy(algorithm, correction=weigh),
        curation=(Use(DropUniformGroups(max_rounds=1)),),
        advantage=(centre, Use(WhitenOverBatch()), *rest),
        rates=(Use(ScaleStepByRollouts(base_rollouts)),),
        control=(Use(renew),) if renew is not None else (),
    )
