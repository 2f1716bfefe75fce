import pytest
import torch
from builders import assert_equal_pushes, assert_same_push, learning, ragged_batch, stages

from strop import functional
from strop.method.check import check
from strop.recipes.gmpo import gmpo
from strop.recipes.gspo import gspo
from strop.training.learner import kernel


@pytest.mark.parametrize(
    ("x", "advantage", "loss"),
    [([0.6, -0.1, 0.1], 1.0, -1.142631), ([0.6, -0.1, 0.1], -1.0, 1.221403),
     ([-0.6, -0.1, 0.1], -1.0, 0.875173)],
)  # fmt: skip
def test_worked_example_through_the_padded_call(x, advantage, loss):
    logp_old = torch.full((1, 3), -1.0).double()
    logp = logp_old + torch.tensor([x]).double()
    given = {"advantages": torch.tensor([advantage]).double(), "mask": logp < 0}
    found, _ = functional.policy_loss("gmpo", logp=logp, logp_old=logp_old, **given)
    assert float(found) == pytest.approx(loss, abs=1e-6)


def test_composes_and_is_gspo_while_nothing_is_clipped():
    check(gmpo(beta=0.1))
    assert kernel.scope_of(gmpo().terms) == "rollout"
    batch = stages(gmpo(), ragged_batch(1))
    wide, free = gmpo(clip_low=9.0, clip_high=9.0), gspo(clip_low=9.0, clip_high=9.0)
    assert_equal_pushes(wide, free, batch)


def test_gradient_is_that_of_the_published_loss():
    algorithm = gmpo(clip_low=0.2, clip_high=0.3)
    batch = stages(algorithm, ragged_batch(1))

    def loss_of(logp_T):
        total = logp_T.new_zeros(())
        for i, tokens in learning(batch):
            a = batch["advantage_B"][i]
            x = logp_T[tokens] - batch["logp_old_T"][tokens]
            y = a.sign() * torch.minimum(a.sign() * x, a.sign() * x.clamp(-0.2, 0.3))
            total = total - a * y.mean().exp() / len(learning(batch))
        return total

    assert_same_push(algorithm, batch, loss_of)
