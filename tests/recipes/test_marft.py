import math

import pytest
import torch
from builders import assert_same_push, clipped, flat_batch, run, stages
from ragged import ragged_batch

from strop import functional
from strop.method.check import check
from strop.method.part import Use, call
from strop.parts.advantage.credit.estimate_generalised_advantage import EstimateGeneralisedAdvantage
from strop.parts.advantage.credit.share_reward_among_turns import ShareRewardAmongTurns
from strop.parts.plan.update_while_near import UpdateWhileNear
from strop.parts.selection.take_roles_in_turn import TakeRolesInTurn
from strop.recipes.gae import gae
from strop.recipes.marft import marft
from strop.support.errors import UserError

# Two steps of two agents, paid at the very end; a turn of one token each.
EXAMPLE = {
    "turn_rewards": torch.tensor([[0, 0, 0, 1]]).double(),
    "value": torch.tensor([[0.4, 0.5, 0.6, 0.7]]).double(),
    "done": torch.tensor([[0, 0, 0, 1]]),
}
CREDIT = [0.515242, 0.446829, 0.37515, 0.3]


def advantages(params=None, **changes):
    found = functional.advantages("marft", params=params, **{**EXAMPLE, **changes})
    return found[0].tolist()


def test_worked_example():
    # 1 - 0.7; 0.99 * 0.7 - 0.6 + 0.9405 * 0.3; 0.99 * 0.6 - 0.5 + 0.9405 * 0.37515; ...
    assert advantages({"normalize": False}) == pytest.approx(CREDIT, abs=1e-6)
    mean = sum(CREDIT) / 4
    std = math.sqrt(sum((a - mean) ** 2 for a in CREDIT) / 4)
    assert advantages() == pytest.approx([(a - mean) / std for a in CREDIT], abs=1e-5)
    returns = functional.returns("marft", **EXAMPLE)
    expected = [v + a for v, a in zip((0.4, 0.5, 0.6, 0.7), CREDIT, strict=True)]
    assert returns[0].tolist() == pytest.approx(expected, abs=1e-6)


def test_credit_ends_where_an_episode_does_and_an_episode_that_is_cut_is_worth_nothing_after():
    over = advantages({"normalize": False}, done=torch.tensor([[0, 1, 0, 1]]))
    # the second turn is the first episode's last: -0.5; then 0.99 * 0.5 - 0.4 + 0.9405 * -0.5
    assert over == pytest.approx([-0.37525, -0.5, 0.37515, 0.3], abs=1e-6)
    cut = advantages({"normalize": False}, done=torch.zeros(1, 4))
    assert cut == pytest.approx(CREDIT, abs=1e-6)


def test_a_teams_reward_is_that_of_the_last_agent_or_falls_with_the_turns_that_follow():
    # R = 2 of three turns and R = 1 of two
    rewards, rollout_K = torch.tensor([2.0, 1.0]), torch.tensor([0, 0, 0, 1, 1])
    last = ShareRewardAmongTurns()(rewards, rollout_K, 2)
    assert last.tolist() == [0, 0, 2, 0, 1]
    assert ShareRewardAmongTurns(0.5)(rewards, rollout_K, 2).tolist() == [0.5, 1, 2, 0.5, 1]
    assert ShareRewardAmongTurns(1.0)(rewards, rollout_K, 2).tolist() == [2, 2, 2, 1, 1]


def test_the_credit_of_a_team_is_the_worked_example_where_all_is_paid_at_the_end():
    team = {"credit": "team", "normalize": False}
    found = functional.advantages(
        "marft", params=team, rewards=torch.tensor([1.0]).double(), **EXAMPLE
    )
    assert found[0].tolist() == pytest.approx(CREDIT, abs=1e-6)


TOKENS = {
    "values": torch.tensor([[0.4, 0.5, 0.6, 0.7]]).double(),
    "turn_ids": torch.tensor([[0, 0, 1, 1]]),
    "mask": torch.ones(1, 4),
    "turn_rewards": torch.tensor([[0.5, 1.0]]).double(),
}


def test_over_tokens_a_turns_reward_stands_at_its_last_one():
    # 1 - .7; .99 * .7 - .6 + .9405 * .3; .5 + .99 * .6 - .5 + .9405 * .37515; ...
    found = functional.advantages("marft", params={"level": "token", "normalize": False}, **TOKENS)
    third = 0.99 * 0.7 - 0.6 + 0.9405 * 0.3
    second = 0.5 + 0.99 * 0.6 - 0.5 + 0.9405 * third
    first = 0.99 * 0.5 - 0.4 + 0.9405 * second
    assert found[0].tolist() == pytest.approx([first, second, third, 0.3], abs=1e-6)


def test_over_tokens_it_is_over_turns_where_each_has_one():
    alike = {**TOKENS, "turn_ids": torch.arange(4)[None], "turn_rewards": EXAMPLE["turn_rewards"]}
    found = functional.advantages("marft", params={"level": "token", "normalize": False}, **alike)
    assert found[0].tolist() == pytest.approx(CREDIT, abs=1e-6)


def test_over_tokens_the_loss_and_the_look_at_the_policy_are_of_tokens():
    algorithm = marft(level="token", credit="team", share=0.5)
    check(algorithm)
    kinds = [type(use.part).__name__ for use in algorithm.advantage]
    assert kinds[:2] == ["ShareRewardAmongTurns", "PlaceTurnRewards"]
    assert {term.average for term in algorithm.terms} == {gae().terms[0].average}
    assert all(term.on is None for term in algorithm.terms)
    # tokens move by .1, .1 and .2: 2 (e^.1 - 1.1) + e^.2 - 1.2, over three
    batch = flat_batch((1, 2), logp_old_T=[-1.0, -2.0, -0.5], step=1)
    change = torch.tensor([0.1, 0.1, 0.2]).double()
    moved = (2 * (math.exp(0.1) - 1.1) + math.exp(0.2) - 1.2) / 3
    for slack, expected in ((1e-6, ()), (-1e-6, ("critic",))):
        found = updates(batch, (change, change), max_kl=moved + slack, unit="token")
        assert found == [(), expected]
    for wrong, said in (({"level": "step"}, "level must be one of"), ({"credit": "all"}, "own")):
        with pytest.raises(UserError, match=said):
            marft(**wrong)


def test_one_agent_has_ppo_over_turns():
    batch = ragged_batch(4, max_turns=5)
    ended_K = torch.cat([batch["rollout_K"].diff() != 0, torch.ones(1, dtype=torch.bool)])
    batch = batch.set(done_K=ended_K, scored_B=torch.ones_like(batch["scored_B"]),
                      switch_K=torch.zeros_like(ended_K))  # fmt: skip
    found = call(marft(gamma=0.9, lam=0.7).advantage[0], batch).value
    turns = EstimateGeneralisedAdvantage(0.9, 0.7)(
        batch["value_K"], torch.ones_like(ended_K), batch["rollout_K"], batch["scored_B"],
        reward_T=batch["reward_K"],
    ).value  # fmt: skip
    for ours, theirs in zip(found, turns, strict=True):
        torch.testing.assert_close(ours, theirs)


def huber(error, delta):
    far = delta * (error.abs() - delta / 2)
    return torch.where(error.abs() > delta, far, error.square() / 2)


def test_gradient_is_that_of_the_published_loss():
    algorithm = marft(entropy_coef=0.1, huber_delta=0.5)
    batch = stages(algorithm, ragged_batch(3))
    old_T, value_old_T = batch["logp_old_T"], batch["value_old_T"]
    turns = batch["turn_T"][batch["gradient_T"]].unique().tolist()
    tokens = [((batch["turn_T"] == k) & batch["gradient_T"]).nonzero().squeeze(1) for k in turns]
    scored_T = batch["mask_T"] & batch["scored_B"][batch["rollout_T"]]
    read = (scored_T & batch["at_T"]).nonzero().squeeze(1)
    assert max(map(len, tokens)) > 2
    assert len(read) > 3

    def loss_of(logp_T, entropy_T, value_T):
        each = []
        for here in tokens:
            ratio = (logp_T[here] - old_T[here]).sum().exp()
            pushed = clipped(ratio, batch["advantage_T"][here[0]], 0.2, 0.2)
            each.append(pushed - 0.1 * entropy_T[here].mean())
        goal_N, before_N = batch["return_T"][read], value_old_T[read]
        held_N = before_N + (value_T[read] - before_N).clamp(-0.2, 0.2)
        errors = torch.stack([value_T[read] - goal_N, held_N - goal_N])
        return torch.stack(each).mean() + huber(errors, 0.5).amax(0).mean()

    assert_same_push(algorithm, batch, loss_of, "logp_T", "entropy_T", "value_T")


def test_composes():
    assert marft().value_columns() == ("value_T",)
    assert [term.name for term in marft(entropy_coef=0.0).terms] == ["policy", "value"]
    assert not marft().selection
    assert marft(interval=5).selection == (Use(TakeRolesInTurn(5)),)
    check(marft(interval=5))
    with pytest.raises(UserError, match=r"take_roles_in_turn\.interval"):
        marft(interval=-1)


@pytest.mark.parametrize(("step", "role"), [(1, 0), (2, 0), (3, 1), (5, 2), (7, 0)])
def test_agents_learn_one_after_another(step, role):
    batch = flat_batch((2, 1, 2, 1), role_K=[0, 1, 2, 1], step=step)
    kept = run(TakeRolesInTurn(2, 3), batch).value
    assert kept[0].tolist() == [r == role for r in (0, 0, 1, 2, 2, 1)]
    assert kept[0].equal(kept[1])


def test_a_step_without_the_last_agents_turns_changes_no_order():
    batch = flat_batch((2, 1), role_K=[0, 1], step=21)  # the third agent's
    assert not run(TakeRolesInTurn(10, 3), batch).value[0].any()
    with pytest.raises(UserError, match=r"role 2, and 2 roles learn in turn: give .*roles=3"):
        run(TakeRolesInTurn(10), batch.set(role_K=torch.tensor([0, 2])))


def updates(batch, changes, **fields):
    """The terms of every update where each leaves log-probabilities so far from the old ones."""
    plan = UpdateWhileNear(num_epochs=len(changes), **fields)
    going = run(plan, batch, rng=torch.Generator().manual_seed(0)).value
    found, answer = [], None
    for change in changes:
        update = going.send(answer)
        found.append(update.terms)
        moved = dict.fromkeys(update.after, batch["logp_old_T"] + change)
        answer = (batch, moved)
    with pytest.raises(StopIteration):
        going.send(answer)
    return found


def test_the_policy_rests_once_it_has_moved_too_far():
    # turns of one and of two tokens move by 0.1 and 0.2 nats:
    # (e^0.1 - 1.1 + e^0.2 - 1.2) / 2 = 0.013287
    batch = flat_batch((1, 2), logp_old_T=[-1.0, -2.0, -0.5], step=1)
    both, critic = (), ("critic",)
    assert updates(batch, (0.0, 0.1, 0.1), max_kl=0.0132) == [both, both, critic]
    assert updates(batch, (0.1, 0.1, 0.1), max_kl=0.0133) == [both] * 3
    assert updates(batch, (9.0, 9.0), max_kl=0.0) == [both] * 2
    still = batch.set(gradient_T=torch.tensor([True, False, False]))  # e^0.1 - 1.1 = 0.00517
    assert updates(still, (0.1, 0.1), max_kl=0.0052) == [both] * 2
    assert updates(still, (0.1, 0.1), max_kl=0.0051) == [both, critic]


def test_the_critic_warms_up_alone():
    batch = flat_batch((1, 2), logp_old_T=[-1.0, -2.0, -0.5], step=2)
    assert updates(batch, (0.0, 0.0), warmup_steps=2) == [("critic",)] * 2
    assert updates(batch, (0.0, 0.0), warmup_steps=1) == [()] * 2


def test_every_epoch_passes_over_all_groups_once_and_the_last_update_is_not_looked_at():
    batch = flat_batch((1, 2, 3), groups=(0, 1, 2), logp_old_T=[-1.0] * 6, step=1)
    plan = UpdateWhileNear(2, 2)
    found = list(run(plan, batch, rng=torch.Generator().manual_seed(0)).value)
    assert len(found) == plan.num_updates == 4
    for epoch in (found[:2], found[2:]):
        assert torch.stack([update.tokens_T for update in epoch]).sum(0).tolist() == [1] * 6
    assert [update.after for update in found] == [("logp_T",)] * 3 + [()]
