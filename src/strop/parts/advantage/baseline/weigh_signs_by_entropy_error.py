"""Steer the policy's entropy to a target by weighing right answers against wrong ones."""

from dataclasses import dataclass

import torch
from torch import Tensor

from strop.method.part import Result, require
from strop.method.schedule import EntropyTarget, Schedule
from strop.parts.advantage.baseline._entropy import entropy_of_step


@dataclass(frozen=True)
class WeighSignsByEntropyError:
    """Entropy above the target makes positive raw rewards count more and negative ones less.

        e = H - target;  alpha = integral + gain * e
        advantage_i <- (1 + alpha) * reward_i if reward_i > 0 else (1 - alpha) * reward_i

    H is batch_entropy where given, else the mean of entropy_old over the scored policy tokens of
    the step. The integral is what accumulate_entropy_error has added up in the steps before.
    Metrics: entropy_control/entropy, /error (nats), /tilt (alpha).

    Reads: reward_B [B] float, scored_B [B] bool; entropy_old_T [T] float, mask_T [T] bool,
    rollout_T [T] int; batch_entropy [] float where given.   Writes: advantage_B.
    Source: code only: lblaoke/entrocraft:verl/trainer/ppo/core_algos.py (entropic); the method is
    that of arXiv 2511.15248.
    Differs from the source: no.
    Nearest part: learn_one_sign_outside_entropy_band, which drops a sign instead of weighing it.
    Edges: unscored rollouts -> 0, not in H; reward 0 -> 0; |alpha| > 1 flips a sign.
    """

    # Entropy to hold, nats; may change over the run. Default: released code.
    target: EntropyTarget = 0.5
    # Weight of this step's error, per nat. Default: released code.
    gain: float = 1.0
    # Weighted sum of the errors before this step. Default: released code.
    integral: float = 0.0

    def __post_init__(self) -> None:
        require(self, "target", "gain", "integral")

    def __call__(
        self,
        reward_B: Tensor,
        scored_B: Tensor,
        mask_T: Tensor,
        rollout_T: Tensor,
        entropy_old_T: Tensor | None = None,
        batch_entropy: Tensor | None = None,
    ) -> Result:
        assert not isinstance(self.target, Schedule)
        known = (batch_entropy, entropy_old_T, mask_T, rollout_T, scored_B)
        entropy = entropy_of_step("weigh_signs_by_entropy_error", *known)
        error = entropy - self.target
        tilt = self.integral + self.gain * error
        weighed_B = torch.where(reward_B > 0, (1 + tilt) * reward_B, (1 - tilt) * reward_B)
        metrics = {
            "entropy_control/entropy": entropy,
            "entropy_control/error": error,
            "entropy_control/tilt": tilt,
        }
        return Result(torch.where(scored_B, weighed_B, 0), metrics=metrics)
