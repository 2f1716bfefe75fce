"""Entropy along a scheduled band, held by rejecting rollouts by the sign of their advantage."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.method.schedule import EntropyTarget, Linear
from strop.parts.selection.keep_inside_entropy_band import KeepInsideEntropyBand
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo


@inherits(
    grpo, without=("std", "singleton"), beta=1e-3, aggregation="prompt-mean", num_minibatches=4
)
def entrocraft(
    *,
    h_low: EntropyTarget = Linear(0.6, 0.4),  # noqa: B008 (frozen)
    h_high: EntropyTarget = Linear(0.7, 0.5),  # noqa: B008 (frozen)
    **parent: Any,
) -> Algorithm:
    """Addressing Performance Saturation for LLM RL via Precise Entropy Curve Control.

    arXiv 2604.26326, algorithm 1, eq. 5. Code: lblaoke/entrocraft. Parent: grpo. Status: exact.

    Family: entropy.
    In short: entropy curve by sign rejection.
    Choose it when: entropy should follow a band that you schedule over the run, with any estimator,
    and batches can spare the rollouts of one sign.
    Equation: d = 1 if H > h_high, -1 if H < h_low, else 0; S_x = rollouts of x with d A_i >= 0;
    loss = -mean_x 1/|S_x| sum_{i in S_x} sum_t min(rho A_i, clip(rho) A_i) + beta KL(ref).
    Differs from the parent: outside the entropy band only rollouts with one sign of advantage are
    trained on; tokens are summed, then averaged over a prompt's kept rollouts; four updates a step.
    Differs from the paper: prompts without a kept rollout do not count in the mean over prompts,
    where the paper leaves it open. The released code swaps the estimator instead of rejecting. The
    default band is linear(0.6, 0.4) to linear(0.7, 0.5), nats.
    Try: h_low and h_high (schedules or numbers), num_rollouts.
    """
    selection = (Use(KeepInsideEntropyBand(h_low, h_high)),)
    return dataclasses.replace(grpo(**parent), selection=selection)
