"""Grouped statistics against slow loops."""

import itertools
import math
import statistics

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from strop.batch import segments

NUM = 4


@st.composite
def grouped(draw):
    """Values, keys and members; values of rows that are not members are NaN."""
    size = draw(st.integers(0, 12))
    values = draw(
        st.lists(st.sampled_from([-2.5, -1.0, 0.0, 0.1, 0.3, 4.0]), min_size=size, max_size=size)
    )
    keys = draw(st.lists(st.integers(0, NUM - 1), min_size=size, max_size=size))
    where = draw(st.lists(st.booleans(), min_size=size, max_size=size))
    noisy = [v if w else math.nan for v, w in zip(values, where, strict=True)]
    return (
        torch.tensor(noisy, dtype=torch.float64),
        torch.tensor(keys, dtype=torch.int64),
        torch.tensor(where, dtype=torch.bool),
    )


def members(values, keys, where):
    """The members of every key, as lists."""
    rows = list(zip(values.tolist(), keys.tolist(), where.tolist(), strict=True))
    return [[v for v, k, w in rows if w and k == key] for key in range(NUM)]


def per_key(function, rows, needed=1):
    return pytest.approx([function(m) if len(m) >= needed else 0.0 for m in rows], abs=1e-12)


@given(grouped())
def test_one_number_per_key(data):
    values, keys, where = data
    rows = members(*data)
    args = (values, keys, NUM, where)
    assert segments.count(keys, NUM, where).tolist() == [len(m) for m in rows]
    assert segments.total(*args).tolist() == per_key(math.fsum, rows)
    assert segments.mean(*args).tolist() == per_key(statistics.fmean, rows)
    assert segments.std(*args).tolist() == per_key(statistics.stdev, rows, 2)
    assert segments.std(*args, ddof=0).tolist() == per_key(statistics.pstdev, rows)
    assert segments.extreme(*args).tolist() == per_key(max, rows)
    assert segments.extreme(*args, largest=False).tolist() == per_key(min, rows)
    assert segments.differ(*args).tolist() == [len(set(m)) > 1 for m in rows]
    assert segments.lower_median(*args).tolist() == per_key(statistics.median_low, rows)


@given(grouped())
def test_one_number_per_member(data):
    values, keys, where = data
    rows = members(*data)
    centred = segments.centred(values, keys, NUM, where)
    alone = segments.leave_one_out_mean(values, keys, NUM, where)
    share = segments.softmax(values, keys, NUM, where)
    for row in range(values.shape[0]):
        own = rows[int(keys[row])]
        if not where[row]:
            assert share[row] == 0
            continue
        value = float(values[row])
        assert float(centred[row]) == pytest.approx(value - statistics.fmean(own), abs=1e-12)
        rest = (math.fsum(own) - value) / (len(own) - 1) if len(own) > 1 else 0.0
        assert float(alone[row]) == pytest.approx(rest, abs=1e-12)
        expected = math.exp(value) / math.fsum(math.exp(v) for v in own)
        assert float(share[row]) == pytest.approx(expected, rel=1e-12)


@given(grouped())
def test_weighted_mean(data):
    values, keys, where = data
    weight = torch.arange(1.0, values.shape[0] + 1, dtype=torch.float64)
    result = segments.mean(values, keys, NUM, where, weight)
    for key in range(NUM):
        chosen = where & (keys == key)
        pairs = list(zip(values[chosen].tolist(), weight[chosen].tolist(), strict=True))
        expected = math.fsum(v * w for v, w in pairs) / (math.fsum(w for _, w in pairs) or 1)
        assert float(result[key]) == pytest.approx(expected, abs=1e-12)


@given(grouped())
def test_rows_first_and_order(data):
    _, keys, _ = data
    order = segments.order_within(keys, NUM).tolist()
    first = segments.first(keys, NUM).tolist()
    for key in range(NUM):
        own = [row for row, k in enumerate(keys.tolist()) if k == key]
        assert [order[row] for row in own] == list(range(len(own)))
        assert first[key] == (own[0] if own else keys.shape[0])
    lying = keys.sort().values
    runs = [list(run) for _, run in itertools.groupby(range(len(keys)), lying.tolist().__getitem__)]
    assert segments.begins(lying).nonzero().squeeze(1).tolist() == [run[0] for run in runs]
    assert segments.ends(lying).nonzero().squeeze(1).tolist() == [run[-1] for run in runs]
    wanted = torch.tensor([2, 0])
    expected = [r for key in (2, 0) for r, k in enumerate(lying.tolist()) if k == key]
    assert segments.rows_of(lying, wanted, NUM).tolist() == expected


@given(grouped())
def test_last_members(data):
    _, keys, where = data
    wanted = {
        k: row for row, (k, w) in enumerate(zip(keys.tolist(), where.tolist(), strict=True)) if w
    }
    found = segments.is_last(keys, NUM, where).nonzero().squeeze(1).tolist()
    assert found == sorted(wanted.values())


@given(grouped(), st.sampled_from([0.0, 0.2, 0.5, 0.7, 1.0]))
def test_rank_and_mean_of_the_lowest(data, share):
    values, keys, where = data
    place = segments.rank(values, keys, NUM, where).tolist()
    found = segments.mean_of_lowest(values, keys, NUM, share, where)
    for key in range(NUM):
        own = [row for row in range(len(keys)) if where[row] and keys[row] == key]
        by_value = sorted(own, key=lambda row: float(values[row]))
        assert [place[row] for row in by_value] == list(range(len(own)))
        number = max(int(round(share * len(own), 9)), 1)
        lowest = [float(values[row]) for row in by_value[:number]]
        assert float(found[key]) == pytest.approx(statistics.fmean(lowest) if lowest else 0.0)
    assert all(p == len(keys) for p, w in zip(place, where.tolist(), strict=True) if not w)


@pytest.mark.parametrize("value", [0.1, 1 / 3, 1e8 + 0.1])
@pytest.mark.parametrize("size", [2, 3, 7, 11])
def test_equal_members_are_exact(value, size):
    values = torch.full((size,), value, dtype=torch.float32)
    keys = torch.zeros(size, dtype=torch.int64)
    assert segments.centred(values, keys, 1).eq(0).all()
    assert segments.std(values, keys, 1).eq(0).all()
    assert segments.leave_one_out_mean(values, keys, 1).eq(values).all()


def test_sums_of_many_float32_values_lose_nothing():
    values = torch.full((3_000_001,), 0.1)
    keys = torch.zeros(3_000_001, dtype=torch.int64)
    exact = float(values[0]) * 3_000_001
    assert float(segments.total(values, keys, 1)) == pytest.approx(exact, rel=1e-7)


def test_gradient_of_total_and_dtypes():
    values = torch.randn(5, dtype=torch.float64, requires_grad=True)
    keys = torch.tensor([0, 1, 0, 1, 1])
    where = torch.tensor([True, True, False, True, True])
    segments.total(values, keys, 2, where)[1].backward()
    assert values.grad.tolist() == [0, 1, 0, 1, 1]
    for dtype in (torch.float32, torch.float64):
        plain = values.detach().to(dtype)
        for function in (segments.total, segments.mean, segments.std, segments.lower_median):
            assert function(plain, keys, 2, where).dtype == dtype


def test_spread_hides_what_is_outside():
    values = torch.tensor([1.5, math.nan])
    where = torch.tensor([True, False, False])
    sizes = torch.tensor([2, 1])
    assert segments.spread(values, sizes, where).tolist() == [1.5, 0.0, 0.0]
    half = segments.spread(values.bfloat16(), sizes, where)
    assert half.dtype == torch.bfloat16
    assert half.tolist() == [1.5, 0.0, 0.0]


@given(seed=st.integers(0, 500))
def test_reward_to_go_with_a_discount_of_each_row(seed):
    rng = torch.Generator().manual_seed(seed)
    key_N = torch.randint(0, 4, (11,), generator=rng).sort().values
    values_N = torch.randn(11, generator=rng, dtype=torch.float64)
    discount_N = torch.rand(11, generator=rng, dtype=torch.float64)
    found = segments.reward_to_go(values_N, key_N, discount_N).tolist()
    expected, after = [0.0] * 11, 0.0
    for n in reversed(range(11)):
        same = n + 1 < 11 and key_N[n] == key_N[n + 1]
        after = float(values_N[n]) + (float(discount_N[n]) * after if same else 0.0)
        expected[n] = after
    assert found == pytest.approx(expected)


def test_a_key_comes_with_its_number():
    key, num = segments.key_of(torch.tensor([7, 3, 7]), torch.tensor([0, 0, 1]))
    assert (key.tolist(), num) == ([1, 0, 2], 3)
    assert segments.key_of(torch.tensor([5, 2, 5]))[0].tolist() == [1, 0, 1]
    nothing = torch.zeros(0, dtype=torch.int64)
    assert segments.key_of(nothing)[1] == segments.count_of(nothing) == 0
    assert segments.count_of(torch.tensor([0, 3, 1])) == 4


def test_a_key_of_columns_as_wide_as_their_type():
    wide, other = torch.tensor([2**63 - 1, -(2**63), 0, 5, 0]), torch.tensor([1, 1, 0, 0, 0])
    key, num = segments.key_of(wide)
    assert (key.tolist(), num) == ([3, 0, 1, 2, 1], 4)
    for columns, expected in (((other, wide), [3, 2, 0, 1, 0]), ((wide, other), [3, 0, 1, 2, 1])):
        key, num = segments.key_of(*columns)
        assert (key.tolist(), num) == (expected, 4)


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8, torch.bool])
def test_a_key_of_narrow_columns_is_as_of_wide_ones(dtype):
    """Their product does not fit into their own type; nor can every type be subtracted."""
    first, second = torch.tensor([1, 250, 250, 9, 1]), torch.tensor([2**31, 2**31 - 1, 0, 3, 5])
    narrow = (first if dtype != torch.bool else first > 0).to(dtype)
    for columns in ((narrow, second), (narrow, narrow, second)):
        wide, num = segments.key_of(*(column.long() for column in columns))
        found = segments.key_of(*columns)
        assert (found[0].tolist(), found[1]) == (wide.tolist(), num)
    large = torch.tensor([1, 100_000, 1], dtype=torch.int32)
    assert segments.wide_key_of(large, large)[0].tolist() == [0, 1, 0]


@pytest.mark.parametrize(
    "statistic",
    [segments.total, segments.mean, segments.std, segments.extreme, segments.leave_one_out_mean],
)
def test_a_number_that_is_too_small_is_an_error(statistic):
    values, key = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0, 1, 2])
    assert statistic(values, key, 3).shape == (3,)
    with pytest.raises((IndexError, RuntimeError), match="out of"):
        statistic(values, key, 2)


def test_sums_until_a_row_do_not_lose_small_values_behind_many_rows():
    """Two million tokens before it, in float32, would take the last rollout's digits."""
    value_N = torch.rand(2_000_000, generator=torch.Generator().manual_seed(0))
    key_N = torch.arange(2_000_000) // 100
    found = segments.sum_until(value_N, key_N, 20_000)
    assert found.dtype == torch.float32
    assert torch.allclose(found[-100:], value_N[-100:].cumsum(0), rtol=1e-6)
