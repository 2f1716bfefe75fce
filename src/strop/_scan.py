"""Sums from every row to the end of its run, for all runs at once: what `segments` sums with."""

import torch
from torch import Tensor

from strop._runs import at, repeated, rows_where

LONG_BLOCK, SHORT_BLOCK = 16, 4


def sums_to_end(values_N: Tensor, size_S: Tensor, factor: float | Tensor) -> Tensor:
    """y_n = values_n + factor_n y_{n+1} [N] in runs of `size_S` rows, which lie end to end.

    A run is cut into blocks from its end. All blocks go through their sums at once, a row after
    another; then what follows a block is added, which is the same question about the blocks.
    """
    num, num_runs = values_N.shape[0], size_S.shape[0]
    width = LONG_BLOCK if num >= LONG_BLOCK // 2 * num_runs else SHORT_BLOCK
    blocks_S = (size_S + width - 1) // width
    shift_S = (blocks_S * width).cumsum(0) - size_S.cumsum(0)
    slot_N = repeated(shift_S, size_S)
    slot_N += torch.arange(num, device=slot_N.device)
    shape = (int(blocks_S.sum()), width)
    sum_WR = _in_blocks(values_N, slot_N, shape)
    if isinstance(factor, Tensor):
        factor_WR = _in_blocks(factor, slot_N, shape)
        for n in range(width - 2, -1, -1):
            sum_WR[n] += factor_WR[n] * sum_WR[n + 1]
            factor_WR[n] *= factor_WR[n + 1]
    else:
        left_W = torch.arange(width, 0, -1, device=values_N.device)
        factor_WR = (factor ** left_W.double())[:, None].expand_as(sum_WR)
        for n in range(width - 2, -1, -1):
            sum_WR[n].add_(sum_WR[n + 1], alpha=factor)
    long_R = rows_where(repeated(blocks_S > 1, blocks_S))
    if long_R.numel():
        of_long = blocks_S[blocks_S > 1]
        whole = factor_WR[0, long_R] if isinstance(factor, Tensor) else factor**width
        after_L = sums_to_end(sum_WR[0, long_R], of_long, whole).roll(-1)
        after_L[of_long.cumsum(0) - 1] = 0
        after_R = sum_WR.new_zeros(shape[0]).index_copy_(0, long_R, after_L)
        sum_WR += factor_WR * after_R
    return at(sum_WR.t().reshape(-1), slot_N)


def _in_blocks(values_N: Tensor, slot_N: Tensor, shape: tuple[int, int]) -> Tensor:
    """The values at their slots of the blocks, a column a block; 0 elsewhere."""
    wide_N = values_N.new_zeros(shape[0] * shape[1]).index_copy_(0, slot_N, values_N)
    return wide_N.view(shape).t().contiguous()
