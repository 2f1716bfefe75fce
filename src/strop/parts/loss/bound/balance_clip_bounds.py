"""Widen the clip until good tokens carry a set share of the push."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop.batch import segments
from strop.method.part import Result, require, require_one_of
from strop.parts.loss.bound._bounds import clip, dual_clipped, steps, sum_below, unlogged
from strop.support.errors import UserError

Search = tuple[float, float, float]  # first bound, last bound, step; ratios
MOST_BOUNDS = 100_000  # that are tried


@dataclass(frozen=True)
class BalanceClipBounds:
    """Each update searches its own clip, so that bad tokens do not drown out good ones.

        objective_t = min(rho_t A_t, clip(rho_t, c_low, c_high) A_t), and with dual_clip_c at
        least dual_clip_c * A_t where A_t < 0
        P, N = sums of |objective_t| over A_t > 0 and A_t < 0, before the dual clip
        "paper": tokens weighed by the sampling policy's probability; c_high rises to its last
                 bound, then c_low, until P / (P + N) >= target; never past a last bound
        "code": unweighted; c_low first, then c_high, until P / N >= target; ends on the last bounds

    Sums are over gradient_T of the update. Metrics: bapo/c_low, bapo/c_high.

    Reads: log_ratio_T, logp_T, advantage_T [T] float, gradient_T [T] bool, and logp_behavior_T
    [T] float where given (else logp_T - log_ratio_T).   Writes: objective_T [T] float.
    Source: arXiv 2510.18927; code WooooDyy/BAPO.
    Differs from the source: sums are of the update, the code's of a micro-batch over all ranks.
    Nearest part: clip_both_sides; equal to it when first and last bounds are equal.
    Edges: no bad token -> first bounds; target out of reach -> last bounds; "paper" with one lower
    bound -> first bounds, since its search ends where c_low cannot rise.
    """

    scope: ClassVar[str] = "update"
    facts: ClassVar[frozenset[str]] = frozenset({"silent_at_zero_advantage"})
    # First and last lower bound and the step between; ratios. Default: paper (0.02 a step).
    low: Search = (0.6, 0.9, 0.02)
    # First and last upper bound and the step between; ratios. Default: paper (0.05 a step).
    high: Search = (1.2, 3.0, 0.05)
    # P / (P + N) of the paper's form, P / N of the code's. Default: paper (0.4).
    target: float = 0.4
    # Largest ratio on negative advantages, above 1; 0: none. Default: paper (none; the code has 3).
    dual_clip_c: float = 0.0
    # "paper" or "code". Default: paper.
    source_form: str = "paper"

    def __post_init__(self) -> None:
        _check("low", self.low)
        _check("high", self.high)
        require(self, "target", "dual_clip_c", low=0.0)
        require_one_of(self, "source_form", ("paper", "code"))

    @property
    def unlogged(self) -> frozenset[str]:
        """The metric of the dual clip, where there is none."""
        return unlogged(self.dual_clip_c)

    def __call__(
        self,
        log_ratio_T: Tensor,
        logp_T: Tensor,
        advantage_T: Tensor,
        gradient_T: Tensor,
        logp_behavior_T: Tensor | None = None,
    ) -> Result:
        ratio_T = log_ratio_T.exp()
        old_T = (logp_T - log_ratio_T).detach()
        if logp_behavior_T is not None:
            old_T = torch.where(logp_behavior_T.isnan(), old_T, logp_behavior_T)
        paper = self.source_form == "paper"
        weight_T = advantage_T.abs() * (old_T.exp() if paper else 1)
        low, high = self._search(ratio_T.detach(), weight_T, advantage_T, gradient_T)
        clipped = clip(ratio_T, advantage_T, low, high)
        clipped = dual_clipped(clipped, advantage_T, self.dual_clip_c)
        metrics = {**clipped.metrics, "bapo/c_low": low, "bapo/c_high": high}
        return Result(clipped.value, metrics=metrics)

    def _search(
        self, ratio_T: Tensor, weight_T: Tensor, advantage_T: Tensor, gradient_T: Tensor
    ) -> tuple[float, float]:
        """The first pair of bounds on the way that reaches the target, else the last pair."""
        good_N = segments.rows_where(gradient_T & (advantage_T > 0))
        bad_N = segments.rows_where(gradient_T & (advantage_T < 0))
        low_S, high_S = self._way(ratio_T)
        good_S = sum_below(segments.at(ratio_T, good_N), segments.at(weight_T, good_N), high_S)
        # sum of weight * max(ratio, c) = sum of weight * (ratio + c) - weight * min(ratio, c)
        ratio_N, weight_N = segments.at(ratio_T, bad_N), segments.at(weight_T, bad_N)
        bad_S = (weight_N * ratio_N).double().sum() + weight_N.double().sum() * low_S
        bad_S = bad_S - sum_below(ratio_N, weight_N, low_S)
        if self.source_form == "paper":
            reached_S = good_S >= self.target * (good_S + bad_S)
        else:
            reached_S = (good_S >= self.target * (bad_S + 1e-8)) | (bad_S <= 0)
        reached_S[-1] = True
        first = int(reached_S.to(torch.int64).argmax())
        return float(low_S[first]), float(high_S[first])

    def _way(self, ratio_T: Tensor) -> tuple[Tensor, Tensor]:
        """Lower and upper bounds [S] in the order in which they are tried, float64."""
        code = self.source_form == "code"
        low_S, high_S = (
            steps(*search, code).to(ratio_T.device) for search in (self.low, self.high)
        )
        if not code and low_S.shape[0] == 1:  # the paper's loop ends when c_low cannot rise
            high_S = high_S[:1]
        if code:
            return (
                torch.cat([low_S, low_S[-1:].expand(high_S.shape[0] - 1)]),
                torch.cat([high_S[:1].expand(low_S.shape[0]), high_S[1:]]),
            )
        return (
            torch.cat([low_S[:1].expand(high_S.shape[0]), low_S[1:]]),
            torch.cat([high_S, high_S[-1:].expand(low_S.shape[0] - 1)]),
        )


def _check(name: str, search: Search) -> None:
    if len(search) != 3 or search[2] <= 0:
        raise UserError(f"balance_clip_bounds.{name} must be (first, last, step > 0): {search}")
    if not (search[1] - search[0]) / search[2] < MOST_BOUNDS:
        raise UserError(f"balance_clip_bounds.{name} has more than {MOST_BOUNDS} bounds: {search}")
