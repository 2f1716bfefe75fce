import pytest
import torch
from builders import clipped, flat_batch, learning, plain_push, pushed, ragged_batch, stages

from strop.method.check import check
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
    check(gspo())
    assert gspo().advantage == grpo().advantage


def test_equals_grpo_with_the_same_clip_when_every_answer_has_one_token():
    batch = ragged_batch(1, lengths=(1, 1), num_turns=(1, 1))
    batch = stages(gspo(), batch)
    wide = {"clip_low": 0.1, "clip_high": 0.15}
    ours, theirs = pushed(gspo(**wide), batch), pushed(grpo(**wide), batch)
    assert ours[0] == pytest.approx(theirs[0], rel=1e-12)
    torch.testing.assert_close(ours[1]["logp_T"], theirs[1]["logp_T"])


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

    loss, (gradient_T,) = plain_push(loss_of, batch)
    ours, found, _ = pushed(algorithm, batch)
    assert ours == pytest.approx(loss, rel=1e-10)
    torch.testing.assert_close(found["logp_T"], gradient_T, atol=1e-10, rtol=1e-10)
    assert (gradient_T != 0).any()
