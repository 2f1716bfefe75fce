import math

import pytest
import torch
from builders import assert_same_push, ragged_batch, rows_learning, stages

from strop import functional
from strop.method.check import check
from strop.recipes.gae import gae
from strop.recipes.st_ppo import s_ppo, st_ppo


def test_worked_example_of_the_turn_ratio():
    # one turn, log-ratios 0.1, -0.2, 0.4: the turn's ratio is e^0.1, so nothing is clipped
    log_ratio = torch.tensor([[0.1, -0.2, 0.4]]).double()
    given = {"logp_old": -torch.ones_like(log_ratio), "mask": torch.ones(1, 3)}
    given |= {"logp": given["logp_old"] + log_ratio, "advantages": torch.ones(1).double()}
    turn, _ = functional.policy_loss("turn_ppo", **given)
    assert float(turn) == pytest.approx(-math.exp(0.1))
    token, _ = functional.policy_loss("gae", **given)
    assert float(token) == pytest.approx(-(math.exp(0.1) + math.exp(-0.2) + 1.2) / 3)
    for name in ("st_ppo", "s_ppo"):  # nothing clipped; the norm e^0.4 / 3 is below the floor
        same, _ = functional.policy_loss(name, **given)
        assert float(same) == pytest.approx(float(turn if name == "st_ppo" else token))
    low, _ = functional.policy_loss("s_ppo", **given, params={"floor": 0.0})
    assert float(low) == pytest.approx(float(token) / (math.exp(0.4) / 3))


@pytest.mark.parametrize(("recipe", "by_turn"), [(s_ppo, False), (st_ppo, True)])
def test_gradient_is_that_of_the_published_loss(recipe, by_turn):
    algorithm = recipe(floor=0.01, clip_low=0.1, clip_high=0.1)
    batch = stages(algorithm, ragged_batch(1)).set()
    batch = batch.set(value_old_T=batch["value_T"])
    rows = rows_learning(batch)
    scored = (batch["mask_T"] & batch["scored_B"][batch["rollout_T"]]).nonzero().squeeze(1)
    advantage_N, rollout_N = batch["advantage_T"][rows], batch["rollout_T"][rows]
    turn_N, norms = batch["turn_T"][rows], []

    def loss_of(logp_T, value_T):
        log_N = logp_T[rows] - batch["logp_old_T"][rows]
        if by_turn:
            log_N = torch.stack([log_N[turn_N == k].mean() for k in turn_N])
        free_N = log_N.exp() * advantage_N
        held_N = log_N.exp().clamp(0.9, 1.1) * advantage_N
        length_N = torch.stack([(rollout_N == i).sum() for i in rollout_N])
        norms.append((free_N / length_N)[held_N < free_N].norm().detach())
        critic = 0.5 * (value_T[scored] - batch["return_T"][scored]).square().mean()
        return -torch.minimum(free_N, held_N).mean() / norms[-1] + critic

    assert_same_push(algorithm, batch, loss_of, "logp_T", "value_T")
    assert norms[0] > 0.01


def test_composes():
    assert st_ppo(beta=0.1, lam=0.9).value_columns() == ("value_T",)
    check(st_ppo(beta=0.1, lam=0.9))
    assert s_ppo().terms[1:] == gae().terms[1:]
