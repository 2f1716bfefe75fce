"""Group relative policy optimisation that stops part of the answers half-way."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.rollout.stop_sure_answers import StopSureAnswers
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo


@inherits(grpo)
def arrol(
    *,
    # Tokens at which an answer is examined.
    L_detect: int = 512,
    # Share of the examined answers that continue.
    K: float = 0.5,
    # Wanted share of right answers among them.
    rho: float = 0.5,
    # Bins of the head's scores.
    num_bins: int = 10,
    # Learning rate of the head.
    head_lr: float = 1e-3,
    **parent: Any,
) -> Algorithm:
    """Prune as You Generate: Online Rollout Pruning for Faster and Better RLVR.

    arXiv 2603.24840. Code: Hsu1023/ARRoL (not readable). Parent: grpo. Status: partial.

    Family: draws. Model: tiny-worked.
    In short: prunes answers half-way.
    Choose it when: answers are long, their beginnings predict how they will end, and a step spends
    its time on sampling and training on more answers than it needs.
    Equation: q_i from a head's score of the state at token L_detect; of n answers ceil(K n)
    continue, with mean q near rho; A_i = grpo's among them.
    Differs from the parent: groups hold only the answers that continued, a selected sample: the
    mean of a group is no estimate of the prompt's success.
    Differs once: `'arrol(L_detect=16)'`, a length that answers reach (pruning/stopped > 0).
    Differs from the paper: the survival rule (greedy swaps), the head (one layer of 64 on the last
    state, Adam), bins and prior are ours, as the paper's are not known. Votes weighted by the
    head's score at test time are left out.
    Try: L_detect (a third of the usual answer), K (0.75), num_rollouts.
    """
    rollout = StopSureAnswers(
        detect_at=L_detect, keep=K, target=rho, num_bins=num_bins, head_lr=head_lr
    )
    return dataclasses.replace(grpo(**parent), rollout=Use(rollout))
