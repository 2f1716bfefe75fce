"""Train on the rollouts whose advantages differ most from each other."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop.batch import segments
from strop.method.part import Result, Selected, require, require_one_of
from strop.method.schedule import Schedule


@dataclass(frozen=True)
class KeepSpreadAdvantages:
    """The subset of the rollouts with the largest variance of advantages stays.

        kept = the k largest and the n - k smallest advantages, n = max(round(share * size), 1),
        with the k in 0..n that gives the kept ones the largest variance (the smallest such k)

    That is the best subset of n rollouts. Advantages stay as they are.
    Metrics: spread/variance_before and spread/variance_kept, means over the sets chosen from.

    Reads: advantage_B [B] float, group_B [B] int, num_groups int, scored_B [B] bool if present,
    mask_T [T] bool, rollout_T [T] int.   Writes: gradient_T, denominator_T [T] bool.
    Source: arXiv 2509.22115 (cross-group sampling); within groups arXiv 2504.13818.
    Differs from the source: a share of the rollouts where the source has a number; ties, which it
    does not settle, go to the first rows.
    Nearest part: keep_large_advantages; keeps everything scored when share is 1.
    Edges: unscored rollouts go; where advantages add up to 0, those of 0 stay only when n is larger
    than the others' number.
    """

    facts: ClassVar[frozenset[str]] = frozenset({"order_breaks_ties"})
    # Share of the rollouts that is kept; may change over the run. Default: ours (half; the paper's
    # numbers were not found).
    share: float | Schedule = 0.5
    # Chosen from all rollouts of the "step", or from each "group". Default: paper.
    scope: str = "step"

    def __post_init__(self) -> None:
        require(self, "share", low=0.0, high=1.0)
        require_one_of(self, "scope", ("step", "group"))

    def __call__(
        self,
        advantage_B: Tensor,
        group_B: Tensor,
        mask_T: Tensor,
        rollout_T: Tensor,
        num_groups: int,
        scored_B: Tensor | None = None,
    ) -> Result:
        assert not isinstance(self.share, Schedule), "schedules become numbers before a step"
        scored_B = torch.ones_like(group_B, dtype=torch.bool) if scored_B is None else scored_B
        key_B, num = group_B, num_groups
        if self.scope != "group":
            key_B, num = torch.zeros_like(group_B), 1
        size_P = segments.count(key_B, num, scored_B)
        number_P = (self.share * size_P.double()).round().long().clamp(min=1).minimum(size_P)
        rank_B = segments.rank(advantage_B, key_B, num, scored_B)
        top_P, best_P = _split(advantage_B.double(), rank_B, key_B, size_P, number_P, scored_B)
        low_B = rank_B < (number_P - top_P)[key_B]
        high_B = rank_B >= (size_P - top_P)[key_B]
        keep_B = scored_B & (low_B | high_B)
        spread_P = segments.std(advantage_B.double(), key_B, num, scored_B, ddof=0).square()
        metrics = {
            "spread/variance_before": segments.overall(spread_P, size_P > 0),
            "spread/variance_kept": segments.overall(best_P, size_P > 0),
        }
        keep_T = mask_T & keep_B[rollout_T]
        return Result(Selected(keep_T, keep_T, "alike_advantage"), metrics=metrics)


def _split(
    values_B: Tensor, rank_B: Tensor, key_B: Tensor, size_P: Tensor, number_P: Tensor,
    where_B: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """How many of the kept are the largest [P] int, and the variance of the kept [P]."""
    widest = int(size_P.max()) if size_P.numel() else 0
    empty_PW = values_B.new_zeros((size_P.shape[0], widest + 1))
    place = (key_B[where_B], rank_B[where_B] + 1)  # one row per set, ascending, after a 0
    sums = [
        empty_PW.index_put(place, power_B[where_B]).cumsum(1)
        for power_B in (values_B, values_B.square())
    ]
    top_W = torch.arange(widest + 1, device=size_P.device).expand_as(empty_PW)
    below_PW = (number_P[:, None] - top_W).clamp(min=0)
    above_PW = (size_P[:, None] - top_W).clamp(min=0)
    first, second = (
        s.gather(1, below_PW) + s.gather(1, size_P[:, None]) - s.gather(1, above_PW) for s in sums
    )
    count_P1 = number_P.clamp(min=1)[:, None]
    variance_PW = second / count_P1 - (first / count_P1).square()
    variance_PW = torch.where(top_W <= number_P[:, None], variance_PW, -1)
    best_P = variance_PW.max(1).values if widest else size_P.double()
    near_PW = variance_PW >= best_P[:, None] - 1e-12 * (1 + best_P[:, None])
    return near_PW.long().argmax(1), best_P.clamp(min=0)
