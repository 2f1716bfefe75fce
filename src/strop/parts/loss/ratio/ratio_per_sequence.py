"""Compare the current policy with the one before the update, one whole answer at a time."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop.batch import segments
from strop.method.part import Result, present, require, require_one_of


@dataclass(frozen=True)
class RatioPerSequence:
    """All tokens of a rollout, or of a turn, share one ratio, the geometric mean of theirs.

        log_ratio_t = min(mean_{s in unit of t, mask_s} (logp_s - logp_old_s), max_nats)

    With product the sum takes the place of the mean: the ratio of the unit's whole probability.
    With own_gradient a token's log-ratio has that value and the gradient of its own logp_t alone.

    Reads: logp_T [T] float, logp_old_T [T] float, mask_T [T] bool, rollout_T [T] int, num_rollouts
    int; turn_T [T] int, num_turns int where turns are the unit.
    Writes: log_ratio_T [T] float (nats).
    Source: arXiv 2507.18071, eq. 7.
    Differs from the source: bounded above at max_nats against overflow, as verl does.
    Nearest part: ratio_per_token; equal to it when every rollout has one policy token.
    Edges: a unit without policy tokens -> 0; a void logp_old (NaN) -> its token's ratio is 1;
    beyond max_nats the gradient is 0. Where tokens of a unit have different advantages, each
    token's advantage weighs the whole unit's gradient.
    """

    scope: ClassVar[str] = "rollout"
    # Largest log-ratio, nats. Default: released code (verl).
    max_nats: float = 10.0
    # Whether token ratios are multiplied, without a root. Default: paper (no).
    product: bool = False
    # Whether a token's gradient is its own alone (eq. 14). Default: paper (no).
    own_gradient: bool = False

    # What shares a ratio: "rollout" or "turn". Default: paper (the whole answer).
    unit: str = "rollout"

    def __post_init__(self) -> None:
        require(self, "max_nats", low=0.0)
        require_one_of(self, "unit", ("rollout", "turn"))

    @property
    def unread(self) -> frozenset[str]:
        """The columns of turns, where rollouts are the unit."""
        return frozenset({"turn_T", "num_turns"}) if self.unit == "rollout" else frozenset()

    def __call__(
        self,
        logp_T: Tensor,
        logp_old_T: Tensor,
        mask_T: Tensor,
        rollout_T: Tensor,
        num_rollouts: int,
        turn_T: Tensor | None = None,
        num_turns: int = 0,
    ) -> Result:
        old_T = torch.where(logp_old_T.isnan(), logp_T, logp_old_T).detach()
        combine = segments.total if self.product else segments.mean
        unit_T, num = rollout_T, num_rollouts
        if self.unit == "turn":
            unit_T, num = present(turn_T), num_turns
        moved_T = logp_T - old_T
        ratio_N = combine(moved_T, unit_T, num, mask_T)
        if self.own_gradient:
            ratio_T = ratio_N.detach()[unit_T] + (logp_T - logp_T.detach())
            log_ratio_T = ratio_T.clamp(max=self.max_nats)
        else:
            log_ratio_T = ratio_N.clamp(max=self.max_nats)[unit_T]
        near_T = moved_T.detach().clamp(-self.max_nats, self.max_nats)
        metrics = {
            "ratio/log_abs_mean": log_ratio_T.detach().abs(),
            "approx_kl": near_T.expm1() - near_T,
            "ratio/token_distance_mean": (moved_T - log_ratio_T).detach().abs(),
        }
        return Result(log_ratio_T, metrics=metrics)
