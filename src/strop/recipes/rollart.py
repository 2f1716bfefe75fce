"""Group relative policy optimisation on the first groups to finish, from a queue of prompts."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.rollout.take_first_complete_groups import TakeFirstCompleteGroups
from strop.parts.sampling.draw_spare_prompts import DrawSparePrompts
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo


@inherits(grpo)
def rollart(
    *,
    # Steps by which the queue is ahead of training, and for which a prompt stays in it.
    alpha: int = 1,
    # Answers of each prompt that are sampled beyond num_rollouts; the slowest are aborted.
    x: int = 0,
    **parent: Any,
) -> Algorithm:
    """RollArt: Scaling Agentic RL Training via Disaggregated Infrastructure.

    arXiv 2512.22560. Code: alibaba/ROLL. Parent: grpo. Status: partial.

    Family: staleness. Model: tiny-worked.
    In short: trains on what finishes first.
    Choose it when: a few slow answers hold up every step, and batches that are biased towards quick
    answers are acceptable.
    Equation: grpo's, over the first num_prompts prompts of the queue of which num_rollouts of
    num_rollouts + x answers have ended; a prompt sampled more than alpha steps ago is dropped from
    the queue.
    Differs from the parent: (1 + alpha) * num_prompts prompts are in flight, fewer after each that
    is dropped, since nothing replaces it (as in the code; partial/groups_left); the slowest x
    answers of each are aborted.
    Differs once: `'rollart(alpha=1)'`, or answers to spare (partial/groups_left > 0).
    Differs from the paper: 1. its placement (prefill, decoding, environments and rewards each on
    hardware of their own) is set by the run: `training.collector_device`, an engine of its own
    (`engine.kind=vllm`), reward processes (`reward.num_workers`); prefill and decoding on different
    GPUs are left to the engine. 2. Between two steps the queue stands still, unless
    `training.max_staleness` lets it continue: the two bounds then add up. 3. There is no filter
    inside the queue; a curation requests more. 4. The losses that it offers are parts of their own.
    Alpha is 0 in the released code, which is grpo, and 1 in its asynchronous examples.
    Try: alpha (0: grpo), x (2), training.max_staleness (1), correction=weigh_by_engine_ratio.
    """
    algorithm = grpo(**parent)
    ahead = (Use(DrawSparePrompts(float(alpha))),) if alpha else ()
    return dataclasses.replace(
        algorithm,
        sampling=(*algorithm.sampling, *ahead),
        rollout=Use(TakeFirstCompleteGroups(max_age=alpha, spare=x)),
    )
