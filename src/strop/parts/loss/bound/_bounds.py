"""The clip of the ratio, the dual clip, and bounds tried one after another with their sums."""

from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from strop.batch import segments
from strop.support.errors import UserError

Bound = TypeVar("Bound", float, Tensor)
DUAL = "clip_ratio/dual_mean"  # the metric of tokens that the dual clip holds


class Clipped(NamedTuple):
    """The objective [T] of a clip, the tokens [T] that it holds, and its metrics."""

    value: Tensor
    held_T: Tensor
    metrics: dict[str, Tensor]


def clip(
    ratio_T: Tensor, advantage_T: Tensor, low: Bound, high: Bound, centre: float | Tensor = 1.0
) -> Clipped:
    """min(rho A, clip(rho, low, high) A); `low` and `high` are numbers, or one per token.

    At a tie the gradient follows the unclipped branch. Metrics distinguish tokens held below the
    centre from those above it.
    """
    free_T = ratio_T * advantage_T
    bound_T = ratio_T.clamp(low, high) * advantage_T
    held_T = bound_T < free_T
    objective_T = torch.where(held_T, bound_T, free_T)
    metrics = {
        "clip_ratio/low_mean": (held_T & (ratio_T < centre)).float(),
        "clip_ratio/high_mean": (held_T & (ratio_T > centre)).float(),
        "clip_ratio/region_mean": held_T.float(),
    }
    return Clipped(objective_T, held_T, metrics)


def dual_clipped(clipped: Clipped, advantage_T: Tensor, dual_clip_c: float) -> Clipped:
    """The objective raised to dual_clip_c * A where A < 0 and it is lower, which bounds what a bad
    token's ratio can do; unchanged if dual_clip_c is 0.
    """
    if not dual_clip_c:
        return clipped
    if dual_clip_c <= 1:
        raise UserError(f"dual_clip_c must be above 1, or 0 for none, it is {dual_clip_c}")
    floor_T = dual_clip_c * advantage_T
    under_T = (advantage_T < 0) & (clipped.value < floor_T)
    objective_T = torch.where(under_T, floor_T, clipped.value)
    return Clipped(objective_T, clipped.held_T, {**clipped.metrics, DUAL: under_T.float()})


def unlogged(dual_clip_c: float) -> frozenset[str]:
    """The metrics that are not logged without a dual clip."""
    return frozenset() if dual_clip_c else frozenset({DUAL})


def steps(first: float, last: float, step: float, to_the_end: bool) -> Tensor:
    """first, first + step, ... up to `last`, with a tolerance; `last` too if `to_the_end`."""
    num = max(int((last - first) / step + 1e-6), 0)
    steps_S = first + step * torch.arange(num + 1, dtype=torch.float64)
    if to_the_end and last > float(steps_S[-1]) + 1e-9:
        steps_S = torch.cat([steps_S, torch.tensor([last], dtype=torch.float64)])
    return steps_S


def sum_below(ratio_N: Tensor, weight_N: Tensor, cap_S: Tensor) -> Tensor:
    """Sum of weight * min(ratio, cap) for every cap [S], float64.

    One pass: tokens are sorted into the intervals between the caps, which need not be ordered.
    """
    edges_S, order_S = torch.unique(cap_S, return_inverse=True)
    num = edges_S.shape[0] + 1
    place_N = torch.bucketize(ratio_N.double(), edges_S)
    whole_S = segments.total((weight_N * ratio_N).double(), place_N, num).cumsum(0)
    cut_S = segments.total(weight_N.double(), place_N, num)
    above_S = cut_S.flip(0).cumsum(0).flip(0)[1:]
    sum_S: Tensor = (whole_S[:-1] + edges_S * above_S)[order_S]
    return sum_S
