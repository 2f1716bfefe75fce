"""Clipped policy optimisation that masks bad answers which have become unlikely."""

from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.loss.bound.drop_drifted_blame import DropDriftedBlame
from strop.recipes._base import CLIP, with_policy
from strop.recipes._door import door
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo


@door(parameters={"off_policy_mask_threshold": "threshold"})
@inherits(grpo, without=CLIP)
def opsm(
    *,
    # Largest mean drift at which a bad answer is still trained on, nats a token.
    threshold: float = 0.5,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    **parent: Any,
) -> Algorithm:
    """DeepSeek-V3.2 (off-policy sequence masking).

    arXiv 2512.02556, eq. 9. Code: huggingface/trl (off_policy_mask_threshold). Parent: grpo.
    Status: exact.

    Family: staleness.
    In short: masks stale negative answers.
    Choose it when: wrong answers that have long become unlikely keep affecting the policy, with
    stale rollouts or several updates.
    Equation: loss = grpo's, times 0 for answers with A_i < 0 and
    mean_t (logp_behavior - logp) > threshold; logp_old where no engine's value is known.
    Differs from the parent: bad answers that became much less likely than when they were sampled
    get no gradient; they still count in averages.
    Differs once: `plan.num_minibatches=8 engine.staleness=4 training.lr=3e-3` (opsm/dropped_mean >
    0).
    Differs from the paper: the mean is taken under an update's current policy, as TRL's is under a
    micro-batch's. No value of the threshold is given there: 0.5 is ours. There a step has several
    updates, how many was not found; here it has one, on fresh answers unless `engine.staleness` is
    given.
    Try: threshold (0.1), engine.staleness (16), plan.num_minibatches (4).
    """
    part = DropDriftedBlame(threshold, clip_low, clip_high)
    return with_policy(grpo(**parent), objective=Use(part))
