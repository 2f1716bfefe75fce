import torch
from ragged import ragged_batch

from strop.parts.plan.update_critic_first import UpdateCriticFirst


def updates(batch, step=30, **fields):
    batch = batch.set(step=torch.tensor(step))
    rng = torch.Generator().manual_seed(0)
    return list(UpdateCriticFirst(**fields)(batch, rng=rng))


def test_the_critic_sees_every_rollout_once_and_then_the_policy_learns():
    batch = ragged_batch(2, group_sizes=(4, 3, 4))  # all have tokens of the policy
    *critic, policy = updates(batch, num_critic_updates=4, num_policy_updates=1)
    assert [update.terms for update in critic] == [("critic",)] * 4
    seen_T = torch.stack([update.tokens_T for update in critic]).sum(0)
    assert seen_T.equal(batch["mask_T"].long())
    sizes = [batch["rollout_T"][update.tokens_T].unique().numel() for update in critic]
    assert sorted(sizes) == [2, 3, 3, 3]
    assert policy.terms == ("policy",)
    assert (policy.tokens_T & batch["gradient_T"]).equal(batch["gradient_T"])
    assert all(update.before == ("advantage_T",) for update in (*critic, policy))


def test_the_policy_sees_every_rollout_once_in_its_updates():
    batch = ragged_batch(1, group_sizes=(4, 3, 4))
    found = updates(batch, num_critic_updates=2)
    policy = [update for update in found if update.terms == ("policy",)]
    assert len(policy) == 3
    seen_T = torch.stack([u.tokens_T for u in policy]).sum(0) * batch["gradient_T"]
    assert seen_T.equal(batch["gradient_T"].long())
    owners = [set(batch["rollout_T"][u.tokens_T].tolist()) for u in policy]
    assert not owners[0] & owners[1]
    assert not owners[2] & (owners[0] | owners[1])
    assert max(map(len, owners)) - min(map(len, owners)) <= 1
    critic = updates(batch, num_critic_updates=2, num_policy_updates=1)[:2]
    assert all(u.tokens_T.equal(c.tokens_T) for u, c in zip(found, critic, strict=False))


def test_more_updates_than_rollouts():
    batch = ragged_batch(2, group_sizes=(2,))
    assert len(updates(batch, num_critic_updates=50, num_policy_updates=1)) == 3
    assert len(updates(batch, num_critic_updates=50, num_policy_updates=50)) == 4


def test_warm_up():
    batch = ragged_batch(1)
    for step, expected in ((1, 0), (20, 0), (21, 1)):
        found = updates(batch, step, num_critic_updates=2, num_policy_updates=1)
        assert sum(update.terms == ("policy",) for update in found) == expected


def test_nothing_to_learn_for_the_policy():
    batch = ragged_batch(1)
    still = batch.set(gradient_T=torch.zeros_like(batch["gradient_T"]))
    assert all(update.terms == ("critic",) for update in updates(still, warmup_steps=0))
    assert not updates(batch.keep(batch["index_B"] < 0))


def test_tokens_that_only_count_stay_in_the_policys_updates():
    batch = ragged_batch(1)
    some_T = batch["gradient_T"].clone()
    some_T[batch["gradient_T"].nonzero()[0]] = False
    *_, policy = updates(batch.set(gradient_T=some_T), num_policy_updates=1)
    inside_B = torch.zeros(batch.size("B"), dtype=torch.bool)
    inside_B[batch["rollout_T"][some_T]] = True
    assert policy.tokens_T.equal(inside_B[batch["rollout_T"]] & batch["mask_T"])
