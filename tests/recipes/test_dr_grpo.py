import pytest
from builders import assert_same_push, clipped, flat_batch, learning, ragged_batch, stages

from strop.recipes.dr_grpo import dr_grpo
from strop.recipes.grpo import grpo


def test_worked_example():
    batch = stages(dr_grpo(), flat_batch((2, 4, 4, 2), reward_B=[1.0, 0.0, 0.0, 1.0]))
    expected = [0.5] * 2 + [-0.5] * 8 + [0.5] * 2
    assert batch["advantage_T"].tolist() == expected


def test_composes_and_differs_from_its_parent():
    assert [use.label for use in dr_grpo().advantage] == ["subtract_group_mean", "spread_evenly"]
    assert dr_grpo(length=77).terms[0].average.part.length == 77
    scaled = dr_grpo(normalize_std=True, aggregation="seq-mean-token-mean")
    assert scaled == grpo()


@pytest.mark.parametrize("length", [0, 50])
def test_gradient_is_that_of_the_published_loss(length):
    algorithm = dr_grpo(length=length)
    batch = stages(algorithm, ragged_batch(1))

    def loss_of(logp_T):
        rows = learning(batch)
        constant = length or int(batch["max_length"])
        total = logp_T.new_zeros(())
        for i, tokens in rows:
            ratio = (logp_T[tokens] - batch["logp_old_T"][tokens]).exp()
            total = total + clipped(ratio, batch["advantage_B"][i], 0.2, 0.2).sum()
        return total / (len(rows) * constant)

    assert_same_push(algorithm, batch, loss_of)
