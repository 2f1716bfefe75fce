"""Steer the policy's entropy by swapping the estimator for raw rewards of one sign."""

from dataclasses import dataclass

import torch
from torch import Tensor

from strop.method.part import Result, require
from strop.method.schedule import EntropyTarget, Linear, Schedule
from strop.parts.advantage.baseline._entropy import entropy_of_step


@dataclass(frozen=True)
class LearnOneSignOutsideEntropyBand:
    """Above the band only raw positive rewards teach, below it raw negative ones.

        H > h_high: advantage_i <- max(reward_i, 0)
        H < h_low:  advantage_i <- reward_i if reward_i <= 0 else positive_weight * reward_i
        else:       advantage_i unchanged

    H is batch_entropy where given, else the mean of entropy_old over the scored policy tokens of
    the step. There is no baseline outside the band, so groups of one outcome teach too.
    Metrics: entropy_control/low, /high, /entropy (nats), /direction (+1 above, -1 below).

    Reads: advantage_B, reward_B [B] float, scored_B [B] bool; entropy_old_T [T] float, mask_T
    [T] bool, rollout_T [T] int; batch_entropy [] float where given.   Writes: advantage_B.
    Source: code only: lblaoke/entrocraft:verl/trainer/ppo/core_algos.py (grpo_range, nsr, raftpp).
    Differs from the source: its shipped band is inverted; the default here is the paper's.
    Nearest part: keep_inside_entropy_band, which rejects rollouts and keeps their advantages.
    Edges: unscored rollouts -> 0, not in H; rewards of 0 and 1 -> nothing left below the band.
    """

    # Lower edge, nats; may change over the run. Default: paper (hyperparameter table).
    h_low: EntropyTarget = Linear(0.6, 0.4)  # noqa: RUF009 (frozen)
    # Upper edge, nats; may change over the run. Default: paper (hyperparameter table).
    h_high: EntropyTarget = Linear(0.7, 0.5)  # noqa: RUF009 (frozen)
    # Factor on positive rewards below the band. Default: released code (nsr).
    positive_weight: float = 0.0

    def __post_init__(self) -> None:
        require(self, "h_low", "h_high")
        require(self, "positive_weight", low=0.0)

    def __call__(
        self,
        advantage_B: Tensor,
        reward_B: Tensor,
        scored_B: Tensor,
        mask_T: Tensor,
        rollout_T: Tensor,
        entropy_old_T: Tensor | None = None,
        batch_entropy: Tensor | None = None,
    ) -> Result:
        assert not isinstance(self.h_low, Schedule)
        assert not isinstance(self.h_high, Schedule)
        known = (batch_entropy, entropy_old_T, mask_T, rollout_T, scored_B)
        entropy = entropy_of_step("learn_one_sign_outside_entropy_band", *known)
        direction = 1 if entropy > self.h_high else -1 if entropy < self.h_low else 0
        chosen_B = advantage_B
        if direction > 0:
            chosen_B = reward_B.clamp(min=0)
        elif direction < 0:
            chosen_B = torch.where(reward_B > 0, self.positive_weight * reward_B, reward_B)
        metrics = {
            "entropy_control/low": float(self.h_low),
            "entropy_control/high": float(self.h_high),
            "entropy_control/entropy": entropy,
            "entropy_control/direction": float(direction),
        }
        return Result(torch.where(scored_B, chosen_B, 0), metrics=metrics)
