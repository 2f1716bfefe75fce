"""labs/worked_examples.py: the numbers of each example, by hand."""

import math

import numpy as np
import pytest
from opened import opened

lab = opened("worked_examples")


def test_symphony():
    # tanh(1) = 0.76159, tanh(0.25) = 0.24492: -2 gives -1.5232 to the actor, 1.5232 to the critic
    actor, critic = lab.rectified(np.array([-2.0, 0.5]), np.array([-2.0, 0.5]))
    assert actor == pytest.approx((1.523188 - 0.122459) / 2, abs=1e-6)
    assert critic == pytest.approx((1.523188 + 0.122459) / 2, abs=1e-6)
    assert lab.fading_replay(5) == pytest.approx([0, 0.0853, 0.2951, 0.3098, 0.3098], abs=1e-4)
    # ln(1.81 / 0.19) + 0.45 ln 0.9 + ln(1.25 / 0.75)
    assert lab.swaddling(0.9, 0.5) == pytest.approx(2.254058 - 0.047412 + 0.510826, abs=1e-5)
    assert lab.swaddling(0.1, 0.5) == pytest.approx(0.416, abs=1e-3)


def test_policy_guided_diffusion():
    steps = [lab.guidance(i, 256) for i in (0, 128, 254, 255)]
    assert steps == pytest.approx([1.0037, 0.8, 0.0115, 0.0], abs=1e-4)
    assert lab.guidance(2, 256, delay=3) == 0
    # step 2 of 4: 0.5 + 0.3 sin(3 pi / 4); the score (3, 4) has the length 5
    moved = lab.guided(np.array([1.0, 1.0]), np.array([3.0, 4.0]), 2, 4, 10.0)
    weight = 10 * (0.5 + 0.3 * math.sin(0.75 * math.pi))
    assert moved == pytest.approx([1 + 0.6 * weight, 1 + 0.8 * weight])


def test_coplanner_takes_one_in_its_model_and_the_other_in_the_world():
    rewards, unsure = np.array([[1, 1], [1.2, 0.6]]), np.array([[0.1, 0.1], [0.5, 0.4]])
    taken, scores = lab.planned(rewards, unsure, in_model=True)
    assert taken == 0
    assert scores == pytest.approx([1.576, 0.006])  # 1 + .97 - 2 (.1 + .097); 1.782 - 2 * .888
    taken, scores = lab.planned(rewards, unsure, in_model=False)
    assert taken == 1
    assert scores == pytest.approx([2.167, 2.670])


def test_offline_experience_replay_keeps_what_its_policy_would_visit():
    stored = np.array([[0, 0], [1, 0], [5, 5], [2, 2]], dtype=float)
    visited = np.array([[1.0, 0.1], [2.0, 2.5]])  # nearest: 1.005, 0.1, 3.905, 0.5
    assert lab.kept(stored, visited, 2) == [1, 3]
    assert lab.kept(stored, visited, 9) == [1, 3, 0, 2]


def test_stat_arb_is_judged_on_later_rows():
    windows = lab.walk_forward(10, 4, 3)
    assert windows == [(range(4), range(4, 7)), (range(3, 7), range(7, 10))]
    # bought at the first step, sold short at the third: 1, 1 and -1 times changes 2, -1 and 3
    spread = np.array([0.0, 2.0, 1.0, 4.0])
    earned = lab.after_costs(spread, np.array([1.0, 1.0, -1.0]), 0.5)
    assert earned == pytest.approx([2 - 0.5, -1, -3 - 1])


def test_the_program_prints_all_five(capsys):
    lab.main([])
    said = [line.partition(":")[0].split()[0] for line in capsys.readouterr().out.splitlines()]
    assert list(dict.fromkeys(said)) == [
        "symphony", "policy_guided_diffusion", "coplanner", "offline_experience_replay",
        "dqn_stat_arb",
    ]  # fmt: skip
