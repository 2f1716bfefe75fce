"""Sorts, keys and sums of runs against their plain definitions, in every precision."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from strop.batch import segments

NUM = 4
VALUES = (-math.inf, -2.5, -1.0, -1e-40, -0.0, 0.0, 1e-40, 0.1, 0.3, 4.0, math.inf)
dtypes = st.sampled_from([torch.float64, torch.float32, torch.bfloat16])


@st.composite
def grouped(draw):
    """Values, keys and members; values of rows that are not members are NaN."""
    size = draw(st.integers(0, 12))
    each = {"min_size": size, "max_size": size}
    where = torch.tensor(draw(st.lists(st.booleans(), **each)), dtype=torch.bool)
    values = torch.tensor(draw(st.lists(st.sampled_from(VALUES), **each)), dtype=torch.float64)
    keys = torch.tensor(draw(st.lists(st.integers(0, NUM - 1), **each)), dtype=torch.int64)
    return torch.where(where, values, math.nan).to(draw(dtypes)), keys, where


def rows_by_value(values, keys, where):
    """The rows of the members of every key; equal values in row order."""
    rows = [[r for r in range(len(keys)) if where[r] and keys[r] == k] for k in range(NUM)]
    return [sorted(own, key=lambda row: float(values[row])) for own in rows]


@given(grouped(), st.sampled_from([0.0, 0.2, 0.5, 0.75, 1.0]))
def test_places_in_order(data, level):
    values, keys, where = data
    rows = rows_by_value(*data)
    place = segments.rank(values, keys, NUM, where).tolist()
    nearest = segments.nearest_rank(values, keys, NUM, level, where)
    median = segments.lower_median(values, keys, NUM, where)
    assert nearest.dtype == median.dtype == values.dtype
    for key, own in enumerate(rows):
        assert [place[row] for row in own] == list(range(len(own)))
        middle = float(values[own[(len(own) - 1) // 2]]) if own else 0.0
        assert float(median[key]) == middle
        wanted = float(values[own[round(level * (len(own) - 1))]]) if own else 0.0
        assert float(nearest[key]) == wanted
    assert all(p == len(keys) for p, w in zip(place, where.tolist(), strict=True) if not w)


@given(grouped(), st.booleans(), st.booleans())
def test_extremes_of_members(data, largest, whole):
    values, keys, where = data
    if whole:
        values = values.nan_to_num(7, 9, -9).round().long()
    found = segments.extreme(values, keys, NUM, where, largest)
    assert found.dtype == values.dtype
    for key, own in enumerate(rows_by_value(values, keys, where)):
        wanted = float(values[own[-1 if largest else 0]]) if own else 0.0
        assert float(found[key]) == wanted


@given(grouped(), st.lists(st.sampled_from([0.0, 0.3, 0.5, 0.95, 1.0]), min_size=1, max_size=3))
def test_quantiles(data, levels):
    values, keys, where = data
    values = values.clamp(-10, 10)
    found = segments.quantiles(values, keys, NUM, levels, where)
    for level, quantile in zip(levels, found, strict=True):
        one = segments.quantile(values, keys, NUM, level, where)
        assert one.equal(quantile)
        for key, own in enumerate(rows_by_value(values, keys, where)):
            sure = values[torch.tensor(own, dtype=torch.int64)].double()
            wanted = float(sure.quantile(level)) if own else 0.0
            close = 0.2 if values.dtype == torch.bfloat16 else 1e-5  # of values up to 10
            assert float(quantile[key]) == pytest.approx(wanted, abs=close)


@given(grouped())
def test_distinct_values_of_every_key(data):
    values, keys, where = data
    values, keys = values[where], keys[where]
    found = segments.distinct(values, keys)
    rows = zip(keys.tolist(), values.float().tolist(), strict=True)
    assert list(zip(found[1].tolist(), found[0].tolist(), strict=True)) == sorted(set(rows))


@given(
    st.lists(st.integers(1, 600), max_size=8),
    st.sampled_from([0.0, 0.5, 0.99, 1.0, None]),
    st.integers(0, 9),
)
def test_sums_to_the_end_of_a_run(sizes, discount, seed):
    """Runs shorter and longer than a block, and than a block of blocks."""
    rng = torch.Generator().manual_seed(seed)
    size = torch.tensor(sizes, dtype=torch.int64)
    key_N = torch.repeat_interleave(torch.randperm(len(sizes), generator=rng), size)
    values_N = torch.randn(key_N.shape, generator=rng, dtype=torch.float64)
    each_N = torch.rand(key_N.shape, generator=rng, dtype=torch.float64)
    found = segments.reward_to_go(values_N, key_N, each_N if discount is None else discount)
    factors = each_N.tolist() if discount is None else [discount] * len(key_N)
    expected, after, last = [0.0] * len(key_N), 0.0, None
    for n in reversed(range(len(key_N))):
        after = float(values_N[n]) + (factors[n] * after if key_N[n] == last else 0.0)
        expected[n], last = after, key_N[n]
    assert found.tolist() == pytest.approx(expected, rel=1e-9, abs=1e-9)
    assert segments.reward_to_go(values_N.float(), key_N, 1.0).dtype == torch.float32


@given(st.integers(1, 300), st.integers(0, 40), st.integers(0, 99))
def test_equal_runs_have_equal_sums_to_the_last_bit(size, before, seed):
    rng = torch.Generator().manual_seed(seed)
    run_N = torch.randn(size, generator=rng, dtype=torch.float64)
    values_N = torch.cat([run_N, torch.randn(before, generator=rng, dtype=torch.float64), run_N])
    key_N = torch.cat([torch.full((n,), k) for k, n in enumerate((size, before, size))])
    found = segments.reward_to_go(values_N, key_N, 0.97)
    assert found[:size].equal(found[size + before :])


@given(st.data(), st.integers(0, 10), st.integers(1, 3))
def test_a_key_for_equal_rows(data, size, num):
    """As unique rows number them, whether columns are narrow, wide or too wide for one number."""
    bound = data.draw(st.sampled_from([2, 1000, 2**31, 2**61]))
    column = st.lists(st.integers(-bound, bound), min_size=size, max_size=size)
    columns = [torch.tensor(data.draw(column), dtype=torch.int64) for _ in range(num)]
    key, count = segments.key_of(*columns)
    rows = list(zip(*(c.tolist() for c in columns), strict=True))
    order = sorted(set(rows))
    assert (key.tolist(), count) == ([order.index(row) for row in rows], len(order))


@given(st.lists(st.integers(0, NUM - 1), max_size=12), st.lists(st.integers(0, NUM - 1)))
def test_rows_of_keys(keys, wanted):
    key_N = torch.tensor(keys, dtype=torch.int64)
    found = segments.among(key_N, torch.tensor(wanted, dtype=torch.int64), NUM)
    assert found.tolist() == [key in wanted for key in keys]
    one, other = segments.pairs(key_N, NUM)
    rows = range(len(keys))
    expected = [(a, b) for a, b in itertools.product(rows, rows) if keys[a] == keys[b]]
    assert list(zip(one.tolist(), other.tolist(), strict=True)) == expected
    for lying in (key_N.sort().values, key_N.sort(descending=True).values):
        place = segments.place_in_run(lying, NUM)
        assert place.equal(segments.order_within(lying, NUM))
