import pytest
from builders import (
    assert_equal_pushes,
    assert_same_push,
    clipped,
    flat_batch,
    learning,
    pushed,
    ragged_batch,
    stages,
)

from strop.recipes.grpo import grpo
from strop.recipes.gspo import gspo


def test_worked_example():
    # the mean log-ratio .0012 gives s = 1.0012007, cut to 1.0004
    batch = flat_batch(
        (3,),
        logp_T=[-1.0, -1.0, -1.0],
        logp_old_T=[-1.002, -1.001, -1.0006],
        advantage_T=[1.0, 1.0, 1.0],
    )
    loss, found, metrics = pushed(gspo(), batch)
    assert loss == pytest.approx(-1.0004, abs=1e-9)
    assert found["logp_T"].tolist() == [0.0, 0.0, 0.0]
    assert metrics["clip_ratio/high_mean"] == 1.0


def test_composes():
    assert gspo().advantage == grpo().advantage


def test_equals_grpo_with_the_same_clip_when_every_answer_has_one_token():
    batch = ragged_batch(1, lengths=(1, 1), num_turns=(1, 1))
    batch = stages(gspo(), batch)
    wide = {"clip_low": 0.1, "clip_high": 0.15}
    assert_equal_pushes(gspo(**wide), grpo(**wide), batch)


@pytest.mark.parametrize("widths", [(3e-4, 4e-4), (0.1, 0.2)])
def test_gradient_is_that_of_the_published_loss(widths):
    algorithm = gspo(clip_low=widths[0], clip_high=widths[1])
    batch = stages(algorithm, ragged_batch(1))

    def loss_of(logp_T):
        rows = learning(batch)
        total = logp_T.new_zeros(())
        for i, tokens in rows:
            ratio = (logp_T[tokens] - batch["logp_old_T"][tokens]).mean().exp()
            total = total + clipped(ratio, batch["advantage_B"][i], *widths) / len(rows)
        return total

    assert_same_push(algorithm, batch, loss_of)
