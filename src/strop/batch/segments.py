"""Statistics of one column grouped by a key: the only copy of grouped and masked arithmetic.

Every function takes `values_N` [N], a key `key_N` [N] int in 0..num-1 and `num`, and returns one
number per key ([num]) unless it says otherwise. `where_N` [N] bool names the members that count;
values elsewhere may be anything, NaN too. Sums are taken in float64, returned in the values' dtype.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from strop.batch import grouping
from strop.batch.grouping import at as at
from strop.batch.grouping import at_places as at_places
from strop.batch.grouping import by_key_and_value, in_order, sorted_values, sums_to_end
from strop.batch.grouping import largest as largest
from strop.batch.grouping import ranges as ranges
from strop.batch.grouping import rows_where as rows_where


def _clean(values_N: Tensor, where_N: Tensor | None) -> Tensor:
    return values_N if where_N is None else torch.where(where_N, values_N, values_N.new_zeros(()))


def count(key_N: Tensor, num: int, where_N: Tensor | None = None) -> Tensor:
    """Members per key, int64."""
    if (runs := grouping.runs_of(key_N)) is not None:
        return grouping.counts(where_N, runs, num)
    ones = torch.ones_like(key_N) if where_N is None else where_N.to(torch.int64)
    return torch.zeros(num, dtype=torch.int64, device=key_N.device).index_add_(0, key_N, ones)


def total(values_N: Tensor, key_N: Tensor, num: int, where_N: Tensor | None = None) -> Tensor:
    """Sum per key; 0 for a key without members. Differentiable in `values_N`."""
    return _wide_total(values_N, key_N, num, where_N).to(values_N.dtype)


def _wide_total(values_N: Tensor, key_N: Tensor, num: int, where_N: Tensor | None) -> Tensor:
    """`total` in float64."""
    values_N = _clean(values_N, where_N)
    if (runs := grouping.runs_of(key_N, values_N)) is not None:
        return grouping.sums(values_N, runs, num)
    zeros = torch.zeros(num, dtype=torch.float64, device=key_N.device)
    return zeros.index_add(0, key_N, values_N.double())


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
        sums = _wide_total(values_N, key_N, num, where_N)
    else:
        size = _wide_total(weight_N, key_N, num, where_N)
        sums = _wide_total(values_N.double() * weight_N, key_N, num, where_N)
    wide = torch.where(size > 0, sums / torch.where(size > 0, size, 1), 0)
    return wide.to(values_N.dtype)


def mean_within(
    values_N: Tensor, key_N: Tensor, num: int, where_N: Tensor, weight_N: Tensor
) -> Tensor:
    """Weighted `mean` between the extremes of the members with weight: equal ones stay exact."""
    middle = mean(values_N, key_N, num, where_N, weight_N)
    low, high = (
        extreme(values_N, key_N, num, where_N & (weight_N > 0), side) for side in (False, True)
    )
    return torch.minimum(torch.maximum(middle, low), high)


def overall(values_N: Tensor, where_N: Tensor | None = None) -> float:
    """Mean of all members as a number, for a log; 0 without members. This reads the tensors."""
    return float(mean(values_N.detach().double(), one_key(values_N), 1, where_N))


def std(
    values_N: Tensor, key_N: Tensor, num: int, where_N: Tensor | None = None, ddof: int = 1
) -> Tensor:
    """Standard deviation per key with `ddof` (1 unbiased, 0 biased); 0 where too few members.

    Equal values give exactly 0: deviations are taken from the mean, which for equal values is
    corrected to the value itself.
    """
    return centred_and_std(values_N, key_N, num, where_N, ddof)[1]


def centred_and_std(
    values_N: Tensor, key_N: Tensor, num: int, where_N: Tensor | None = None, ddof: int = 1
) -> tuple[Tensor, Tensor]:
    """`centred` [N] and `std` [num] of the same values, which share most of their work."""
    centred_N = centred(values_N, key_N, num, where_N)
    squares = _wide_total(_clean(centred_N, where_N).double().square(), key_N, num, None)
    free = (count(key_N, num, where_N) - ddof).clamp(min=0)
    variance = torch.where(free > 0, squares / free.clamp(min=1), 0)
    return centred_N, variance.sqrt().to(values_N.dtype)


def _exact_mean(values_N: Tensor, key_N: Tensor, num: int, where_N: Tensor | None) -> Tensor:
    """The mean, clamped between the smallest and the largest member, so equal values stay exact."""
    if where_N is not None and key_N.device.type == "cpu":  # elsewhere it would wait
        row_M = rows_where(where_N)
        values_N, key_N, where_N = at(values_N, row_M), at(key_N, row_M), None
    size = count(key_N, num, where_N)
    mean = _wide_total(values_N, key_N, num, where_N) / size.clamp(min=1)
    low, high = (_bound(values_N, key_N, num, where_N, largest) for largest in (False, True))
    mean = torch.minimum(torch.maximum(mean.to(values_N.dtype), low), high)
    return torch.where(size > 0, mean, 0)


def centred(values_N: Tensor, key_N: Tensor, num: int, where_N: Tensor | None = None) -> Tensor:
    """`values_N` minus the mean of its key [N]; equal members give exactly 0."""
    return values_N - at(_exact_mean(values_N, key_N, num, where_N), key_N)


def divided(values_N: Tensor, by_N: Tensor) -> Tensor:
    """`values_N` / `by_N` [N]; 0 where it would be divided by 0, as by the spread of equal values
    without an eps.
    """
    return torch.where(by_N == 0, 0, values_N / by_N)


def covariance(x_N: Tensor, y_N: Tensor, where_N: Tensor) -> Tensor:
    """(x - mean x) * (y - mean y) [N], each mean over the members where `where_N` is true."""
    key_N = one_key(where_N)
    return centred(x_N, key_N, 1, where_N) * centred(y_N, key_N, 1, where_N)


def leave_one_out_mean(
    values_N: Tensor, key_N: Tensor, num: int, where_N: Tensor | None = None
) -> Tensor:
    """Per member [N], the mean of the key's other members; 0 for an only member.

    Equal members give exactly their value: the mean is clamped between the key's extremes.
    """
    others = at(count(key_N, num, where_N), key_N) - 1
    rest = at(total(values_N, key_N, num, where_N), key_N) - _clean(values_N, where_N)
    low = at(extreme(values_N, key_N, num, where_N, largest=False), key_N)
    high = at(extreme(values_N, key_N, num, where_N, largest=True), key_N)
    mean_N = torch.minimum(torch.maximum(rest / others.clamp(min=1), low), high)
    return torch.where(others > 0, mean_N, 0)


def extreme(
    values_N: Tensor, key_N: Tensor, num: int, where_N: Tensor | None = None, largest: bool = True
) -> Tensor:
    """Largest (or smallest) member per key; 0 for a key without members."""
    found = _bound(values_N, key_N, num, where_N, largest)
    return found if where_N is None else torch.where(count(key_N, num, where_N) > 0, found, 0)


def differ(values_N: Tensor, key_N: Tensor, num: int, where_N: Tensor) -> Tensor:
    """Whether members of a key differ; false for a key without members."""
    low, high = (extreme(values_N, key_N, num, where_N, largest) for largest in (False, True))
    return high > low


def _bound(
    values_N: Tensor, key_N: Tensor, num: int, where_N: Tensor | None, largest: bool
) -> Tensor:
    """`extreme`, but anything for a key whose rows are no members."""
    if where_N is not None:  # cheaper than leaving others out, which would copy values and keys
        least, most = -torch.inf, torch.inf
        if not values_N.is_floating_point():
            least, most = torch.iinfo(values_N.dtype).min, torch.iinfo(values_N.dtype).max
        values_N = torch.where(where_N, values_N, least if largest else most)
    if (runs := grouping.runs_of(key_N, values_N)) is not None:
        return grouping.extremes(values_N, runs, num, largest)
    result, mode = values_N.new_zeros(num), "amax" if largest else "amin"
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
    row_N = by_key_and_value(values_N, key_N, where_N)
    size = count(key_N, num, where_N)
    start = torch.cumsum(size, 0) - size
    middle = start + (size - 1).clamp(min=0) // 2
    if row_N.shape[0] == 0:
        return torch.zeros_like(size)
    return row_N[middle.clamp(max=row_N.shape[0] - 1)] * (size > 0)


def distinct(values_N: Tensor, key_N: Tensor) -> tuple[Tensor, Tensor]:
    """The different values [V] of every key, by size, and their keys [V].

    Values that agree in single precision are one.
    """
    value_N, key_N = sorted_values(values_N.float(), key_N)
    new_N = torch.ones_like(key_N, dtype=torch.bool)
    new_N[1:] = (value_N[1:] != value_N[:-1]) | (key_N[1:] != key_N[:-1])
    row_V = rows_where(new_N)
    return at(value_N, row_V), at(key_N, row_V)


def rank(values_N: Tensor, key_N: Tensor, num: int, where_N: Tensor | None = None) -> Tensor:
    """Place [N] of every member in its key, from 0 for the smallest value; N outside `where_N`.

    Equal values rank in row order.
    """
    row_N = by_key_and_value(values_N, key_N, where_N)
    place_N = torch.full_like(key_N, key_N.shape[0])
    place_N[row_N] = place_in_run(key_N[row_N], num)
    return place_N


def mean_of_lowest(
    values_N: Tensor, key_N: Tensor, num: int, share: float, where_N: Tensor | None = None
) -> Tensor:
    """Mean per key of the `share` of its members with the smallest values, of one at least.

    Of n members floor(share n) count; 0 for a key without members. Without gradient.
    """
    kept = (share * count(key_N, num, where_N).double() + 1e-9).floor().clamp(min=1)
    value_N, key_N = sorted_values(values_N, key_N, where_N)
    return mean(value_N, key_N, num, place_in_run(key_N, num) < at(kept, key_N))


def quantile(
    values_N: Tensor, key_N: Tensor, num: int, level: float, where_N: Tensor | None = None
) -> Tensor:
    """Quantile per key, linear between neighbours; 0 for a key without members, no gradient."""
    return quantiles(values_N, key_N, num, (level,), where_N)[0]


def quantiles(
    values_N: Tensor,
    key_N: Tensor,
    num: int,
    levels: Sequence[float],
    where_N: Tensor | None = None,
) -> list[Tensor]:
    """`quantile` at several levels, after one sort or, of one key, by selection."""
    size = count(key_N, num, where_N)
    last = (size - 1).clamp(min=0)
    exact = [level * last.double() for level in levels]
    below = [(place + 1e-9).floor() for place in exact]
    low = [place.long() for place in below]
    high = [torch.minimum(place + 1, last) for place in low]
    found = in_order(values_N, key_N, where_N, size, (*low, *high))
    ends = zip(exact, below, found[: len(low)], found[len(low) :], strict=True)
    return [
        torch.where(size > 0, torch.lerp(a, b, (place - n).clamp(min=0).to(values_N.dtype)), 0)
        for place, n, a, b in ends
    ]


def nearest_rank(
    values_N: Tensor, key_N: Tensor, num: int, level: float, where_N: Tensor | None = None
) -> Tensor:
    """Member per key at rank round(level * (n - 1)), from 0; half to even; 0 without members."""
    size = count(key_N, num, where_N)
    place = (level * (size - 1).clamp(min=0).double()).round().long()
    return torch.where(size > 0, in_order(values_N, key_N, where_N, size, (place,))[0], 0)


def first(key_N: Tensor, num: int) -> Tensor:
    """First row of every key; N for a key without members."""
    result = torch.full((num,), key_N.shape[0], device=key_N.device)
    if (runs := grouping.runs_of(key_N)) is not None:
        return result.scatter_reduce(0, runs.key_R, torch.from_numpy(runs.start_R), "amin")
    row_N = torch.arange(key_N.shape[0], device=key_N.device)
    return result.scatter_reduce(0, key_N, row_N, "amin")


def begins(key_N: Tensor) -> Tensor:
    """Whether a row [N] bool has another key than the row before it, as the first row has."""
    return key_N.diff(prepend=key_N[:1] - 1) != 0


def ends(key_N: Tensor) -> Tensor:
    """Whether a row [N] bool has another key than the row after it, as the last row has."""
    return key_N.diff(append=key_N[-1:] + 1) != 0


def is_last(key_N: Tensor, num: int, where_N: Tensor) -> Tensor:
    """Whether a row [N] bool is the last one of its key where `where_N` is true."""
    row_N = torch.arange(key_N.shape[0], device=key_N.device)
    return where_N & (at(extreme(row_N, key_N, num, where_N), key_N) == row_N)


def order_within(key_N: Tensor, num: int) -> Tensor:
    """Position [N] of every row among the rows of its key, in row order, from 0."""
    runs = grouping.runs_of(key_N)
    if runs is not None and int(torch.bincount(runs.key_R).max()) == 1:
        return place_in_run(key_N, num)
    order = torch.argsort(key_N, stable=True)
    size = count(key_N, num)
    start = torch.cumsum(size, 0) - size
    position = torch.empty_like(order)
    position[order] = torch.arange(order.shape[0], device=order.device) - start[key_N[order]]
    return position


def place_in_run(key_N: Tensor, num: int) -> Tensor:
    """`order_within` [N] where the rows of a key lie together: nothing is sorted."""
    return torch.arange(key_N.shape[0], device=key_N.device) - at(first(key_N, num), key_N)


def sum_until(values_N: Tensor, key_N: Tensor, num: int) -> Tensor:
    """Sum [N] of the key's values up to and with each row; the rows of a key lie together.

    One value that is not finite makes all sums of later keys NaN: mask it before.
    """
    wide = torch.float64 if values_N.is_floating_point() else values_N.dtype
    until_N = values_N.cumsum(0, dtype=wide)
    first_B = first(key_N, num).clamp(max=max(key_N.shape[0] - 1, 0))
    if not key_N.numel():
        return until_N
    return (until_N - at(until_N[first_B] - values_N[first_B], key_N)).to(values_N.dtype)


def among(key_N: Tensor, wanted: Tensor, num: int) -> Tensor:
    """Whether a row's key is one of `wanted` [N] bool."""
    is_wanted = torch.zeros(num, dtype=torch.bool, device=key_N.device)
    is_wanted[wanted] = True
    return at(is_wanted, key_N)


def rows_of(key_N: Tensor, wanted: Tensor, num: int) -> Tensor:
    """Rows whose key is in `wanted`, in the order of `wanted`, each key's rows in row order.

    `key_N` is sorted: the rows of a key lie together.
    """
    size = torch.bincount(key_N, minlength=num)
    start = torch.cumsum(size, 0) - size
    return ranges(start[wanted], size[wanted])


def pairs(key_N: Tensor, num: int) -> tuple[Tensor, Tensor]:
    """Every row with every row of its key, itself included: the first [M] and the other one [M].

    A row's pairs lie together, in the order of rows both.
    """
    size = count(key_N, num)
    size_N = size[key_N]
    one_M = torch.repeat_interleave(torch.arange(key_N.shape[0], device=key_N.device), size_N)
    place_M = torch.arange(one_M.shape[0], device=key_N.device)
    place_M = place_M - (size_N.cumsum(0) - size_N)[one_M]
    by_key = torch.argsort(key_N, stable=True)
    return one_M, by_key[(size.cumsum(0) - size)[key_N[one_M]] + place_M]


def one_key(rows_N: Tensor) -> Tensor:
    """The key [N] of rows that belong together, all of them; it takes no memory."""
    return torch.zeros(1, dtype=torch.int64, device=rows_N.device).expand(rows_N.shape[0])


def key_of(*columns_N: Tensor) -> tuple[Tensor, int]:
    """One key [N] for equal rows of several int columns, and how many different ones there are.

    Keys are in the order of the rows, by the first column, then by the second. The columns become
    one number, whose rank among the existing numbers is counted or, where these are few among very
    many possible ones, found by a sort.
    """
    return _counted(*_joined(*columns_N))


def wide_key_of(*columns_N: Tensor) -> tuple[Tensor, int]:
    """`key_of`, but with up to four times as many keys as rows, some without rows: it is faster."""
    key_N, span = _joined(*columns_N)
    return (key_N, span) if _is_counted(key_N, span) else _counted(key_N, span)


def _joined(*columns_N: Tensor) -> tuple[Tensor, int]:
    """One number [N] for equal rows of several columns, in their order, and a bound on it."""
    key_N, span = columns_N[0].long(), 0  # 0: no column is in it yet
    for column_N in columns_N if key_N.numel() else ():
        low, high = (int(bound) for bound in torch.aminmax(column_N))
        if high - low >= 1 << 63:  # differences do not fit into 64 bits
            column_N = torch.unique(column_N, return_inverse=True)[1]
            low, high = 0, int(column_N.max())
        place_N, width = (column_N.long() - low if low else column_N.long()), high - low + 1
        if span * width >= 1 << 62:
            (key_N, span), (place_N, width) = _counted(key_N, span), _counted(place_N, width)
        key_N = key_N.mul(width).add_(place_N) if span else place_N
        span = max(span, 1) * width
    return key_N, max(span, 1)


def _is_counted(key_N: Tensor, span: int) -> bool:
    """Whether the numbers are so dense that counting them costs less than a sort."""
    return span <= 4 * key_N.shape[0] + 1024


def _counted(key_N: Tensor, span: int) -> tuple[Tensor, int]:
    """The rank [N] of every number below `span` among the existing ones, and how many there are."""
    if not key_N.numel():
        return key_N, 0
    if not _is_counted(key_N, span):
        unique, place_N = torch.unique(key_N, return_inverse=True)
        return place_N, unique.shape[0]
    is_there = torch.zeros(span, dtype=torch.int64, device=key_N.device)
    is_there[key_N] = 1
    until = is_there.cumsum(0)
    return at(until - 1, key_N), int(until[-1])


def count_of(key_N: Tensor) -> int:
    """The smallest `num` that fits a key: its largest value and one more, 0 without rows.

    It waits for the device. Use it only for a key whose number is unknown: those of a table are the
    batch's `num_groups`, `num_rollouts` and `num_turns`, and `key_of` returns its own.
    """
    return int(key_N.max()) + 1 if key_N.numel() else 0


def find(uid_N: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of `wanted` in the sorted `uid_N`, and whether each is there."""
    row = torch.searchsorted(uid_N, wanted).clamp(max=max(uid_N.shape[0] - 1, 0))
    known = uid_N[row] == wanted if uid_N.numel() else torch.zeros_like(wanted, dtype=torch.bool)
    return row, known


def reward_to_go(values_N: Tensor, key_N: Tensor, discount: float | Tensor = 1.0) -> Tensor:
    """sum_{m >= n, same key} discount^(m - n) values_m [N]; the rows of a key lie together.

    `discount` [N]: that from a row to the next one; then the factor is their product from n to
    m - 1. Without gradient; equal keys have equal sums, to the last bit, wherever they lie.
    """
    if not key_N.numel():
        return values_N
    size_S = grouping.sizes(key_N)
    factor: Any = discount.detach().double() if isinstance(discount, Tensor) else float(discount)
    return sums_to_end(values_N.detach().double(), size_S, factor).to(values_N.dtype)


def spread(values_B: Tensor, size_B: Tensor, where_N: Tensor | None = None) -> Tensor:
    """values_B[b] repeated size_B[b] times, end to end [N]; 0 where `where_N` is false."""
    return _clean(grouping.repeated(values_B, size_B), where_N)


def softmax(values_N: Tensor, key_N: Tensor, num: int, where_N: Tensor | None = None) -> Tensor:
    """exp(values) divided by its sum over the key [N]; 0 outside `where_N`."""
    top = at(extreme(values_N.detach(), key_N, num, where_N), key_N)
    weight = _clean(torch.exp(_clean(values_N - top, where_N)), where_N)
    return weight / at(total(weight, key_N, num), key_N).clamp(min=torch.finfo(weight.dtype).tiny)


def mean_cosine(one_NF: Tensor, other_NF: Tensor) -> Tensor:
    """Mean [] of the cosines between every row of one and every row of the other; 0 without."""
    unit = [torch.nn.functional.normalize(rows, dim=-1) for rows in (one_NF, other_NF)]
    if not all(rows.shape[0] for rows in unit):
        return one_NF.new_zeros(())
    return unit[0].mean(0) @ unit[1].mean(0)
