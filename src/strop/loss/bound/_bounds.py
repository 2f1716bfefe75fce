"""Bounds that are tried one after another, and what a column sums up to under each of them."""

import torch
from torch import Tensor

from strop import segments


def steps(first: float, last: float, step: float, to_the_end: bool) -> Tensor:
    """first, first + step, ... up to `last`, with a tolerance; and `last` itself if so wished."""
    num = max(int((last - first) / step + 1e-6), 0)
    steps_S = first + step * torch.arange(num + 1, dtype=torch.float64)
    if to_the_end and last > float(steps_S[-1]) + 1e-9:
        steps_S = torch.cat([steps_S, torch.tensor([last], dtype=torch.float64)])
    return steps_S


def sum_below(ratio_T: Tensor, weight_T: Tensor, where_T: Tensor, cap_S: Tensor) -> Tensor:
    """Sum of weight * min(ratio, cap) over `where_T` for every cap [S], float64.

    One pass: tokens are sorted into the intervals between the caps, which need not be ordered.
    """
    edges_S, order_S = cap_S.unique(return_inverse=True)
    num = edges_S.shape[0] + 1
    place_T = torch.bucketize(ratio_T.double(), edges_S)
    whole_S = segments.total((weight_T * ratio_T).double(), place_T, num, where_T).cumsum(0)
    cut_S = segments.total(weight_T.double(), place_T, num, where_T)
    above_S = cut_S.flip(0).cumsum(0).flip(0)[1:]
    return (whole_S[:-1] + edges_S * above_S)[order_S]
