"""labs/v1d3.py: matching against all matchings, one temporal difference, and mixing, by hand."""

import itertools
import re

import numpy as np
import pytest
from opened import opened

lab = opened("v1d3")


def best_by_trying(weights):
    rows, columns = weights.shape
    seats = [*range(columns), *[-1] * rows]
    return max(
        sum(max(0.0, weights[r, c]) for r, c in enumerate(own) if c >= 0)
        for own in itertools.permutations(seats, rows)
    )


def test_orders_and_drivers_are_matched_for_the_largest_sum():
    # the first row's best is the second's only one: 5 + 6 beats 9
    assert lab.assigned(np.array([[9.0, 5.0], [6.0, -1.0]])) == [(0, 1), (1, 0)]
    assert lab.assigned(np.array([[-1.0, 0.0]])) == []
    rng = np.random.default_rng(0)
    for rows, columns in [(1, 3), (3, 2), (3, 4), (4, 3)] * 4:
        weights = rng.normal(1, 2, (rows, columns))
        pairs = lab.assigned(weights)
        assert len({r for r, _ in pairs}) == len({c for _, c in pairs}) == len(pairs)
        assert sum(weights[pair] for pair in pairs) == pytest.approx(best_by_trying(weights))


def test_what_an_order_is_worth_to_a_driver_by_hand():
    value = np.zeros((lab.SLOTS, lab.SIDE**2))
    value[0, 0], value[1, 3] = 2.0, 10.0
    # from cell 0 to an order that begins there and ends 3 blocks on: 1 + 3 // 2 = 2 windows, fare 4
    begin, end = np.array([0]), np.array([3])
    found = lab.worth(value, 4, np.array([0, 63]), begin, end)
    assert found[0].tolist() == pytest.approx(
        [4 + 0.97**2 * 10 - 2, 0]
    )  # the other is too far away


def test_a_temporal_difference_by_hand():
    value = np.zeros((lab.SLOTS, lab.SIDE**2))
    value[2, 7] = 10.0
    lab.learn(value, [(4, 1, 3.0, 6, 7)], 0.5)  # windows 4 and 10: slots 0 and 2
    assert value[0, 1] == pytest.approx(0.5 * (3 + 0.97**6 * 10))
    lab.learn(value, [(59, 1, 0.0, 1, 7)], 0.5)  # behind the day there is nothing
    assert value[11, 1] == 0


def test_every_policy_serves_the_same_orders():
    city, value = lab.City((2, 2), (6, 6)), np.zeros((lab.SLOTS, lab.SIDE**2))
    drawn = [city.orders(np.random.default_rng(5), 3) for _ in range(2)]
    assert all((a == b).all() for a, b in zip(*drawn, strict=True))
    income, told = lab.one_day(city, value, 0, 0.0)
    assert income == sum(each[2] for each in told) > 0
    assert not value.any()  # without a rate nothing is learnt
    assert lab.one_day(city, value, 0, 0.0)[0] == income
    lab.one_day(city, value, 0, 0.1)
    assert value.any()


def test_the_mixture_pulls_back_to_the_older_value(monkeypatch):
    seen = []

    def day(city, value, seed, rate):
        seen.append(float(value[0, 0]))
        value += 1.0  # what is learnt online
        return 0.0, []

    monkeypatch.setattr(lab, "one_day", day)
    offline = np.full((lab.SLOTS, lab.SIDE**2), 4.0)
    lab.served(lab.City((2, 2), (6, 6)), offline, "mixed", 0, 4, 0.25, 2)
    # 4, 5, then 0.25 * 6 + 0.75 * 4 = 4.5, 5.5
    assert seen == [4, 5, 4.5, 5.5]
    assert offline[0, 0] == 4


def test_the_program_refuses_a_weight_that_is_no_share(refused):
    assert re.search("error: seeds, --days", refused(lab.main, ["--weight", "1.5"]))
