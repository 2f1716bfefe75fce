import pytest
import torch
from builders import flat_batch, ragged_batch, run, stages

from strop.parts.reward.reward_as_team import RewardAsTeam
from strop.parts.rollout.sample_two_attempts import SampleTwoAttempts
from strop.recipes.cory import cory
from strop.recipes.gae import gae


def test_worked_example():
    # r1 = .2, r2 = .9: both receive 1.1
    batch = flat_batch(
        [2] * 5, reward_B=[0.2, 0.9, 0.5, 0.3, 0.7], outcome_B=[0.2, 0.9, 0.5, 0.3, 0.7],
        stage_B=torch.tensor([0, 1, 0, 0, 1]), conversation_B=torch.tensor([4, 4, 9, 6, 6]),
    )  # fmt: skip
    result = run(RewardAsTeam(), batch)
    assert result.value.tolist() == pytest.approx([1.1, 1.1, 0.5, 1.0, 1.0])
    assert result.metrics == pytest.approx(
        {"team/first": 0.25, "team/second": 0.8, "team/reward": 1.05}
    )
    lone = run(RewardAsTeam(), batch.set(scored_B=torch.tensor([True, False, True, True, True])))
    assert lone.value.tolist() == pytest.approx([0.2, 0.9, 0.5, 1.0, 1.0])
    assert lone.metrics["team/first"] == pytest.approx(0.3)


def test_the_price_of_leaving_the_start_is_in_the_reward():
    # one answer of two tokens, R = 1.1; logp_old - logp_ref = .5 and .25: 1.1 - .4 * .75 = .8
    batch = flat_batch(
        (2,), reward_B=[1.1], logp_old_T=[-1.0, -0.5], logp_ref_T=[-1.5, -0.75],
        value_T=[0.3, 0.4],
    )  # fmt: skip
    algorithm = cory(whiten_eps=1e-8)
    price, estimate, _ = (use.part for use in algorithm.advantage)
    left = run(price, batch.set(advantage_B=batch["reward_B"])).value
    assert left.tolist() == pytest.approx([0.8])
    advantage_T, return_T = run(estimate, batch.set(advantage_B=left)).value
    # delta = .4 - .3, .8 - .4; lam = .95
    assert advantage_T.tolist() == pytest.approx([0.1 + 0.95 * 0.4, 0.4])
    assert return_T.tolist() == pytest.approx([0.78, 0.8])


def test_without_an_observer_it_is_ppo():
    assert cory(observer=False, kl=0.0, lam=1.0) == gae()
    ours, theirs = (stages(each, ragged_batch(2)) for each in (cory(kl=0.0, lam=1.0), gae()))
    assert ours["advantage_T"].equal(theirs["advantage_T"])


def test_both_roles_are_played_by_the_policy():
    algorithm = cory(words="|{prompt}")
    assert algorithm.rollout.part == SampleTwoAttempts(words="|{prompt}")
    assert [term.name for term in algorithm.terms] == ["policy", "value"]
    assert all(term.on is None for term in algorithm.terms)  # both learn
    assert algorithm.advantage[0].part.coef == 0.4
