import pytest
import torch
from builders import run
from hypothesis import given
from hypothesis import strategies as st
from ragged import ragged_batch

from strop.parts.advantage.weight.centre_distinct_values import CentreDistinctValues


def of(values, rollouts=None, players=(0, 0, 0), **fields):
    """The result for policy tokens alone."""
    advantage_T = torch.tensor(values, dtype=torch.float64)
    rollout_T = torch.zeros(len(values)).long() if rollouts is None else torch.tensor(rollouts)
    mask_T = torch.ones(len(values), dtype=torch.bool)
    return CentreDistinctValues(**fields)(
        advantage_T, rollout_T, mask_T, torch.ones(3, dtype=torch.bool), torch.tensor(players)
    ).tolist()


def test_every_value_counts_once():
    assert of([0.0, 0, 0, 1, 2]) == [-1, -1, -1, 0, 1]  # the mean of the values is .6
    assert of([0.0, 0, 0, 1, 2], scale="unbiased", eps=0.0) == [-1, -1, -1, 0, 1]
    assert of([3.0, 5, 5, 5], scale="unbiased", eps=1.0) == pytest.approx(
        [-1 / (2**0.5 + 1)] + [1 / (2**0.5 + 1)] * 3
    )


def test_players_have_values_of_their_own():
    found = of([0.0, 4, 1, 2, 9], [0, 0, 1, 1, 2], players=(7, 2, 7))
    # Player 7 has 0, 4 and 9, player 2 has 1 and 2.
    assert found == pytest.approx([-13 / 3, -1 / 3, -0.5, 0.5, 14 / 3])
    assert of([0.0, 3, 3], [0, 1, 1], players=(0, 1, 1)) == [0, 0, 0]  # one value each


@given(
    st.lists(st.tuples(st.integers(0, 2), st.sampled_from([-1.5, -0.0, 0.0, 0.1, 1 / 3, 2.0])),
             min_size=1, max_size=12)
)  # fmt: skip
def test_as_the_mean_of_a_set(tokens):
    tokens = sorted(tokens, key=lambda token: token[0])
    rollouts, values = [row for row, _ in tokens], [value for _, value in tokens]
    players = (4, 9, 4)
    said = {p: {torch.tensor(v).float().item() for r, v in tokens if players[r] == p}
            for p in players}  # fmt: skip
    means = {p: sum(own) / max(len(own), 1) for p, own in said.items()}
    expected = [v - means[players[r]] if len(said[players[r]]) > 1 else 0.0 for r, v in tokens]
    assert of(values, rollouts, players) == pytest.approx(expected, abs=1e-12)


def test_rounding_does_not_make_a_value_of_its_own():
    third = 1 / 3
    assert of([third, third + 1e-16, third - 1e-16, 1.0]) == pytest.approx([-third] * 3 + [third])


def test_without_players_there_is_one():
    batch = ragged_batch(2)
    whole = batch.set(player_B=torch.zeros(batch.size("B")).long())
    columns = {name: c for name, c in batch.columns.items() if name != "player_B"}
    bare = type(batch)(columns)
    one, other = (run(CentreDistinctValues(), b).value for b in (whole, bare))
    assert one.equal(other)
