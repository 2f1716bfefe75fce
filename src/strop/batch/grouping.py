"""Rows with equal keys: their runs, their order, and the sums that `segments` takes over them.

Rows of a key mostly lie together. Reducing whole runs by numpy, and then the few runs by their
keys, takes a quarter of the time of a scatter row by row.
"""

import itertools
from collections.abc import MutableMapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

SHORTEST = 4  # mean rows per run; with fewer, row by row is as fast


class Runs(NamedTuple):
    """Where each run begins, its rows, and its key; a key may have several runs."""

    start_R: np.ndarray
    size_R: Tensor
    key_R: Tensor


# By key column, with its version: a step needs the runs of the same few columns again and again.
# A write by torch raises a tensor's version. A write through `.numpy()` does not, so it is not
# allowed: nothing here writes into memory that torch and numpy share, columns of a batch are never
# changed in place, and tests hold all parts to that, whatever they write with.
_known: MutableMapping[Tensor, tuple[int, Runs | None]] = WeakTensorKeyDictionary()


def starts(key_N: Tensor) -> np.ndarray:
    """First row of every run; the key lies on the CPU and has rows."""
    keys = key_N.numpy(force=True)
    return np.concatenate([[0], np.flatnonzero(keys[1:] != keys[:-1]) + 1])


def sizes(key_N: Tensor) -> Tensor:
    """Rows of every run [R]."""
    if key_N.device.type != "cpu":
        size_R: Tensor = torch.unique_consecutive(key_N, return_counts=True)[1]
        return size_R
    return torch.from_numpy(np.diff(starts(key_N), append=key_N.shape[0]))


def runs_of(key_N: Tensor, *values_N: Tensor | None) -> Runs | None:
    """The runs of a key, where it has long ones and numpy can reduce those values; else None."""
    if key_N.device.type != "cpu" or not key_N.numel() or not all(map(_is_plain, values_N)):
        return None
    if key_N.is_inference():  # has no version
        return _found(key_N)
    version, runs = _known.get(key_N, (-1, None))
    if version != key_N._version:
        runs = _found(key_N)
        _known[key_N] = (key_N._version, runs)
    return runs


def _found(key_N: Tensor) -> Runs | None:
    start_R = starts(key_N)
    if len(start_R) * SHORTEST > key_N.shape[0]:
        return None
    size_R = torch.from_numpy(np.diff(start_R, append=key_N.shape[0]))
    return Runs(start_R, size_R, key_N[torch.from_numpy(start_R)])


def _is_plain(values_N: Tensor | None) -> bool:
    """Whether numpy can hold the values, and no gradient is needed."""
    if values_N is None:
        return True
    wants_gradient = values_N.requires_grad and torch.is_grad_enabled()
    return not wants_gradient and values_N.dtype != torch.bfloat16


def sums(values_N: Tensor, runs: Runs, num: int) -> Tensor:
    """Sum per key [num] in float64; a run is added in the order of its rows."""
    wide_N = values_N.double()
    sum_R = torch.segment_reduce(wide_N, "sum", lengths=runs.size_R, unsafe=True)
    return torch.zeros(num, dtype=torch.float64).index_add_(0, runs.key_R, sum_R)


def counts(where_N: Tensor | None, runs: Runs, num: int) -> Tensor:
    """Members per key [num] int64."""
    size_R = runs.size_R
    if where_N is not None:
        size_R = _reduced(np.add, where_N.view(torch.uint8), runs, dtype=np.int32).long()
    return torch.zeros(num, dtype=torch.int64).index_add_(0, runs.key_R, size_R)


def extremes(values_N: Tensor, runs: Runs, num: int, largest: bool) -> Tensor:
    """Largest or smallest value per key [num]; 0 for a key without rows."""
    reduced_R = _reduced(np.maximum if largest else np.minimum, values_N, runs)
    mode, zeros = "amax" if largest else "amin", values_N.new_zeros(num)
    return zeros.scatter_reduce(0, runs.key_R, reduced_R, mode, include_self=False)


def _reduced(ufunc: np.ufunc, values_N: Tensor, runs: Runs, **options: Any) -> Tensor:
    return torch.from_numpy(ufunc.reduceat(values_N.numpy(force=True), runs.start_R, **options))


def rows_where(where_N: Tensor) -> Tensor:
    """The rows [M] int where the mask is true."""
    if where_N.device.type == "cpu":  # numpy's is several times as fast
        return torch.from_numpy(np.flatnonzero(where_N.numpy()))
    return where_N.nonzero().squeeze(1)


def at(values_N: Tensor, row_M: Tensor) -> Tensor:
    """`values_N[row_M]` for rows from 0 on; differentiable."""
    # On the CPU this is several times as fast; elsewhere its gradient is not the same every time.
    return values_N.index_select(0, row_M) if values_N.device.type == "cpu" else values_N[row_M]


def repeated(values_S: Tensor, size_S: Tensor) -> Tensor:
    """values_S[s] repeated size_S[s] times, end to end; differentiable."""
    if values_S.device.type == "cpu" and _is_plain(values_S):  # numpy needs no index of all rows
        return torch.from_numpy(np.repeat(values_S.numpy(force=True), size_S.numpy()))
    return torch.repeat_interleave(values_S, size_S)


def ranges(start_S: Tensor, size_S: Tensor) -> Tensor:
    """size_S[s] rows from start_S[s] on, end to end."""
    row_N = repeated(start_S - (size_S.cumsum(0) - size_S), size_S)
    return row_N.add_(torch.arange(row_N.shape[0], device=row_N.device))


LONG_BLOCK, SHORT_BLOCK = 16, 4


def sums_to_end(values_N: Tensor, size_S: Tensor, factor: float | Tensor) -> Tensor:
    """y_n = values_n + factor_n y_{n+1} [N] in runs of `size_S` rows, which lie end to end.

    A run is cut into blocks from its end. All blocks are summed at once, row by row; then the sum
    of the rows after each block is added, which is the same problem over the blocks.
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
    """The values at their slots of the blocks, one column per block; 0 elsewhere."""
    wide_N = values_N.new_zeros(shape[0] * shape[1]).index_copy_(0, slot_N, values_N)
    return wide_N.view(shape).t().contiguous()


def by_key_and_value(values_N: Tensor, key_N: Tensor, where_N: Tensor | None) -> Tensor:
    """Rows of the members by key, then by value, then in row order."""
    if where_N is None:
        row_N = torch.arange(values_N.shape[0], device=key_N.device)
    else:
        row_N = rows_where(where_N)
    if _is_narrow(values_N):
        packed_N = _packed(values_N[row_N], key_N[row_N])
        return row_N[torch.argsort(packed_N, stable=True)]
    row_N = row_N[torch.argsort(values_N[row_N], stable=True)]
    return row_N[torch.argsort(key_N[row_N], stable=True)]


def sorted_values(
    values_N: Tensor, key_N: Tensor, where_N: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Values and keys of the members, by key, then by value; without gradient."""
    values_N = values_N.detach()
    if where_N is not None:
        row_N = rows_where(where_N)
        values_N, key_N = at(values_N, row_N), at(key_N, row_N)
    if (runs := runs_of(key_N, values_N)) is not None:
        return _sorted_in_runs(values_N, key_N, runs)
    if not _is_narrow(values_N):
        row_N = by_key_and_value(values_N, key_N, None)
        return values_N[row_N], key_N[row_N]
    packed_N = _packed(values_N, key_N)
    if packed_N.device.type == "cpu":  # several times as fast as torch's, which keeps the rows
        packed_N = torch.from_numpy(np.sort(packed_N.numpy()))
    else:
        packed_N = packed_N.sort().values
    key_N = (packed_N + (1 << 31)) >> 32
    bits_N = packed_N - (key_N << 32)
    bits_N = bits_N ^ ((bits_N >> 63) & 0x7FFFFFFF)
    return bits_N.to(torch.int32).view(torch.float32).to(values_N.dtype), key_N


def _sorted_in_runs(values_N: Tensor, key_N: Tensor, runs: Runs) -> tuple[Tensor, Tensor]:
    """`sorted_values` where rows of a key lie together: many short sorts cost less than one."""
    if bool((runs.key_R[1:] < runs.key_R[:-1]).any()):
        order_R = torch.argsort(runs.key_R, stable=True)
        size_R = runs.size_R[order_R]
        values_N = at(values_N, ranges(torch.from_numpy(runs.start_R)[order_R], size_R))
        key_N = repeated(runs.key_R[order_R], size_R)
    sorted_N = values_N + 0  # a copy, in which -0 is 0
    by_row = sorted_N.numpy()
    for start, end in itertools.pairwise([*starts(key_N).tolist(), len(by_row)]):
        by_row[start:end].sort()
    return sorted_N, key_N


def at_places(values_N: Tensor, places: Sequence[int]) -> Tensor:
    """The values that a sort would put at these places, the smallest at 0; without gradient."""
    values_N, wanted = values_N.detach(), list(places)
    if values_N.device.type == "cpu" and values_N.dtype != torch.bfloat16:
        return torch.from_numpy(np.partition(values_N.numpy(), wanted)[wanted])
    return values_N.sort().values[wanted]


def in_order(
    values_N: Tensor, key_N: Tensor, where_N: Tensor | None, size: Tensor, places: Sequence[Tensor]
) -> list[Tensor]:
    """The members [num] that a sort would put at these places [num] of their keys, from 0.

    size [num]: members of each key; for a key without members the result is any number. No
    gradient.
    """
    if size.shape[0] == 1 and values_N.device.type == "cpu":  # nothing has to be sorted
        member_N = values_N if where_N is None else at(values_N, rows_where(where_N))
        if member_N.shape[0] == 0:
            return [values_N.new_zeros(1) for _ in places]
        return list(torch.split(at_places(member_N, torch.cat(list(places)).tolist()), 1))
    sorted_N, _ = sorted_values(values_N, key_N, where_N)
    if sorted_N.shape[0] == 0:
        return [values_N.new_zeros(size.shape) for _ in places]
    start = size.cumsum(0) - size
    return [sorted_N[(start + place).clamp(max=sorted_N.shape[0] - 1)] for place in places]


def largest(values_N: Tensor, number: int) -> Tensor:
    """Whether a row is one of the `number` largest [N] bool; of equal ones the first count."""
    if number <= 0:
        return torch.zeros_like(values_N, dtype=torch.bool)
    least = at_places(values_N, (values_N.shape[0] - number,))
    found_N = values_N > least
    ties = rows_where(values_N == least)[: number - int(found_N.sum())]
    return found_N.index_fill_(0, ties, True)


def _is_narrow(values_N: Tensor) -> bool:
    """Whether a value and a key fit into one int64."""
    return values_N.is_floating_point() and values_N.dtype != torch.float64


def _packed(values_N: Tensor, key_N: Tensor) -> Tensor:
    """One int64 per row, ordered by key and then by value: one sort in place of two.

    A float's bits, inverted for a negative one, have the order of the floats; -0 is 0.
    """
    bits_N = (values_N.float() + 0.0).view(torch.int32).long()
    return (key_N << 32) + (bits_N ^ ((bits_N >> 63) & 0x7FFFFFFF))
