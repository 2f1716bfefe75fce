"""labs/ota_value.py: advantages on a coarser axis by hand, and an option's transitions."""

import re

import numpy as np
import pytest
import torch
from opened import opened

lab = opened("ota_value")


def test_advantages_of_far_subgoals_by_hand():
    # 100 (0.99^975 - 0.99^1000), then the exponents over 5 and over 20
    found = [lab.exact_advantage(1000, n) for n in (1, 5, 20)]
    assert found == pytest.approx([0.0012, 0.6905, 0.7649], abs=1e-4)


def test_the_corridor_is_folded():
    places = lab.places(2, 3)
    assert places.tolist() == [[0, 0], [0.5, 0], [1, 0], [1, 1], [0.5, 1], [0, 1]]


def test_an_option_ends_at_its_goal():
    walked = np.arange(100)[None]  # one walk, straight ahead
    at, then, goal, met = lab.drawn(np.random.default_rng(0), walked, 4000, 10)
    assert (then[met] == goal[met]).all()
    ahead = (goal >= at) & (goal <= at + 10)
    assert (met == ahead).all()
    assert (then[~met] == np.minimum(at[~met] + 10, 99)).all()
    assert (goal == at).mean() == pytest.approx(0.2, abs=0.03)
    one = lab.drawn(np.random.default_rng(0), walked, 4000, 1)
    assert (one[1] - one[0] <= 1).all()


def test_targets_and_loss_by_hand():
    found = lab.target(torch.tensor([-4.0, -4.0]), torch.tensor([False, True]))
    assert found.tolist() == pytest.approx([-1 - 3.96, 0])
    # 0.7 * 2^2 where the advantage is positive, 0.3 * 1^2 where it is negative
    loss = lab.expectile_loss(torch.tensor([1.0, -1.0]), torch.tensor([2.0, 1.0]))
    assert loss.item() == pytest.approx((0.7 * 4 + 0.3) / 2)


class Known(torch.nn.Module):
    """The true distances on a straight corridor, or their negative."""

    def __init__(self, sign):
        super().__init__()
        self.sign = sign

    def forward(self, pairs):
        apart = (pairs[:, 0] - pairs[:, 2]).abs()
        return self.sign * torch.stack([apart, apart], 1)


def test_consistency_of_right_and_wrong_values():
    straight = torch.tensor(np.c_[np.arange(120.0), np.zeros(120)])
    for sign, share in ((-1, 1.0), (1, 0.0)):
        assert lab.consistency(Known(sign), straight)[:3] == [share] * 3


def test_longer_options_order_subgoals_better_at_equal_updates():
    sizes = lab.Sizes(batch=64, width=32, rows=2, columns=40, walks=50, steps=80)
    fine, coarse = (lab.consistency(*lab.learnt(sizes, n, 0, 200))[0] for n in (1, 20))
    assert coarse > fine + 0.1


def test_the_program_refuses_nothing_to_learn(refused):
    assert re.search("error: seeds, updates", refused(lab.main, ["--options", "0"]))
