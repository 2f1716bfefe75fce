"""Fit log-probability changes as values of the policy that acts at random."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop.method.part import Result, require


@dataclass(frozen=True)
class RegressOnRandomPolicyValue:
    """A token's log-ratio moves to its advantage plus what random play is worth after it.

        Q_t = tau * log_ratio_t
        next_t = tau * (mean_logp_{t+1} - mean_logp_old_{t+1}) where t + 1 is a policy token of
                 the same turn, else 0
        objective_t = -(Q_t - sg(advantage_t + kappa * next_t))^2

    mean_logp is the mean over the whole vocabulary; the target carries no gradient.
    Metrics: rover/q_mean, rover/target_mean (advantage units).

    Reads: log_ratio_T [T], advantage_T [T], mean_logp_T [T], mean_logp_old_T [T] float, mask_T [T]
    bool, turn_T [T] int.   Writes: objective_T [T] float.
    Source: arXiv 2509.24981; code tinnerhrhe/ROVER (core_algos.py).
    Differs from the source: its clip of Q and its loss per answer, both off there, are left out.
    Nearest part: follow_advantage; 2 tau times its gradient while the ratio is 1.
    Edges: last token of a turn -> next 0; advantage 0 still learns where the ratio is not 1.
    """

    scope: ClassVar[str] = "rollout"
    detached: ClassVar[frozenset[str]] = frozenset({"mean_logp_T"})
    # Advantage units per nat of log-ratio. Default: released code (1).
    tau: float = 1.0
    # Weight of what comes after the token. Default: released code (1).
    kappa: float = 1.0

    def __post_init__(self) -> None:
        require(self, "tau", "kappa", low=0.0)

    def __call__(
        self,
        log_ratio_T: Tensor,
        advantage_T: Tensor,
        mean_logp_T: Tensor,
        mean_logp_old_T: Tensor,
        mask_T: Tensor,
        turn_T: Tensor,
    ) -> Result:
        change_T = torch.where(mask_T, (mean_logp_T - mean_logp_old_T).detach(), 0)
        next_T = torch.zeros_like(change_T)
        next_T[:-1] = torch.where(turn_T[1:] == turn_T[:-1], change_T[1:], 0)
        target_T = advantage_T + self.kappa * self.tau * next_T
        value_T = self.tau * log_ratio_T
        metrics = {"rover/q_mean": value_T, "rover/target_mean": target_T}
        return Result(-(value_T - target_T).square(), metrics=metrics)
