"""Padded calls whose rollouts have turns: three layouts, one result."""

import math

import pytest
import torch

from strop import functional as F
from strop.padded.turns import MOST_TURNS
from strop.support.errors import UserError

REWARDS = torch.tensor([[0.0, 3.0], [1.0, 1.0], [0.0, 0.0]], dtype=torch.float64)
GROUPS = torch.zeros(3, dtype=torch.long)
WANTED = torch.tensor([[2, 2.5], [0.5, -0.5], [-2.5, -2]], dtype=torch.float64)


def test_one_advantage_a_turn_without_a_mask():
    found = F.advantages("trloo", groups=GROUPS, turn_rewards=REWARDS)
    torch.testing.assert_close(found, WANTED)


def test_turns_that_are_not_there_count_nowhere():
    valid = torch.tensor([[1, 1], [1, 1], [1, 0]])
    for noise in (math.nan, math.inf):
        noisy = torch.where(valid.bool(), REWARDS, noise)
        found = F.advantages("trloo", groups=GROUPS, turn_rewards=noisy, turn_valid=valid)
        assert found[:, 1].tolist() == [2, -2, 0]
    with pytest.raises(UserError, match="turn_rewards must be finite"):
        F.advantages("trloo", groups=GROUPS, turn_rewards=noisy)


def test_there_is_a_column_for_a_turn_that_nobody_has():
    given = {"turn_rewards": torch.nn.functional.pad(REWARDS, (0, 1)), "groups": GROUPS}
    mask, ids = torch.ones(3, 2), torch.tensor([[0, 1]] * 3)
    for valid in (None, torch.tensor([[1, 1, 0]] * 3)):
        found = F.returns("trloo", turn_ids=ids, turn_valid=valid, mask=mask, **given)
        assert found.shape == (3, 3)
        assert found[:, 2].tolist() == [0, 0, 0]


def test_tokens_get_their_turns_advantage_and_observations_none():
    # observation, two tokens of turn 0, observation (of turn 1), one token of turn 1, padding
    mask = torch.tensor([[0, 1, 1, 0, 1, 0]] * 3)
    turns = torch.tensor([[0, 0, 0, -1, 1, -1], [0, 0, 0, 1, 1, -1], [-1, 0, 0, -1, 1, 1]])
    found = F.advantages("trloo", groups=GROUPS, turn_rewards=REWARDS, turn_ids=turns, mask=mask)
    first, second = WANTED[:, :1], WANTED[:, 1:]
    nothing = torch.zeros_like(first)
    expected = torch.cat([nothing, first, first, nothing, second, nothing], dim=1)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("order", [(0, 1, 2, 3, 4, 5), (5, 0, 3, 1, 4, 2)])
def test_rows_may_be_turns_in_any_order(order):
    rows = torch.tensor(order)
    given = {
        "trajectories": torch.tensor([0, 0, 1, 1, 2, 2])[rows],
        "turn_index": torch.tensor([0, 1, 0, 1, 0, 1])[rows],
        "groups": torch.zeros(6, dtype=torch.long),
        "turn_rewards": REWARDS.flatten()[rows],
    }
    torch.testing.assert_close(F.advantages("trloo", **given), WANTED.flatten()[rows])
    mask = torch.tensor([[1, 1, 0]] * 6)
    found = F.advantages("trloo", mask=mask, **given)
    torch.testing.assert_close(found, WANTED.flatten()[rows][:, None] * mask)


def test_without_an_index_turns_are_in_the_order_of_rows():
    """They were numbered through all trajectories, so that no two were at one place."""
    rows = {"trajectories": [7, 3, 7, 3], "turn_rewards": [0.0, 0.0, 1.0, 0.0]}
    found = F.advantages("trloo", groups=[0, 0, 0, 0], **rows)
    torch.testing.assert_close(
        found, F.advantages("trloo", groups=[0, 0, 0, 0], turn_index=[0, 0, 1, 1], **rows)
    )
    assert found.tolist() == [1, -1, 1, -1]


def test_a_turn_is_one_row_but_for_rows_that_are_padding():
    rows = {"trajectories": [0, 0, 1, 0], "turn_index": [0, 1, 0, 1], "groups": [0, 0, 0, 0]}
    mask = torch.tensor([[1], [1], [1], [0]])
    assert F.advantages("trloo", turn_rewards=[1, 0, 0, 0], mask=mask, **rows).shape == (4, 1)
    with pytest.raises(UserError, match="turn_index has turn 1 of trajectory 0 twice"):
        F.advantages("trloo", turn_rewards=[1, 0, 0, 0], **rows)


def test_what_is_of_a_whole_trajectory_is_the_same_in_all_its_turns():
    """The value of its first turn stood for all, such as 0 where the last turn has the reward."""
    rows = {"trajectories": [0, 0, 1, 1], "turn_rewards": [0.0, 1.0, 0.0, 0.0]}
    for name, other in (("group", {"groups": [0, 1, 0, 0]}), ("reward", {"rewards": [0, 1, 0, 0]})):
        with pytest.raises(UserError, match=f"{name} differs between the turns of a trajectory"):
            F.advantages("trloo", **{"groups": [0, 0, 0, 0], **rows, **other})


def test_there_may_be_no_rows():
    none = torch.zeros(0)
    rows = {"groups": none.long(), "trajectories": none.long(), "turn_rewards": none}
    assert F.advantages("trloo", mask=torch.zeros(0, 3), **rows).shape == (0, 3)
    assert F.advantages("trloo", **rows).shape == (0,)


def test_reads_of_a_call_name_the_layouts():
    taken = F.inputs("trloo", "advantages")
    assert taken["turn_rewards"]
    assert not taken["rewards"]
    assert {"turn_ids", "turn_valid", "trajectories", "turn_index"} <= taken.keys()
    assert "turn_ids" not in F.inputs("grpo", "advantages")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"mask": torch.ones(3, 2), "turn_ids": torch.tensor([[0, -1]] * 3)}, "is -1 on a token"),
        ({"mask": torch.ones(3, 2), "turn_ids": torch.tensor([[1, 0]] * 3)}, "must not fall"),
        ({"mask": torch.ones(3, 2), "turn_ids": torch.tensor([[0, 2]] * 3)}, "names turn 2"),
        ({"mask": torch.ones(3, 2), "turn_ids": torch.zeros(3, 3)}, r"turn_ids must be \[3, 2\]"),
        ({"mask": torch.ones(3, 2)}, "need turn_ids or trajectories"),
        (
            {"mask": torch.ones(3, 2), "turn_ids": torch.full((3, 2), MOST_TURNS)},
            f"from -1 to {MOST_TURNS - 1}$",
        ),
        (
            {
                "mask": torch.ones(3, 2),
                "turn_ids": torch.tensor([[0, 1]] * 3),
                "steps": torch.arange(3),
            },
            r"advantages\('trloo'\): steps are the turns of trajectories",
        ),
        (
            {
                "mask": torch.ones(3, 2),
                "turn_ids": torch.tensor([[0, 1]] * 3),
                "turn_valid": torch.tensor([[1, 0]] * 3),
            },
            "leaves out a turn",
        ),
    ],
)
def test_what_does_not_fit_is_named(given, message):
    with pytest.raises(UserError, match=message):
        F.advantages("trloo", groups=GROUPS, turn_rewards=REWARDS, **given)


@pytest.mark.parametrize(
    ("name", "wanted"),
    [("gigpo", r"anchors or states \(column state_K"), ("ui_s1_semi_online", r"match \(column")],
)
def test_what_a_part_reads_as_its_fields_stand_is_needed(name, wanted):
    given = {"mask": torch.ones(3, 2), "turn_ids": torch.tensor([[0, 1]] * 3)}
    for call in (F.advantages, F.next_state):
        with pytest.raises(UserError, match=f"needs {wanted}"):
            call(name, groups=GROUPS, turn_rewards=REWARDS, **given)


def test_rewards_are_needed_where_turns_have_none():
    with pytest.raises(UserError, match="needs rewards"):
        F.advantages("grpo", groups=GROUPS)
    with pytest.raises(UserError, match="needs token_rewards, or rewards"):
        F.advantages("gae", mask=torch.ones(1, 2), values=torch.zeros(1, 2))
