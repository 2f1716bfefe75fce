"""Advantages of turns: numbers by hand, a slow loop, cut episodes, segments."""

import pytest
import torch

from strop.parts.advantage.credit.estimate_turn_advantage import EstimateTurnAdvantage
from strop.support.errors import UserError


def estimated(value, reward, rollout, done, scored=None, fields=None, **segments):
    """Advantages and returns of turns."""
    number = max(rollout) + 1
    found = EstimateTurnAdvantage(**fields or {})(
        torch.tensor(value, dtype=torch.float64),
        torch.tensor(reward, dtype=torch.float64),
        torch.tensor(rollout),
        torch.tensor(done),
        torch.tensor(scored or [True] * number),
        **{name: torch.tensor(own) for name, own in segments.items()},
    )
    return [x_K.tolist() for x_K in found.value]


def test_worked_example():
    # delta = (.5*.4 - .2, .5*.6 - .4, 1 - .6) = (0, -.1, .4); A = (0 + .25*0, -.1 + .25*.4, .4)
    fields = {"gamma": 0.5, "lam": 0.5}
    advantage_K, return_K = estimated(
        [0.2, 0.4, 0.6], [0.0, 0.0, 1.0], [0, 0, 0], [False, False, True], fields=fields
    )
    assert advantage_K == pytest.approx([0.0, 0.0, 0.4])
    assert return_K == pytest.approx([0.2, 0.4, 1.0])


@pytest.mark.parametrize("bootstrap", [True, False])
def test_matches_slow_loop(bootstrap):
    rng = torch.Generator().manual_seed(3)
    rollout = [0, 0, 0, 1, 2, 2, 3, 3, 3, 3]
    done = [False, False, True, False, False, True, False, True, False, False]
    value, reward = torch.randn(2, len(rollout), generator=rng, dtype=torch.float64).tolist()
    expected, gamma, lam = [0.0] * len(rollout), 0.9, 0.7
    for turn in reversed(range(len(rollout))):
        last = turn + 1 == len(rollout) or rollout[turn + 1] != rollout[turn]
        ahead = value[turn] * bootstrap if last else value[turn + 1]
        later = 0.0 if last or done[turn] else expected[turn + 1]
        delta = reward[turn] + gamma * ahead * (not done[turn]) - value[turn]
        expected[turn] = delta + gamma * lam * later
    fields = {"gamma": gamma, "lam": lam, "bootstrap_truncated": bootstrap}
    advantage_K, return_K = estimated(value, reward, rollout, done, fields=fields)
    assert advantage_K == pytest.approx(expected)
    assert return_K == pytest.approx([a + v for a, v in zip(expected, value, strict=True)])


def test_a_segment_looks_ahead_to_what_the_next_is_worth():
    # gamma 1, lam 1: turn 0 -> 0.9 - 0.1 and no credit beyond; turn 1 -> 0.3 - 0.2 + (1 - 0.3)
    advantage_K, _ = estimated(
        [0.1, 0.2, 0.3], [0.0, 0.0, 1.0], [0, 0, 0], [False, False, True],
        switch_K=[True, True, False], entry_value_K=[0.5, 0.9, 0.7],
    )  # fmt: skip
    assert advantage_K == pytest.approx([0.8, 0.8, 0.7])


def test_edges():
    zero = estimated([0.3, 0.1], [1.0, 1.0], [0, 1], [True, True], scored=[False, True])
    assert [column[0] for column in zero] == [0.0, 0.0]
    assert zero[0][1] == pytest.approx(0.9)
    with pytest.raises(UserError, match="lam"):
        EstimateTurnAdvantage(lam=1.5)
