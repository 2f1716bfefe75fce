"""Adjacent rows of a key are reduced run by run, with the result of adding each row by itself."""

import math

import pytest
import torch

from strop.batch import grouping, segments

NUM = 6
LONG = torch.tensor([4, 4, 4, 4, 4, 0, 0, 0, 0, 2, 5, 5, 5, 5, 5, 5, 4, 4, 4, 4, 4, 4, 4, 4, 4])


def made(dtype, seed=0):
    rng = torch.Generator().manual_seed(seed)
    values = torch.randn(LONG.shape[0], generator=rng, dtype=torch.float64).to(dtype)
    where = torch.rand(LONG.shape[0], generator=rng) < 0.6
    where[LONG == 0] = False
    return torch.where(where, values, math.nan), where, torch.randperm(len(LONG), generator=rng)


def reductions(values, key, where):
    """What goes by runs where a key has long ones."""
    clean = values.nan_to_num(0.25)
    return {
        "count": segments.count(key, NUM),
        "members": segments.count(key, NUM, where),
        "total": segments.total(values, key, NUM, where),
        "total of all": segments.total(clean, key, NUM),
        "mean": segments.mean(values, key, NUM, where),
        "weighted": segments.mean(clean, key, NUM, where, clean.abs()),
        "std": segments.std(values, key, NUM, where),
        "low": segments.extreme(values, key, NUM, where, largest=False),
        "high": segments.extreme(clean, key, NUM),
        "whole": segments.extreme((10 * clean).long(), key, NUM, where),
    }


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_runs_and_rows_give_the_same(dtype):
    values, where, order = made(dtype)
    by_row = reductions(values[order], LONG[order], where[order])
    assert grouping.runs_of(LONG) is not None
    assert grouping.runs_of(LONG[order]) is None
    for name, found in reductions(values, LONG, where).items():
        assert found.dtype == by_row[name].dtype, name
        torch.testing.assert_close(found, by_row[name], rtol=1e-6, atol=1e-6, msg=name)


def test_per_row_answers_of_runs():
    values, where, order = made(torch.float64)
    for function in (segments.centred, segments.leave_one_out_mean, segments.softmax):
        here = function(values, LONG, NUM, where)[where]
        there = torch.empty_like(values)
        there[order] = function(values[order], LONG[order], NUM, where[order])
        torch.testing.assert_close(here, there[where], rtol=1e-12, atol=1e-12)


def test_gradients_do_not_stop_at_runs():
    values, where, _ = made(torch.float64)
    leaf = values.nan_to_num(0.5).requires_grad_()
    (segments.total(leaf, LONG, NUM, where) * torch.arange(NUM)).sum().backward()
    torch.testing.assert_close(leaf.grad, torch.where(where, LONG, 0).double())


def test_places_in_runs():
    key = torch.tensor([3] * 5 + [1] * 6 + [0] * 4)
    place = torch.cat([torch.arange(5), torch.arange(6), torch.arange(4)])
    assert segments.order_within(key, 4).equal(place)
    assert segments.first(key, 4).tolist() == [11, 5, 15, 0]
    assert segments.order_within(LONG, NUM)[16:].tolist() == list(range(5, 14))


def test_a_key_that_is_changed_has_other_runs():
    key = torch.zeros(12, dtype=torch.int64)
    assert segments.count(key, 2).tolist() == [12, 0]
    key[8:] = 1
    assert segments.count(key, 2).tolist() == [8, 4]


def test_runs_are_forgotten_with_their_key():
    before = len(grouping._known)
    key = torch.zeros(12, dtype=torch.int64)
    segments.count(key, 2)
    assert len(grouping._known) == before + 1
    del key
    assert len(grouping._known) == before


def test_quantiles_of_one_key():
    values, where, _ = made(torch.float32)
    one, levels = torch.zeros_like(LONG), (0.0, 0.3, 1.0)
    found = segments.quantiles(values, one, 1, levels, where)
    wanted = values[where].double().quantile(torch.tensor(levels).double())
    torch.testing.assert_close(torch.cat(found).double(), wanted, rtol=1e-6, atol=1e-6)
    nobody = torch.zeros_like(where)
    assert [float(each) for each in segments.quantiles(values, one, 1, levels, nobody)] == [0, 0, 0]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_largest_and_places(dtype):
    values = torch.tensor([0.5, 2.0, -1.0, 2.0, 0.5, -math.inf, 0.5], dtype=dtype)
    chosen = [segments.largest(values, n).nonzero().squeeze(1).tolist() for n in range(8)]
    assert chosen[:5] == [[], [1], [1, 3], [0, 1, 3], [0, 1, 3, 4]]  # the first of equal ones
    assert chosen[5:] == [[0, 1, 3, 4, 6], [0, 1, 2, 3, 4, 6], list(range(7))]
    assert segments.at_places(values, (6, 0, 2)).tolist() == [2.0, -math.inf, 0.5]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_values_are_sorted_key_by_key_where_rows_lie_together(dtype):
    values, where, order = made(dtype)
    for which in (where, None):
        numbers = values.nan_to_num(-0.0)
        lowest, several = (
            [
                f(numbers[rows], LONG[rows], NUM, *level, None if which is None else which[rows])
                for rows in (slice(None), order)
            ]
            for f, level in ((segments.mean_of_lowest, (0.5,)), (segments.quantile, (0.3,)))
        )
        assert lowest[0].equal(lowest[1])
        assert several[0].equal(several[1])
    lying, mixed = (segments.distinct(values[r][where[r]], LONG[r][where[r]])
                    for r in (slice(None), order))  # fmt: skip
    assert lying[0].equal(mixed[0])
    assert lying[1].equal(mixed[1])


def test_one_key_for_all_rows():
    key = segments.one_key(LONG)
    assert key.tolist() == [0] * len(LONG)
    assert segments.total(LONG.double(), key, 1) == LONG.sum()


def test_ranges():
    found = segments.ranges(torch.tensor([7, 0, 2]), torch.tensor([2, 0, 3]))
    assert found.tolist() == [7, 8, 2, 3, 4]
