"""labs/regression_oracle_exploration.py: the rules by hand, and learning from their logs."""

import re

import numpy as np
import pytest
from opened import opened

lab = opened("regression_oracle_exploration")
COST = np.array([0.2, 0.3, 0.6])
ALL = np.ones(3, dtype=bool)


def test_the_rules_by_hand():
    # 1 / (3 + 10 * 0.1), 1 / (3 + 10 * 0.4), the best has the rest
    assert lab.square_cb(COST, ALL, 10.0) == pytest.approx([0.6071429, 0.25, 0.1428571])
    # 0.2 / (3 * 0.2 + 10 * 0.1), 0.2 / (3 * 0.2 + 10 * 0.4)
    assert lab.fast_cb(COST, ALL, 10.0) == pytest.approx([0.8315217, 0.125, 0.0434783])


def test_between_uniform_and_greedy():
    for rule in (lab.square_cb, lab.fast_cb):
        assert rule(COST, ALL, 0.0) == pytest.approx([1 / 3] * 3)
        assert rule(COST, ALL, 1e9) == pytest.approx([1, 0, 0], abs=1e-6)


def test_an_action_that_is_not_there_counts_nowhere():
    there = np.array([[False, True, True], [True, False, False]])
    chances = lab.square_cb(np.array([COST, COST]), there, 10.0)
    assert chances == pytest.approx(np.array([[0, 0.8, 0.2], [1, 0, 0]]))  # 1 / (2 + 10 * 0.3)
    assert lab.uniform(COST, there, 1.0) == pytest.approx(np.array([[0, 0.5, 0.5], [1, 0, 0]]))


def test_rewards_are_predicted():
    x = np.array([[1.0, 0.0], [1.0, 0.0], [1.0, 2.0], [1.0, 2.0]])
    reward = np.array([0.0, 1.0, 1.0, 1.0])
    model = lab.fitted(x, np.array([0, 0, 1, 1]), reward, 2)
    assert model[0] == pytest.approx([0, 0])  # a half, as often won as lost
    # of (1, 2) twice, each won: (2 (1, 2)(1, 2)' + I)^-1 (1, 2) = (1, 2) / 11
    assert model[1] == pytest.approx([1 / 11, 2 / 11])
    assert lab.cost_of(model, x[2:3]) == pytest.approx(np.array([[0.5, 0.5 - 5 / 11]]))


def test_only_losses_count_as_falls():
    assert lab.falls([0.5, 0.4, 0.6, 0.55]) == pytest.approx(0.15 / 3)


def test_exploring_by_gaps_earns_more_and_forgets_what_it_does_not_take():
    world = lab.World.drawn(np.random.default_rng(0), bent=True)
    runs = {
        (name, memory): lab.run(lab.RULES[name], world, 0, 6, 1000, memory)
        for name in ("uniform", "SquareCB")
        for memory in (True, False)
    }
    explored = {key: np.mean(course.explored) for key, course in runs.items()}
    assert explored["SquareCB", True] > explored["uniform", True] + 0.1
    assert len(runs["SquareCB", True].greedy) == 6
    assert runs["SquareCB", True].rarest[-1] < runs["SquareCB", True].rarest[0] / 4
    first = {key: course.greedy[0] for key, course in runs.items()}
    assert len(set(first.values())) == 1  # the first generation is uniform, and the same for all


def test_the_program_prints_and_draws(tmp_path, capsys, refused):
    picture = tmp_path / "bandits.svg"
    words = f"--seeds 2 --generations 3 --logs 200 --picture {picture}"
    lab.main(words.split())
    said = capsys.readouterr().out
    assert said.count("less uniform: exploring ") == 8
    assert picture.read_text().count("Greedy reward: ") == 4
    assert re.search("error: there must be one seed", refused(lab.main, ["--generations", "1"]))
