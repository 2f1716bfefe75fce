"""Weigh tokens by how much likelier the trainer finds them than the policy that drew them."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop.batch import segments
from strop.method.charts import Curve, LineChart
from strop.method.part import Result, require, require_one_of
from strop.support.errors import UserError

CLAMP_NATS = 20.0
ROUNDING = 1e-4  # share of a weight; a truncation by less than that counts in no metric
UNITS = ("token", "turn", "turn-mean", "sequence", "sequence-mean")


@dataclass(frozen=True)
class WeighByEngineRatio:
    """Tokens that old weights or another engine drew count as if the trainer had drawn them.

        x_t = logp_old_t - logp_behavior_t;   w = exp(clamp(X, -20, 20)), X of t's unit: x_t, or
        the sum or mean of x over the policy tokens of its turn or rollout
        outside "truncate": correction = clip(w, low, high);  "mask": w inside the band, else 0
        normalise: divided by its mean over the units of the update, unless that is below 1e-8

    Metrics: correction/mean, correction/outside_mean, correction/ess = 1 / mean((w / mean w)^2).

    Reads: logp_old_T, logp_behavior_T [T] float, mask_T [T] bool, rollout_T, turn_T [T] int,
    num_rollouts, num_turns int.   Writes: correction_T [T] float.
    Source: code only: verl-project/verl:verl/trainer/ppo/rollout_corr_helper.py (rollout_is).
    Differs from the source: a void logp_behavior (NaN) adds 0; a unit of voids has weight 1.
    Nearest part: drop_mismatched_rollouts, which removes rollouts and weighs nothing.
    Edges: what is masked keeps its place in averages; masked tokens -> 1; no gradient.
    """

    charts: ClassVar[tuple[LineChart, ...]] = (
        LineChart(
            "Effective sample",
            "Share of the sample that counts under its importance weights; 1: no mismatch.",
            (Curve("correction/ess", "of tokens"),),
            section="Stability",
            percent=True,
        ),
    )
    # The unit with one weight: token, turn, turn-mean, sequence, sequence-mean (a geometric mean).
    # Default: released code (verl).
    unit: str = "token"
    # Smallest weight, a ratio. Default: released code (verl, TRL: none).
    low: float = 0.0
    # Largest weight, a ratio. Default: released code (verl; TRL has 3).
    high: float = 2.0
    # "truncate" (to the band) or "mask" (0 outside the band). Default: released code (verl).
    outside: str = "truncate"
    # Whether weights are divided by their mean. Default: released code (verl: no).
    normalise: bool = False

    def __post_init__(self) -> None:
        require_one_of(self, "unit", UNITS)
        require_one_of(self, "outside", ("truncate", "mask"))
        require(self, "low", "high", low=0.0)

    def __call__(
        self,
        logp_old_T: Tensor,
        logp_behavior_T: Tensor,
        mask_T: Tensor,
        rollout_T: Tensor,
        turn_T: Tensor,
        num_rollouts: int,
        num_turns: int,
    ) -> Result:
        if self.low > self.high:
            raise UserError(f"weigh_by_engine_ratio: low {self.low} is above high {self.high}")
        gap_T = (logp_old_T - logp_behavior_T).detach()
        known_T = mask_T & ~gap_T.isnan()
        unit, _, kind = self.unit.partition("-")
        key_T = {"turn": turn_T, "sequence": rollout_T}.get(unit)
        if key_T is None:
            known_N, log_N = known_T, torch.where(known_T, gap_T, 0)
        else:
            num = num_turns if unit == "turn" else num_rollouts
            known_N = segments.count(key_T, num, known_T) > 0
            combine = segments.mean if kind else segments.total
            log_N = combine(gap_T, key_T, num, known_T)
        raw_N = log_N.clamp_(-CLAMP_NATS, CLAMP_NATS).exp_()
        inside_N = (raw_N >= self.low) & (raw_N <= self.high) | ~known_N
        one_N = segments.one_key(known_N)
        if self.outside == "truncate":
            bounded_N = raw_N.clamp(self.low, self.high)
            near_N = inside_N | ((bounded_N - raw_N).abs_() <= ROUNDING * raw_N)
        else:
            bounded_N, near_N = torch.zeros_like(raw_N), inside_N
        weight_N = torch.where(inside_N, raw_N, bounded_N)
        if self.normalise:
            mean = segments.mean(weight_N, one_N, 1, known_N)[0]
            weight_N = torch.where(known_N & (mean > 1e-8), weight_N / mean, weight_N)
        weight_T = torch.where(mask_T, _spread(weight_N, key_T), 1)
        wide_N = raw_N.double()
        mean = segments.mean(wide_N, one_N, 1, known_N)[0]
        squares = segments.mean(wide_N.square(), one_N, 1, known_N)[0]
        metrics = {
            "correction/mean": weight_T,
            "correction/outside_mean": _spread(~near_N, key_T).float(),
            "correction/ess": mean.square() / squares.clamp(min=1e-300),
        }
        return Result(weight_T, metrics=metrics)


def _spread(values_N: Tensor, key_T: Tensor | None) -> Tensor:
    """The value of each token's unit [T]; None: tokens are the units."""
    return values_N if key_T is None else segments.at(values_N, key_T)
