import pytest
import torch
from builders import flat_batch, run

from strop.parts.advantage.weight.favour_short_right_answers import FavourShortRightAnswers
from strop.support.errors import UserError

EXAMPLE = {
    "reward_B": [1.0, 0, 1, 1], "parent_B": [-1, 0, -1, 0], "fork_at_B": [-1, 4, -1, 6],
}  # fmt: skip


def split(batch, values_T):
    return [piece.tolist() for piece in torch.split(values_T, batch["length_B"].tolist())]


def test_worked_example():
    third, before = 1 / 3, 2 / 3 - 3 / 4
    advantage = [
        *[before] * 4, *[third] * 2, *[0] * 4, *[before] * 4, *[-2 / 3] * 8, *[0.25] * 8,
        *[before] * 4, *[third] * 2, *[0] * 8,
    ]  # fmt: skip
    batch = flat_batch((10, 12, 8, 14), advantage_T=advantage, **EXAMPLE)
    first, second, third_one, fourth = split(batch, run(FavourShortRightAnswers(), batch).value)
    # shortest right: rollout 3; 1 - 8/10 = 0.2 and 1 - 8/14 = 0.4286
    assert first == pytest.approx([-0.1] * 4 + [0.8 / 3] * 2 + [0] * 4)
    assert second == pytest.approx([before] * 4 + [-2 / 3] * 8)
    assert third_one == [0.25] * 8
    assert fourth == pytest.approx([before * 10 / 7] * 4 + [4 / 21] * 2 + [0] * 8)


def test_tokens_shared_with_the_shortest_right_answer_stay():
    batch = flat_batch(
        (4, 8, 6), reward_B=[1.0, 1, 0], parent_B=[-1, 0, -1], fork_at_B=[-1, 2, -1],
        advantage_T=[1.0] * 18,
    )  # fmt: skip
    _, longer, wrong = split(batch, run(FavourShortRightAnswers(2.0), batch).value)
    assert longer == pytest.approx([1, 1] + [1 / 9] * 6)  # ((4 - 2) / (8 - 2)) ** 2
    assert wrong == [1.0] * 6


def test_of_several_shortest_answers_the_one_that_shares_most_counts():
    batch = flat_batch(
        (4, 4, 8), reward_B=[1.0, 1, 1], parent_B=[-1, -1, 1], fork_at_B=[-1, -1, 3],
        advantage_T=[1.0] * 16,
    )  # fmt: skip
    found = run(FavourShortRightAnswers(), batch).value
    assert found[8:].tolist() == pytest.approx([1] * 3 + [1 / 5] * 5)
    moved = batch.take(torch.tensor([1, 0, 2]))
    assert run(FavourShortRightAnswers(), moved).value.equal(found)


def test_edges():
    batch = flat_batch((10, 12, 8, 14), advantage_T=torch.linspace(-1, 1, 44), **EXAMPLE)
    assert run(FavourShortRightAnswers(0.0), batch).value.equal(batch["advantage_T"])
    assert run(FavourShortRightAnswers(success=2.0), batch).value.equal(batch["advantage_T"])
    one_right = batch.set(reward_B=torch.tensor([0.0, 0, 1, 0]))
    assert run(FavourShortRightAnswers(), one_right).value.equal(batch["advantage_T"])
    minus = batch.set(reward_B=torch.tensor([1.0, -1, -1, -1]))  # wrong answers at -1 are wrong
    assert run(FavourShortRightAnswers(), minus).value.equal(batch["advantage_T"])
    with pytest.raises(UserError, match="alpha"):
        FavourShortRightAnswers(-1.0)
