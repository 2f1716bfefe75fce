import math

import pytest
import torch
from builders import assert_same_push, pushed, ragged_batch, rows_learning, stages

from strop import functional
from strop.recipes.dro import dro
from strop.recipes.grpo import grpo
from strop.support.errors import UserError


def test_worked_example_through_the_padded_call():
    given = {
        "logp": torch.tensor([[math.log(0.5)]]).double(),
        "logp_old": torch.tensor([[math.log(0.4)]]).double(),
        "advantages": torch.ones(1).double(),
        "mask": torch.ones(1, 1),
        "params": {"beta": 0.1},
    }
    loss, _ = functional.policy_loss("dro", **given)
    assert float(loss) == pytest.approx(0.695637, abs=1e-6)
    assert float(functional.token_weights("dro", **given)) == pytest.approx(0.977686, abs=1e-6)


def test_gradient_is_that_of_the_published_loss():
    """Also of tokens whose advantage is 0: the spring pulls them too."""
    algorithm = dro(beta=0.7)
    batch = stages(algorithm, ragged_batch(1))
    silent_T = torch.arange(batch.size("T")) % 3 == 0
    batch = batch.set(advantage_T=torch.where(silent_T, 0, batch["advantage_T"]))
    rows = rows_learning(batch)

    def loss_of(logp_T):
        gap = logp_T[rows] - batch["logp_old_T"][rows]
        return -(batch["advantage_T"][rows] * logp_T[rows] - 0.35 * gap.square()).mean()

    assert_same_push(algorithm, batch, loss_of)
    assert (pushed(algorithm, batch)[1]["logp_T"][rows] != 0).all()


def test_at_rest_it_is_the_policy_gradient():
    batch = stages(grpo(), ragged_batch(1))
    batch = batch.set(logp_old_T=batch["logp_T"])
    plain = pushed(grpo(aggregation="token-mean"), batch)
    torch.testing.assert_close(pushed(dro(), batch)[1]["logp_T"], plain[1]["logp_T"])


def test_without_a_spring_it_is_refused():
    with pytest.raises(UserError, match=r"dro.beta must be above 0"):
        dro(beta=0.0)
