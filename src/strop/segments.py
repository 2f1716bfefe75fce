"""Statistics of one column grouped by a key: the only copy of grouped and masked arithmetic.

Every function takes `values_N` [N], a key `key_N` [N] int in 0..num-1 and `num`, and returns one
number per key ([num]) unless it says otherwise. `where_N` [N] bool names the members that count;
values elsewhere may be anything, NaN included. Sums are taken in float64 and returned in the
values' dtype, so a float32 batch of millions of tokens loses nothing.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor


def _clean(values_N: Tensor, where_N: Tensor | None) -> Tensor:
    return values_N if where_N is None else torch.where(where_N, values_N, values_N.new_zeros(()))


def count(key_N: Tensor, num: int, where_N: Tensor | None = None) -> Tensor:
    """Members per key, int64."""
    ones = torch.ones_like(key_N) if where_N is None else where_N.to(torch.int64)
    return torch.zeros(num, dtype=torch.int64, device=key_N.device).index_add_(0, key_N, ones)


def total(values_N: Tensor, key_N: Tensor, num: int, where_N: Tensor | None = None) -> Tensor:
    """Sum per key; 0 for a key without members. Differentiable in `values_N`."""
    wide = _clean(values_N, where_N).double()
    zeros = torch.zeros(num, dtype=torch.float64, device=key_N.device)
    return zeros.index_add(0, key_N, wide).to(values_N.dtype)


def mean(
    values_N: Tensor,
    key_N: Tensor,
    num: int,
    where_N: Tensor | None = None,
    weight_N: Tensor | None = None,
) -> Tensor:
    """Mean per key, weighted by `weight_N` where given; 0 for a key without weight."""
    if weight_N is None:
        size = count(key_N, num, where_N).double()
        sums = total(values_N.double(), key_N, num, where_N)
    else:
        size = total(weight_N.double(), key_N, num, where_N)
        sums = total(values_N.double() * weight_N, key_N, num, where_N)
    wide = torch.where(size > 0, sums / torch.where(size > 0, size, 1), 0)
    return wide.to(values_N.dtype)


def std(
    values_N: Tensor, key_N: Tensor, num: int, where_N: Tensor | None = None, ddof: int = 1
) -> Tensor:
    """Standard deviation per key with `ddof` (1 unbiased, 0 biased); 0 where too few members.

    Equal values give exactly 0: deviations are taken from the mean, which for equal values is
    corrected to the value itself.
    """
    centred = values_N - _exact_mean(values_N, key_N, num, where_N)[key_N]
    squares = total(centred.double() ** 2, key_N, num, where_N)
    free = (count(key_N, num, where_N) - ddof).clamp(min=0)
    variance = torch.where(free > 0, squares / free.clamp(min=1), 0)
    return variance.sqrt().to(values_N.dtype)


def _exact_mean(values_N: Tensor, key_N: Tensor, num: int, where_N: Tensor | None) -> Tensor:
    """The mean, clamped between the smallest and the largest member, so equal values stay exact."""
    low = extreme(values_N, key_N, num, where_N, largest=False)
    high = extreme(values_N, key_N, num, where_N, largest=True)
    return torch.minimum(torch.maximum(mean(values_N, key_N, num, where_N), low), high)


def centred(values_N: Tensor, key_N: Tensor, num: int, where_N: Tensor | None = None) -> Tensor:
    """`values_N` minus the mean of its key [N]; equal members give exactly 0."""
    return values_N - _exact_mean(values_N, key_N, num, where_N)[key_N]


def leave_one_out_mean(
    values_N: Tensor, key_N: Tensor, num: int, where_N: Tensor | None = None
) -> Tensor:
    """Per member [N], the mean of the key's other members; 0 for an only member.

    Equal members give exactly their value: the mean is clamped between the key's extremes.
    """
    others = count(key_N, num, where_N)[key_N] - 1
    rest = total(values_N, key_N, num, where_N)[key_N] - _clean(values_N, where_N)
    low = extreme(values_N, key_N, num, where_N, largest=False)[key_N]
    high = extreme(values_N, key_N, num, where_N, largest=True)[key_N]
    mean_N = torch.minimum(torch.maximum(rest / others.clamp(min=1), low), high)
    return torch.where(others > 0, mean_N, 0)


def extreme(
    values_N: Tensor,
    key_N: Tensor,
    num: int,
    where_N: Tensor | None = None,
    largest: bool = True,
) -> Tensor:
    """Largest (or smallest) member per key; 0 for a key without members."""
    if where_N is not None:
        values_N, key_N = values_N[where_N], key_N[where_N]
    result = values_N.new_zeros(num)
    mode = "amax" if largest else "amin"
    return result.scatter_reduce(0, key_N, values_N, mode, include_self=False)


def lower_median(
    values_N: Tensor, key_N: Tensor, num: int, where_N: Tensor | None = None
) -> Tensor:
    """Median per key, 0 without members; of an even number the lower of the two middle ones."""
    if values_N.shape[0] == 0:
        return values_N.new_zeros(num)
    median = values_N[lower_median_row(values_N, key_N, num, where_N)]
    return torch.where(count(key_N, num, where_N) > 0, median, 0)


def lower_median_row(
    values_N: Tensor, key_N: Tensor, num: int, where_N: Tensor | None = None
) -> Tensor:
    """Row [num] of the member that is its key's lower median; row 0 for a key without members."""
    row_N = _by_key_and_value(values_N, key_N, where_N)
    size = count(key_N, num, where_N)
    start = torch.cumsum(size, 0) - size
    middle = start + (size - 1).clamp(min=0) // 2
    if row_N.shape[0] == 0:
        return torch.zeros_like(size)
    return row_N[middle.clamp(max=row_N.shape[0] - 1)] * (size > 0)


def _by_key_and_value(values_N: Tensor, key_N: Tensor, where_N: Tensor | None) -> Tensor:
    """Rows of the members by key, then by value, then in row order."""
    row_N = torch.arange(values_N.shape[0], device=key_N.device)
    if where_N is not None:
        row_N = row_N[where_N]
    row_N = row_N[torch.argsort(values_N[row_N], stable=True)]
    return row_N[torch.argsort(key_N[row_N], stable=True)]


def rank(values_N: Tensor, key_N: Tensor, num: int, where_N: Tensor | None = None) -> Tensor:
    """Place [N] of every member in its key, from 0 for the smallest value; N outside `where_N`.

    Equal values rank in row order.
    """
    row_N = _by_key_and_value(values_N, key_N, where_N)
    size = count(key_N, num, where_N)
    start = torch.cumsum(size, 0) - size
    place_N = torch.full_like(key_N, key_N.shape[0])
    place_N[row_N] = torch.arange(row_N.shape[0], device=key_N.device) - start[key_N[row_N]]
    return place_N


def mean_of_lowest(
    values_N: Tensor, key_N: Tensor, num: int, share: float, where_N: Tensor | None = None
) -> Tensor:
    """Mean per key of the `share` of its members with the smallest values, of one at least.

    Of n members floor(share n) count; 0 for a key without members.
    """
    size = count(key_N, num, where_N)
    kept = (share * size.double() + 1e-9).floor().clamp(min=1)
    lowest_N = rank(values_N, key_N, num, where_N) < kept[key_N]
    return mean(values_N, key_N, num, lowest_N)


def quantile(
    values_N: Tensor, key_N: Tensor, num: int, level: float, where_N: Tensor | None = None
) -> Tensor:
    """Quantile per key, linear between neighbours; 0 for a key without members."""
    row_N = _by_key_and_value(values_N, key_N, where_N)
    size = count(key_N, num, where_N)
    if row_N.shape[0] == 0:
        return values_N.new_zeros(num)
    place = level * (size - 1).clamp(min=0).double()
    below = (place + 1e-9).floor()
    start = torch.cumsum(size, 0) - size
    low = (start + below.long()).clamp(max=row_N.shape[0] - 1)
    high = torch.minimum(low + 1, start + size - 1).clamp(min=0)
    sorted_N = values_N[row_N]
    share = (place - below).clamp(min=0).to(values_N.dtype)
    return torch.where(size > 0, torch.lerp(sorted_N[low], sorted_N[high], share), 0)


def nearest_rank(
    values_N: Tensor, key_N: Tensor, num: int, level: float, where_N: Tensor | None = None
) -> Tensor:
    """Member per key at rank round(level * (n - 1)), from 0; half to even; 0 without members."""
    row_N = _by_key_and_value(values_N, key_N, where_N)
    size = count(key_N, num, where_N)
    if row_N.shape[0] == 0:
        return values_N.new_zeros(num)
    place = (level * (size - 1).clamp(min=0).double()).round().long()
    start = (torch.cumsum(size, 0) - size).clamp(max=row_N.shape[0] - 1)
    return torch.where(size > 0, values_N[row_N[(start + place).clamp(max=len(row_N) - 1)]], 0)


def first(key_N: Tensor, num: int) -> Tensor:
    """First row of every key; N for a key without members."""
    row_N = torch.arange(key_N.shape[0], device=key_N.device)
    result = torch.full((num,), key_N.shape[0], device=key_N.device)
    return result.scatter_reduce(0, key_N, row_N, "amin")


def order_within(key_N: Tensor, num: int) -> Tensor:
    """Position [N] of every row among the rows of its key, in row order, from 0."""
    order = torch.argsort(key_N, stable=True)
    size = count(key_N, num)
    start = torch.cumsum(size, 0) - size
    position = torch.empty_like(order)
    position[order] = torch.arange(order.shape[0], device=order.device) - start[key_N[order]]
    return position


def rows_of(key_N: Tensor, wanted: Tensor, num: int) -> Tensor:
    """Rows whose key is in `wanted`, in the order of `wanted`, each key's rows in row order.

    `key_N` is sorted: the rows of a key lie together.
    """
    size = torch.bincount(key_N, minlength=num)
    start = torch.cumsum(size, 0) - size
    counts = size[wanted]
    ends = torch.cumsum(counts, 0)
    offset = torch.repeat_interleave(start[wanted] - (ends - counts), counts)
    return offset + torch.arange(offset.shape[0], device=key_N.device)


def key_of(*columns_N: Tensor) -> tuple[Tensor, int]:
    """One key [N] for equal rows of several int columns, and how many different ones there are."""
    unique, key_N = torch.unique(torch.stack(columns_N, dim=1), dim=0, return_inverse=True)
    return key_N, unique.shape[0]


def count_of(key_N: Tensor) -> int:
    """The smallest `num` that fits a key: its largest value and one more, 0 without rows.

    It waits for the device. Only for a key whose number nobody knows: those of a table are the
    batch's `num_groups`, `num_rollouts` and `num_turns`, and `key_of` gives its own.
    """
    return int(key_N.max()) + 1 if key_N.numel() else 0


def reward_to_go(values_N: Tensor, key_N: Tensor, discount: float | Tensor = 1.0) -> Tensor:
    """sum_{m >= n, same key} discount^(m - n) values_m [N]; the rows of a key lie together.

    `discount` [N]: that from a row to the next one; then the factor is their product from n to
    m - 1. By doubling: after step s every row holds the sum of its next 2^s values.
    """
    total_N, reach = values_N.double(), 1
    factor: Any = discount.double() if isinstance(discount, Tensor) else discount
    while reach < key_N.shape[0]:
        same_N = key_N[reach:] == key_N[:-reach]
        if not bool(same_N.any()):
            break
        ahead_N = torch.where(same_N, total_N[reach:], 0)
        total_N = total_N + factor * torch.nn.functional.pad(ahead_N, (0, reach))
        if isinstance(factor, Tensor):
            factor = factor * torch.nn.functional.pad(factor[reach:], (0, reach))
        else:
            factor = factor * factor
        reach *= 2
    return total_N.to(values_N.dtype)


def spread(values_B: Tensor, size_B: Tensor, where_N: Tensor | None = None) -> Tensor:
    """values_B[b] repeated size_B[b] times, end to end [N]; 0 where `where_N` is false.

    Written once into fresh memory: on the CPU by numpy, whose repeat needs no index of N entries.
    """
    plain = values_B.device.type == "cpu" and not values_B.requires_grad
    if plain and values_B.dtype in (torch.float32, torch.float64):
        result = np.repeat(values_B.numpy(), size_B.numpy())
        if where_N is not None:
            result[~where_N.numpy()] = 0
        return torch.from_numpy(result)
    spread_N = torch.repeat_interleave(values_B, size_B)
    return spread_N if where_N is None else spread_N.masked_fill(~where_N, 0)


def softmax(values_N: Tensor, key_N: Tensor, num: int, where_N: Tensor | None = None) -> Tensor:
    """exp(values) divided by its sum over the key [N]; 0 outside `where_N`."""
    top = extreme(values_N.detach(), key_N, num, where_N)[key_N]
    weight = _clean(torch.exp(_clean(values_N - top, where_N)), where_N)
    return weight / total(weight, key_N, num)[key_N].clamp(min=torch.finfo(weight.dtype).tiny)


def mean_cosine(one_NF: Tensor, other_NF: Tensor) -> Tensor:
    """Mean [] of the cosines between every row of one and every row of the other; 0 without."""
    unit = [torch.nn.functional.normalize(rows, dim=-1) for rows in (one_NF, other_NF)]
    if not all(rows.shape[0] for rows in unit):
        return one_NF.new_zeros(())
    return unit[0].mean(0) @ unit[1].mean(0)
