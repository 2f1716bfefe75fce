"""Measure bundles by how far they fall into the lower tail of scores."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from strop.batch import segments
from strop.batch.columns import Column
from strop.method.part import Result, require
from strop.support.errors import UserError


@dataclass(frozen=True)
class WeighLowerTail:
    """Bad bundles are learned from most, bundles that are good enough not at all.

        a, b: quantiles of Z at the levels alpha < beta;  x+ = max(x, 0)
        RVaR = ((Z - a)+ - (Z - b)+ [+ a - b if natural]) / (beta - alpha + 1e-6)
        CVaR = -(a - Z)+ / (alpha + 1e-6);    advantage = (weight CVaR + RVaR) / (weight + 1)

    Quantiles are tracked over the run, q <- q + rate (level - share of Z < q) after a step, from
    those of the first step's bundles on; with rate 0 they are each bundle's own. Where
    given, q_alpha and q_beta are used as they are.

    Reads: bundle_score_B [B] float, slot_B, bundle_B [B] int; q_alpha, q_beta [] float where
    given; state.   Writes: advantage_B [B] float.
    Source: arXiv 2510.00911; code RTkenny/RiskPO.
    Differs from the source: the code's tracker never reaches the next step, so there each
    bundle's own quantiles are in use (rate 0).
    Nearest part: sum_over_bundles, whose scores it reads.
    Edges: in no slot -> 0; the quantiles are in the checkpoint, so a restart loses nothing.
    """

    declares: ClassVar[tuple[Column, ...]] = (
        Column("q_alpha", "float", "the lower quantile, where it is known", random="0.1"),
        Column("q_beta", "float", "the upper quantile, where it is known", random="0.9"),
    )

    # Alpha and beta. Default: released code (script: 0.2 and 0.8, DAPO-math).
    levels: tuple[float, float] = (0.2, 0.8)
    # Weight of the tail below alpha. Default: paper (1.5).
    weight: float = 1.5
    # Whether RVaR is at most 0. Default: released code (script: no, DAPO-math).
    natural: bool = False
    # Speed of the tracked quantiles; 0: each bundle's own. Default: paper (0.1).
    rate: float = 0.1

    def __post_init__(self) -> None:
        require(self, "weight", "rate", low=0.0)
        if len(self.levels) != 2 or not 0 <= self.levels[0] < self.levels[1] <= 1:
            raise UserError(
                f"weigh_lower_tail.levels must be two shares, alpha < beta: {self.levels}"
            )
        if self.weight and self.levels[0] == 0:  # the tail is divided by it
            raise UserError(
                f"weigh_lower_tail.levels begin at 0, below which no tail lies: {self.levels}: "
                "give a larger alpha, or the tail no weight"
            )

    def init(self) -> dict[str, float]:
        """No quantiles are known before the first step."""
        return {}

    def update(
        self, bundle_score_B: Tensor, slot_B: Tensor, state: Mapping[str, float]
    ) -> dict[str, float]:
        """The tracked quantiles after a step."""
        score_N, _ = _slots(bundle_score_B, slot_B, slot_B)
        if self.rate == 0 or score_N.shape[0] == 0:
            return dict(state)
        one_N = segments.one_key(score_N)

        def moved(name: str, level: float) -> float:
            known = name in state
            q = state[name] if known else float(segments.quantile(score_N, one_N, 1, level))
            below = segments.mean((score_N < q).double(), one_N, 1)
            return q + self.rate * (level - float(below))

        return {"low": moved("low", self.levels[0]), "high": moved("high", self.levels[1])}

    def __call__(
        self,
        bundle_score_B: Tensor,
        slot_B: Tensor,
        bundle_B: Tensor,
        q_alpha: Tensor | None = None,
        q_beta: Tensor | None = None,
        state: Mapping[str, Any] | None = None,
    ) -> Result:
        alpha, beta = self.levels
        low_B = self._quantile(alpha, bundle_score_B, slot_B, bundle_B)
        high_B = self._quantile(beta, bundle_score_B, slot_B, bundle_B)
        known = state or {}
        q_alpha = known.get("low") if q_alpha is None else q_alpha
        q_beta = known.get("high") if q_beta is None else q_beta
        a_B = low_B if q_alpha is None else torch.full_like(low_B, float(q_alpha))
        b_B = high_B if q_beta is None else torch.full_like(high_B, float(q_beta))
        middle_B = (bundle_score_B - a_B).clamp(min=0) - (bundle_score_B - b_B).clamp(min=0)
        middle_B = middle_B + (a_B - b_B) if self.natural else middle_B
        tail_B = -(a_B - bundle_score_B).clamp(min=0) / (alpha + 1e-6)
        mixed_B = (self.weight * tail_B + middle_B / (beta - alpha + 1e-6)) / (self.weight + 1)
        inside_B = slot_B >= 0
        metrics = {
            "tail/low": segments.overall(a_B, inside_B),
            "tail/high": segments.overall(b_B, inside_B),
        }
        return Result(torch.where(inside_B, mixed_B, 0), metrics=metrics)

    def _quantile(self, level: float, score_B: Tensor, slot_B: Tensor, bundle_B: Tensor) -> Tensor:
        """The quantile [B] of the step's scores, or with rate 0 of each bundle's."""
        key_B = torch.zeros_like(bundle_B) if self.rate else bundle_B
        num = 1 if self.rate else segments.count_of(bundle_B)
        score_N, key_N = _slots(score_B, slot_B, key_B)
        return segments.quantile(score_N, key_N, num, level)[key_B]


def _slots(score_B: Tensor, slot_B: Tensor, key_B: Tensor) -> tuple[Tensor, Tensor]:
    """Score and key [slots] of every slot, which all of its rollouts share."""
    row_N = (slot_B >= 0).nonzero().squeeze(1)
    slot_N, num = segments.key_of(slot_B[row_N])
    score_N = segments.mean(score_B[row_N], slot_N, num)
    return score_N, segments.extreme(key_B[row_N], slot_N, num, largest=False)
