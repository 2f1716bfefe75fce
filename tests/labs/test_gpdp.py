"""labs/gpdp.py: the posterior and the policy by hand, and the cost of a missing tipping point."""

import re

import numpy as np
import pytest
from opened import opened

lab = opened("gpdp")


def test_the_posterior_of_a_process_by_hand():
    x, y = np.array([1.0, 2.0]), np.array([1.0, 1.5])
    mean, variance = lab.process(x, y, np.array([1.5, 5.0]), 1.0, 0.1)
    # K = [[1, e^-.5], [e^-.5, 1]] + 0.01 I, of both points 1.5 is 0.5 away: e^-.125 = 0.8825
    inside, off = 1.01, np.exp(-0.5)
    weight = np.exp(-0.125) / (inside + off)
    assert mean[0] == pytest.approx(weight * 2.5)
    assert variance[0] == pytest.approx(1 - 2 * np.exp(-0.25) / (inside + off))
    assert (mean, variance) == (
        pytest.approx([1.365, 0.016], abs=1e-3), pytest.approx([0.036, 1.0], abs=1e-3)
    )  # fmt: skip


def test_allens_rule_has_a_tipping_point_and_rickers_none():
    assert lab.allen(np.array([4.9, 5.0, 5.1, 8.0]), 2, 8, 5) == pytest.approx(
        [4.9 * np.exp(2 * 0.3875 * -0.1 / 8), 5.0, 5.1 * np.exp(2 * 0.3625 * 0.1 / 8), 8.0]
    )
    assert (lab.ricker(np.array([0.1, 4.0]), 2, 8) > [0.1, 4.0]).all()


def test_no_history_shows_the_tipping_point():
    assert all(lab.observed(np.random.default_rng(seed)).min() > 5 for seed in range(20))


def test_metropolis_finds_a_mean_and_a_deviation():
    rng = np.random.default_rng(0)
    drawn = lab.metropolis(lambda at: -0.5 * ((at[0] - 3) / 0.5) ** 2, [0.0], [1.0], rng, 16_000)
    assert drawn.mean() == pytest.approx(3, abs=0.1)
    assert drawn.std() == pytest.approx(0.5, abs=0.1)


def test_inverse_gamma_is_highest_at_its_mode():
    values = np.linspace(0.2, 2, 1801)
    found = [lab.inverse_gamma(value, 10, 10) for value in values]
    assert values[int(np.argmax(found))] == pytest.approx(10 / 11, abs=1e-3)


def test_transitions_sum_to_one_and_a_stock_that_is_gone_stays_gone():
    moves = lab.of_rule(lab.allen(lab.left(), *lab.TRUE), lab.NOISE)
    assert moves.sum(-1) == pytest.approx(np.ones(moves.shape[:2]))
    assert moves[3, 3, 0] == 1  # all of it was taken
    mean, variance = np.full((50, 50), 6.0), np.full((50, 50), 0.25)
    process = lab.of_process(mean, variance)
    assert process[0, 10] @ lab.GRID == pytest.approx(6, abs=1e-2)
    assert process[10, 10, 0] == 1
    assert lab.normalised(np.zeros((1, 3))).tolist() == [[1, 0, 0]]


def test_where_nothing_grows_all_is_taken_and_where_it_comes_back_too():
    stays = np.broadcast_to(np.eye(50)[None], (50, 50, 50))  # the next stock is this one, whatever
    harvest = lab.policy(stays, 50)
    assert harvest.tolist() == list(range(50))
    dies = np.zeros((50, 50, 50))
    dies[:, :, 0] = 1
    dies[0] = np.eye(50)  # only what is not harvested at all is there in the next year
    assert lab.policy(dies, 50)[49] == 49


def test_a_model_without_the_tipping_point_drives_the_stock_extinct():
    managed = lab.one_seed(0, 800, 20)
    assert managed["true"].share == 1
    assert managed["Ricker"].alive == 0
    assert managed["Ricker"].share < 0.5
    assert managed["process"].share > 0.8


def test_the_program_refuses_what_is_too_short(refused):
    assert re.search(
        "error: there must be one seed, one trial and 200 draws",
        refused(lab.main, ["--draws", "10"]),
    )
