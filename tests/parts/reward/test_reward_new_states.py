import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from strop.parts.reward.reward_new_states import RewardNewStates, first_visits
from strop.support.errors import UserError


def paid(part, state, states, rollouts, num=2, scored=None):
    """What is added to rewards of 0, and the outcome."""
    reward_B = torch.zeros(num, dtype=torch.float64)
    scored_B = torch.ones(num, dtype=torch.bool) if scored is None else torch.tensor(scored)
    outcome = part(
        reward_B=reward_B, scored_B=scored_B, state_K=torch.tensor(states, dtype=torch.int64),
        rollout_K=torch.tensor(rollouts, dtype=torch.int64), num_rollouts=num, state=state,
    )  # fmt: skip
    return outcome.value.tolist(), outcome


def seen(part, outcome, *states):
    """The state after a step of these turns."""
    return part.observe(torch.tensor(states, dtype=torch.int64), outcome.state)


def test_two_steps_by_hand():
    # rollout 0 goes to 5, 5, 7, rollout 1 to 5: e = 1, 0, 1, 1; nothing is known, so N = 1 and
    # b = 1, 0, 1, 1 with deviation sqrt(3)/4
    part = RewardNewStates(beta=0.5)
    added, first = paid(part, part.init(), [5, 5, 7, 5], [0, 0, 0, 1])
    s = math.sqrt(3) / 4
    assert added == pytest.approx([0.5 * 2 / s, 0.5 / s])
    assert first.metrics["new_states/frac_first"] == 0.75
    assert first.metrics["new_states/known"] == 2
    state = seen(part, first, 5, 5, 7, 5)
    assert state["counts"].tolist() == [3, 1]
    # 5 was visited three times: N = 4, b = 1/2; 9 is new: b = 1. All b: 1, 0, 1, 1, .5, 1
    added, second = paid(part, state, [5, 9], [0, 1])
    s = math.sqrt(4.25 / 6 - (4.5 / 6) ** 2)
    assert added == pytest.approx([0.25 / s, 0.5 / s])
    assert second.metrics["new_states/known"] == 3
    state = seen(part, second, 5, 9)
    assert dict(zip(state["states"].tolist(), state["counts"].tolist(), strict=True)
                ) == {5: 4, 7: 1, 9: 1}  # fmt: skip


def test_rollouts_of_a_step_are_paid_alike_though_curation_has_them_come_in_parts():
    """State 4 was seen three times before the step: g is 1/2 in both parts, and the mean b too."""
    part = RewardNewStates(form="global")
    state = {"states": torch.tensor([4]), "counts": torch.tensor([3]), "moments": (0, 0.0, 0.0)}
    added, first = paid(part, state, [4, 4], [0, 1])
    again, second = paid(part, first.state, [4, 4], [0, 1])
    assert added == again == [0.5, 0.5]
    assert second.state["moments"] == (4, 0.5, 0.0)
    assert seen(part, second, 4, 4, 4, 4)["counts"].tolist() == [7]


@pytest.mark.parametrize(
    ("form", "expected"),
    [("product", [0.5, 0.0]), ("sum", [1.5, 0.5]), ("episodic", [1.0, 0.0]), ("global", [0.5] * 2)],
)
def test_forms(form, expected):
    """A state seen three times before: g is 1/2, e 1 at its first visit."""
    part = RewardNewStates(form=form)
    state = {"states": torch.tensor([4]), "counts": torch.tensor([3]), "moments": (0, 0.0, 0.0)}
    bonus_K = part._bonus(first_visits(torch.tensor([4, 4]), torch.tensor([0, 0])).double(),
                          torch.full((2,), 0.5).double())  # fmt: skip
    assert bonus_K.tolist() == expected
    _, outcome = paid(part, state, [4, 4], [0, 0])
    assert outcome.state["moments"][1] == pytest.approx(sum(expected) / 2)


def test_edges():
    part = RewardNewStates()
    assert paid(part, part.init(), [3], [0])[0] == [1.0, 0.0]  # one value: no deviation
    assert paid(part, part.init(), [], [])[0] == [0.0, 0.0]
    assert paid(part, part.init(), [3, 3, 4], [0, 1, 1], scored=[False, True])[0][0] == 0
    # seven bonuses of 1.1 have a mean that is not quite 1.1: a deviation of rounding is none
    alike = RewardNewStates(form="sum", mix=0.1)
    added, _ = paid(alike, alike.init(), list(range(7)), list(range(7)), num=7)
    assert added == pytest.approx([1.1] * 7)
    with pytest.raises(UserError, match="form must be one of"):
        RewardNewStates(form="both")


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), max_size=20))
def test_every_state_of_a_rollout_is_first_once(pairs):
    rollout_K, state_K = (torch.tensor([p[i] for p in sorted(pairs, key=lambda p: p[0])],
                                       dtype=torch.int64) for i in (0, 1))  # fmt: skip
    first_K = first_visits(state_K, rollout_K)
    seen = set()
    for first, key in zip(first_K.tolist(), zip(rollout_K.tolist(), state_K.tolist(), strict=True),
                          strict=True):  # fmt: skip
        assert first == (key not in seen)
        seen.add(key)
