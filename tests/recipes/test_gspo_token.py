import math

import pytest
import torch
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

from strop import functional
from strop.method.check import check
from strop.recipes.gspo import gspo
from strop.recipes.gspo_token import gspo_token, luspo
from strop.training.learner import kernel

# log-ratios .002, .001, .0006: s = 1.0012007, cut to 1.0004
WORKED = {
    "logp": torch.full((1, 3), -1.0).double(),
    "logp_old": torch.tensor([[-1.002, -1.001, -1.0006]]).double(),
    "advantages": torch.ones(1).double(),
    "mask": torch.ones(1, 3),
}


def test_worked_example_through_the_padded_call():
    for name, loss in (("gspo", -1.0004), ("gspo_token", -1.0004), ("luspo", -3.0012)):
        found, _ = functional.policy_loss(name, **WORKED)
        assert float(found) == pytest.approx(loss, abs=1e-9)
    wide, _ = functional.policy_loss("gspo_token", params={"clip_high": 0.1}, **WORKED)
    assert float(wide) == pytest.approx(-1.0012007, abs=1e-7)


def test_same_gradient_as_gspo_while_an_answer_has_one_advantage():
    for algorithm in (gspo_token(), luspo()):
        check(algorithm)
        assert kernel.scope_of(algorithm.terms) == "rollout"
    batch = stages(gspo(), ragged_batch(1))
    wide = {"clip_low": 0.1, "clip_high": 0.2}
    assert_equal_pushes(gspo_token(**wide), gspo(**wide), batch)
    assert_equal_pushes(luspo(aggregation="seq-mean-token-mean", **wide), gspo(**wide), batch)


def test_each_token_is_pushed_by_its_own_advantage():
    algorithm = gspo_token(clip_low=0.2, clip_high=0.2)
    batch = stages(algorithm, ragged_batch(1))
    noise_T = torch.randn(batch.size("T"), generator=torch.Generator().manual_seed(0)).double()
    batch = batch.set(advantage_T=noise_T)

    def loss_of(logp_T):
        total = logp_T.new_zeros(())
        for _, tokens in learning(batch):
            gap = logp_T[tokens] - batch["logp_old_T"][tokens]
            ratio = (gap.mean().detach() + logp_T[tokens] - logp_T[tokens].detach()).exp()
            losses = clipped(ratio, batch["advantage_T"][tokens], 0.2, 0.2)
            total = total + losses.mean() / len(learning(batch))
        return total

    assert_same_push(algorithm, batch, loss_of)
    both = pushed(gspo(clip_low=0.2, clip_high=0.2), batch)[1]["logp_T"]
    assert not torch.allclose(both, pushed(algorithm, batch)[1]["logp_T"])


def test_luspo_gradient_is_that_of_the_published_loss():
    algorithm = luspo(clip_low=0.1, clip_high=0.2)
    batch = stages(algorithm, ragged_batch(2))

    def loss_of(logp_T):
        total = logp_T.new_zeros(())
        for i, tokens in learning(batch):
            ratio = (logp_T[tokens] - batch["logp_old_T"][tokens]).mean().exp()
            loss = clipped(ratio, batch["advantage_B"][i], 0.1, 0.2)
            total = total + len(tokens) * loss / len(learning(batch))
        return total

    assert_same_push(algorithm, batch, loss_of)


def test_beyond_the_cap_a_token_has_no_gradient():
    batch = flat_batch((1,), logp_T=[-1.0], logp_old_T=[-12.0], advantage_T=[-1.0])
    loss, found, _ = pushed(gspo_token(), batch)
    assert loss == pytest.approx(math.exp(10))
    assert found["logp_T"].tolist() == [0.0]
