"""Move the critic's values towards the returns."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop.method.part import Result, require
from strop.support.errors import UserError


@dataclass(frozen=True)
class RegressValue:
    """The critic learns the returns, and no value gains from moving far within one step.

        objective_t = -max(cost(V_t - G_t), cost(V'_t - G_t)),   cost(e) = e^2 / 2
        V' = clip(V_t, V_old_t - clip, V_old_t + clip); without a clip V' = V
        with delta: cost(e) = delta (|e| - delta / 2) where |e| > delta, so no error pulls harder

    Reads: value_T [T] float (current), return_T [T] float, value_old_T [T] float where clipped.
    Writes: objective_T [T] float (reward units squared).
    Source: code only: verl-project/verl core_algos.py (compute_value_loss), huggingface/trl
    ppo_trainer.py; delta arXiv 2504.16129 (jwliao-ai/MARFT util.py, huber_loss).
    Differs from the source: a value more than delta above its return costs too (nothing there). At
    a tie the gradient follows the unclipped branch.
    Nearest part: none.
    Edges: V = G -> 0; returns and old values get no gradient; at the step's first update V = V_old
    and the clip does nothing.
    """

    scope: ClassVar[str] = "token"
    # Most useful change of a value within a step, in reward units; 0: any. Default: released code
    # (verl).
    clip: float = 0.5
    # Error beyond which the cost is linear, in reward units; 0: nowhere. Default: ours (nowhere).
    delta: float = 0.0

    def __post_init__(self) -> None:
        require(self, "clip", "delta", low=0.0)

    def __call__(
        self, value_T: Tensor, return_T: Tensor, value_old_T: Tensor | None = None
    ) -> Result:
        return_T = return_T.detach()
        cost_T = self._cost(value_T - return_T)
        if not self.clip:
            return Result(-cost_T)
        if value_old_T is None:
            raise UserError("regress_value.clip needs value_old_T; clip=0 does without it")
        old_T = value_old_T.detach()
        held_T = value_T.clamp(old_T - self.clip, old_T + self.clip)
        held_cost_T = self._cost(held_T - return_T)
        is_held_T = held_cost_T > cost_T
        worst_T = torch.where(is_held_T, held_cost_T, cost_T)
        return Result(-worst_T, metrics={"critic/clip_ratio": is_held_T.float()})

    def _cost(self, error_T: Tensor) -> Tensor:
        if not self.delta:
            return error_T.square() / 2
        size_T = error_T.abs()
        near_T = size_T.clamp(max=self.delta)  # finite gradients for delta=inf, too
        return near_T * (size_T - near_T / 2)
