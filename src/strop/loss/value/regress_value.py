"""Move the critic's values towards the returns."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop.errors import UserError
from strop.part import Result, require


@dataclass(frozen=True)
class RegressValue:
    """The critic learns the returns, and no value gains from moving far within one step.

        objective_t = -0.5 * max((V_t - G_t)^2, (V'_t - G_t)^2)
        V' = clip(V_t, V_old_t - clip, V_old_t + clip); without a clip V' = V

    Reads: value_T [T] float (current), return_T [T] float, value_old_T [T] float where clipped.
    Writes: objective_T [T] float (reward units squared).
    Source: code only: verl-project/verl core_algos.py (compute_value_loss), huggingface/trl
    ppo_trainer.py.
    Differs from the source: no. At a tie the gradient follows the unclipped branch.
    Nearest part: none.
    Edges: V = G -> 0; returns and old values get no gradient; at the step's first update V = V_old
    and the clip does nothing.
    """

    scope: ClassVar[str] = "token"
    # Most useful change of a value within a step, in reward units; 0: any. Default: released code
    # (verl).
    clip: float = 0.5

    def __post_init__(self) -> None:
        require(self, "clip", low=0.0)

    def __call__(
        self, value_T: Tensor, return_T: Tensor, value_old_T: Tensor | None = None
    ) -> Result:
        return_T = return_T.detach()
        error_T = (value_T - return_T).square()
        if not self.clip:
            return Result(-error_T / 2)
        if value_old_T is None:
            raise UserError("regress_value.clip needs value_old_T; clip=0 does without it")
        old_T = value_old_T.detach()
        held_T = value_T.clamp(old_T - self.clip, old_T + self.clip)
        clipped_T = (held_T - return_T).square()
        is_held_T = clipped_T > error_T
        worst_T = torch.where(is_held_T, clipped_T, error_T)
        return Result(-worst_T / 2, metrics={"critic/clip_ratio": is_held_T.float()})
