import pytest
import torch
from builders import flat_batch, pushed, ragged_batch, stages

from strop import functional
from strop.method.check import check
from strop.recipes.gae import gae
from strop.recipes.t_ppo_egae import t_ppo_egae


def test_worked_example_of_a_window():
    values = torch.tensor([[0.5, 0.6, 0.7]] * 2).double()
    given = {"values": values, "token_rewards": torch.zeros_like(values), "mask": values > 0}
    given |= {"groups": torch.zeros(2, dtype=torch.int64), "truncated": torch.tensor([True, False])}
    found = functional.advantages("t_ppo_egae", **given)
    assert found[0].tolist() == pytest.approx([0.195, 0.1, 0.0])
    assert found[1].tolist() == pytest.approx([-0.43675, -0.565, -0.7])


def test_whole_answers_are_gae_without_whitening():
    batch = ragged_batch(4)
    batch = batch.set(truncated_B=torch.zeros_like(batch["truncated_B"]))
    found = stages(t_ppo_egae(lam=0.8), batch)
    plain = gae(lam=0.8)
    credit = stages(type(plain)(**{**vars(plain), "advantage": plain.advantage[:1]}), batch)
    assert found["advantage_T"].equal(credit["advantage_T"])


def test_the_critic_learns_what_was_paid_for_cut_rollouts_too():
    values, cut = [0.3, 0.3, 0.2, 0.3, 0.4], [False, True]
    batch = flat_batch([2, 3], value_T=values, reward_B=[1.0, 0.0], truncated_B=cut)
    algorithm = t_ppo_egae()
    batch = stages(algorithm, batch)
    assert batch["return_T"].tolist() == pytest.approx([1, 1, 0, 0, 0])
    batch = batch.set(logp_T=batch["value_T"] - 1, logp_old_T=batch["value_T"] - 1,
                      value_old_T=batch["value_T"])  # fmt: skip
    _, found, _ = pushed(algorithm, batch)
    # d/dV of the mean over five tokens of 0.5 (V - 1)^2, and of 0.5 V^2 for the cut one
    assert found["value_T"].tolist() == pytest.approx([-0.14, -0.14, 0.04, 0.06, 0.08])
    assert (found["logp_T"][2:4] != 0).all()  # the policy learns from the cut one
    assert found["logp_T"][4] == 0  # at its end nothing is known


def test_composes():
    check(t_ppo_egae(beta=0.1, gamma=0.9))
