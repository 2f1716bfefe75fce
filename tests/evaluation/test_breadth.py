import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from strop.evaluation.breadth import mass_change, simulate, unsampled_weight
from strop.support.errors import UserError

EVEN = [1 / 6] * 6
RIGHT = [True, True, False, False, False, False]


def change(rows, num):
    seen = np.isin(np.arange(6), rows)
    return mass_change(EVEN, RIGHT, seen, num)


def test_worked_example():
    both = change([0, 2], 2)
    assert both.whole == pytest.approx(0.01389, abs=5e-6)
    assert both.unsampled == 0.0
    right = change([0], 1)
    assert (right.whole, right.unsampled) == pytest.approx((0.01852, 0.00309), abs=5e-6)
    wrong = change([2], 1)
    assert (wrong.whole, wrong.unsampled) == pytest.approx((0.00926, 0.00154), abs=5e-6)
    everything = change(range(6), 6)
    assert everything.whole == pytest.approx(0.01235, abs=5e-6)
    assert everything.unsampled == 0.0
    assert unsampled_weight(0.25, 4) == pytest.approx(0.0198, abs=5e-5)
    assert unsampled_weight(0.25, 16) == pytest.approx(6.3e-4, abs=5e-6)


@given(data=st.data())
def test_it_is_the_derivative_of_the_right_mass(data):
    """Along minus the gradient of -(1/N) sum over sampled tokens of (R_v - S) p_v, p = softmax."""
    logits = [data.draw(st.floats(-2, 2)) for _ in range(5)]
    right = np.array([data.draw(st.booleans()) for _ in range(5)])
    seen = np.array([data.draw(st.booleans()) for _ in range(5)])
    seen[data.draw(st.integers(0, 4))] = True
    z = torch.tensor(logits, dtype=torch.float64, requires_grad=True)
    p = z.softmax(0)
    reward = torch.tensor(np.where(right, 1.0, -1.0))
    mask = torch.tensor(seen)
    moved = float((reward * p.detach())[mask].sum())
    # d logits_v = (1/N) p_v (R_v 1[sampled] - S): the policy gradient of these samples
    step = (p * (reward * mask - moved)).detach() / 3
    (slope,) = torch.autograd.grad(p[torch.tensor(right)].sum(), z)
    found = mass_change(p.detach().numpy(), right, seen, 3)
    assert found.whole == pytest.approx(float(slope @ step), abs=1e-12)


@given(seen=st.lists(st.booleans(), min_size=6, max_size=6).filter(any))
def test_what_was_sampled_never_takes_from_the_right_ones(seen):
    assert mass_change(EVEN, RIGHT, seen, 4).sampled >= 0


def test_the_harmful_case_and_refusals():
    # one right token was met, all other right ones were not
    p = np.array([0.1, 0.6, 0.3])
    found = mass_change(p, [True, True, False], [True, False, False], 1)
    assert found.unsampled < 0
    with pytest.raises(UserError, match="add up"):
        mass_change([0.2, 0.2], [True, False], [True, True], 1)


def test_more_samples_lose_fewer_right_tokens():
    few, many = (simulate(num, 40, 400, 40, lr=0.05) for num in (4, 2000))
    assert many.share_risen > few.share_risen
    assert many.worst_fall < few.worst_fall
    assert all(a < b for a, b in itertools.pairwise(many.right_mass))
