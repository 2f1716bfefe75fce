from itertools import pairwise

import pytest
import torch
from builders import flat_batch, ragged_batch, run, stages
from models import without_times

from strop.parts.advantage.baseline.subtract_kl_to_reference import SubtractKlToReference
from strop.parts.advantage.credit.charge_kl_to_reference import ChargeKlToReference
from strop.parts.advantage.credit.estimate_generalised_advantage import EstimateGeneralisedAdvantage
from strop.parts.control.hold_kl_with_coefficient import HoldKlWithCoefficient
from strop.parts.reward.reward_as_team import RewardAsTeam
from strop.parts.rollout.sample_two_attempts import SampleTwoAttempts
from strop.recipes.cory import cory
from strop.recipes.gae import gae
from strop.support.errors import UserError


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


KL = {"logp_old_T": [-1.0, -0.5], "logp_ref_T": [-1.5, -0.75], "kl_ref_old_T": [0.25, 0.5]}


@pytest.mark.parametrize(
    ("full", "rewards", "nats"),
    # R = 1.1 at the end, and -.4 of .25 and .5, or of the sampled tokens' .5 and .25
    [(True, [-0.1, 1.1 - 0.2], 0.75), (False, [-0.2, 1.1 - 0.1], 0.75)],
)
def test_the_price_of_leaving_the_start_is_in_every_tokens_reward(full, rewards, nats):
    batch = flat_batch((2,), reward_B=[1.1], value_T=[0.3, 0.4], **KL)
    price, estimate, _ = (use.part for use in cory(whiten_eps=1e-8, full=full).advantage)
    error = run(price, batch.set(advantage_B=batch["reward_B"]))
    assert error.value.tolist() == pytest.approx(rewards)
    assert error.metrics == pytest.approx({"price/kl": nats, "price/coef": 0.4})
    advantage_T, return_T = run(estimate, batch.set(reward_T=error.value)).value
    # delta = r1 + .4 - .3, r2 - .4; lam = .95
    last = rewards[1] - 0.4
    first = rewards[0] + 0.1 + 0.95 * last
    assert advantage_T.tolist() == pytest.approx([first, last])
    assert return_T.tolist() == pytest.approx([first + 0.3, last + 0.4])


def test_the_whole_price_teaches_nothing_to_the_token_that_pays_it():
    """The expected gradient over all answers of one token is 0; of the sampled price, the KL's."""
    scores = torch.tensor([0.3, -1.0, 2.0], dtype=torch.float64, requires_grad=True)
    logp = scores.log_softmax(0)
    logp_ref = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64).log()
    kl = (logp.exp() * (logp - logp_ref)).sum()
    (slope,) = torch.autograd.grad(kl, scores, retain_graph=True)
    columns = {"logp_old_T": logp.detach(), "logp_ref_T": logp_ref}
    batch = flat_batch(
        [1] * 3, advantage_B=[0.0] * 3, kl_ref_old_T=kl.detach().expand(3), **columns
    )
    for full, wanted in ((True, torch.zeros(3).double()), (False, -0.4 * slope)):
        reward_T = run(ChargeKlToReference(0.4, full=full), batch).value.double()
        expected = (logp.exp().detach() * reward_T * logp).sum()
        (found,) = torch.autograd.grad(expected, scores, retain_graph=True)
        torch.testing.assert_close(found, wanted, atol=1e-6, rtol=0)


def test_without_a_critic_the_sampled_price_is_that_of_the_rollouts_reward():
    """Its sum, taken off the rollout's reward, is what the first token has."""
    batch = ragged_batch(4)
    batch = batch.set(advantage_B=batch["reward_B"], value_T=torch.zeros(batch.size("T")).double())
    whole = run(SubtractKlToReference(0.3), batch).value
    reward_T = run(ChargeKlToReference(0.3, full=False), batch).value
    alone = run(EstimateGeneralisedAdvantage(), batch.set(reward_T=reward_T)).value[0]
    scored_T = batch["mask_T"] & batch["scored_B"][batch["rollout_T"]]
    rollouts = batch["rollout_T"][scored_T]
    first = rollouts.diff(prepend=torch.tensor([-1])) != 0
    assert first.sum() > 3
    torch.testing.assert_close(alone[scored_T][first], whole[rollouts[first]])


def test_the_price_follows_the_distance():
    # .4 (1 + .0256 * .2) far beyond the target, then half-way below: 1 - .0256 * .2, then at 1.1
    algorithm = cory(target=2.0)
    (control,) = (use.part for use in algorithm.control)
    priced, prices = algorithm, []
    for nats in (9.0, 1.0, 2.2):
        knobs = {control.path: priced.advantage[0].part.coef}
        priced = priced.with_knobs(control({"price/kl": nats}, knobs).value)
        prices.append(priced.advantage[0].part.coef)
    dearer = 0.4 * (1 + 0.0256 * 0.2)
    cheaper = dearer * (1 - 0.0256 * 0.2)
    assert prices == pytest.approx([dearer, cheaper, cheaper * (1 + 0.0256 * 0.1)], abs=1e-12)
    assert control({"loss": 1.0}, {}).value == {}  # a step without rollouts
    assert cory(target=0.0).control == ()
    assert cory(target=0.0).advantage == algorithm.advantage


def test_the_price_of_a_run_starts_at_the_option_of_the_part(lab, runner, tmp_path):
    plain = lab.raw("cory", reward="even", training={"steps": 3, "rollouts_every": 0})
    plain["algorithm"]["advantage.coef"] = 0.05
    runner.go(runner.start(plain, tmp_path / "run"))
    prices = [row["price/coef"] for row in without_times(tmp_path / "run") if row["step"]]
    low, high = 1 - 0.0256 * 0.2, 1 + 0.0256 * 0.2
    assert prices[0] == 0.05
    assert all(before * low <= price <= before * high for before, price in pairwise(prices))
    assert len(set(prices)) == 3


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


def test_a_rate_by_which_the_price_would_fall_below_0_is_refused():
    with pytest.raises(UserError, match=r"rate must be between 0.0 and 4.99, it is 5"):
        HoldKlWithCoefficient(rate=5.0)
