import math
from itertools import chain

import pytest
import torch
from builders import assert_same_push, learning, members_of, ragged_batch, stages
from models import Lab
from runs import Runner

from strop import functional
from strop.method import reading
from strop.method.check import check
from strop.parts.plan.split_into_rollouts import SplitIntoRollouts
from strop.recipes.grpo import grpo
from strop.recipes.loop import loop
from strop.recipes.rloo import rloo
from strop.support.errors import UserError
from strop.training.learner.policy import Policy

REWARDS = [1.0, 1.0, 0.5, 0.0, 0.0, 0.5]


def advantages(name, rewards, groups, **params):
    return functional.advantages(
        name, rewards=torch.tensor(rewards, dtype=torch.float64), groups=torch.tensor(groups),
        params=params,
    )  # fmt: skip


def test_worked_example():
    found = advantages("loop", REWARDS, [0] * 6)
    assert found.tolist() == pytest.approx([0.6, 0.6, 0, -0.6, -0.6, 0])
    gradient, counts = functional.selection(
        "loop", advantages=found, mask=torch.ones(6, 2, dtype=torch.bool)
    )
    assert gradient[:, 0].tolist() == [True, True, False, True, True, False]
    assert counts.equal(gradient)


def test_reductions_to_rloo_and_grpo():
    batch = ragged_batch(2, groups=(3, 4, 1, 5))
    ours, theirs = stages(loop(min_advantage=0.0), batch), stages(rloo(), batch)
    torch.testing.assert_close(ours["advantage_T"], theirs["advantage_T"])
    assert ours["gradient_T"].equal(theirs["gradient_T"])
    group_relative = loop(baseline="mean", normalize_std=True, std_floor=0.0)
    ours, theirs = stages(group_relative, batch), stages(grpo(std="biased", eps=0.0), batch)
    torch.testing.assert_close(ours["advantage_T"], theirs["advantage_T"].nan_to_num())


def test_the_deviation_is_of_the_rewards_and_has_a_floor():
    found = advantages("loop", [1.0, 0.0, 0.0], [0] * 3, normalize_std=True)
    std = math.sqrt(2 / 9)
    assert found.tolist() == pytest.approx([1 / std, -0.5 / std, -0.5 / std])
    assert advantages("loop", [0.3] * 4, [0] * 4, normalize_std=True).tolist() == [0.0] * 4
    found = advantages("loop", [1.0, 0.0, 0.0], [0] * 3, normalize_std=True, std_floor=2.0)
    assert found.tolist() == pytest.approx([0.5, -0.25, -0.25])


@pytest.mark.parametrize("level", ["token", "turn", "trajectory"])
def test_gradient_is_that_of_the_published_loss(level):
    algorithm = loop(level=level, minibatch_size=7)
    batch = stages(algorithm, ragged_batch(1, groups=(3, 5, 4)))
    low, high = 1 / 1.1, 1.1

    def loss_of(logp_T):
        total = logp_T.new_zeros(())
        for i, tokens in learning(batch):
            change = logp_T - batch["logp_old_T"]
            key = {"token": tokens, "turn": batch["turn_T"][tokens].tolist(), "trajectory": None}
            advantage = batch["advantage_T"][tokens[0]]
            units = [i] * len(tokens) if key[level] is None else key[level]
            for unit in units:
                members = [t for t, u in zip(tokens, units, strict=True) if u == unit]
                ratio = change[members].sum().exp()
                gained = torch.minimum(ratio * advantage, ratio.clamp(low, high) * advantage)
                total = total - gained / len(tokens) / 7
        return total

    assert_same_push(algorithm, batch, loss_of)


def test_without_clipping_it_is_the_plain_gradient():
    weights = functional.token_weights(
        "loop_loss", logp=torch.full((2, 2), -1.0), advantages=torch.tensor([1.0, -2.0]),
        mask=torch.tensor([[True, True], [True, False]]),
        params={"clipping": False, "minibatch_size": 4},
    )  # fmt: skip
    assert weights.tolist() == [[0.125, 0.125], [-0.5, 0.0]]


def test_the_lower_bound_is_the_inverse_of_the_upper():
    logp = torch.log(torch.tensor([[0.908], [0.911], [1.099], [1.101]], dtype=torch.float64))
    weights = functional.token_weights(
        "loop_loss", logp=logp, logp_old=torch.zeros_like(logp),
        advantages=torch.tensor([-1.0, -1.0, 1.0, 1.0]), mask=torch.ones(4, 1).bool(),
    )  # fmt: skip
    assert (weights[:, 0] != 0).tolist() == [False, True, True, False]


def updates(batch, part, moved=0.0):
    """The rollouts of every update, when each moves all log-probabilities by `moved`."""
    rng = torch.Generator().manual_seed(1)
    plan = part(batch, batch["logp_old_T"], rng)
    seen, answer = [], None
    while True:
        try:
            update = plan.send(answer)
        except StopIteration:
            return seen
        seen.append(sorted(set(batch["rollout_T"][update.tokens_T].tolist())))
        measured = {"logp_T": batch["logp_old_T"] + moved} if update.after else {}
        answer = (batch, measured)


def test_updates_have_a_fixed_size():
    batch = ragged_batch(3, groups=(4, 4, 3))
    idle = members_of(batch, 0)[0]
    gradient_T = batch["gradient_T"] & (batch["rollout_T"] != idle)
    batch = batch.set(gradient_T=gradient_T)
    learn = sorted({i for i, _ in learning(batch)})
    seen = updates(batch, SplitIntoRollouts(size=4, num_epochs=2))
    assert [len(part) for part in seen] == [4, 4, 1, 4, 4, 1]
    assert sorted(chain(*seen[:3])) == sorted(chain(*seen[3:])) == learn
    assert seen[:3] != seen[3:]
    # 2 nats for each token: over 20 only for long enough rollouts; a small bound stops at once
    assert len(updates(batch, SplitIntoRollouts(size=4, max_kl=0.1), moved=-2.0)) == 1
    assert len(updates(batch, SplitIntoRollouts(size=4, max_kl=0.1), moved=2.0)) == 1
    assert len(updates(batch, SplitIntoRollouts(size=4, max_kl=0.0), moved=2.0)) == 6


def test_a_step_ends_when_the_policy_has_moved_too_far(tmp_path, monkeypatch):
    lab, runner = Lab.make(tmp_path / "lab"), Runner()
    steps = []
    take = Policy.update
    monkeypatch.setattr(Policy, "update", lambda self, lr: (steps.append(lr), take(self, lr))[1])
    counted = []
    for number, bound in enumerate((1e-9, 20.0)):
        recipe = f"loop(minibatch_size=2, max_kl={bound})"
        training = {"steps": 1, "save_every": 0, "rollouts_every": 0}
        raw = lab.raw(recipe, reward="even", training=training)
        raw["algorithm"] |= {"sampling.num_rollouts": 8}
        runner.whole(raw, tmp_path / f"run-{number}")
        counted.append(len(steps))
    assert counted[0] == 1
    assert counted[1] - counted[0] >= 4


@pytest.mark.parametrize("params", [{"baseline": "median"}, {"level": "word"}])
def test_unknown_options_are_named(params):
    with pytest.raises(UserError, match=r"loop\.(baseline|level) must be one of "):
        loop(**params)


def test_an_update_has_as_many_rollouts_as_its_mean_is_over():
    check(loop(minibatch_size=16))
    with pytest.raises(UserError, match=r"num_rollouts is 32 and .*size is 16, where both"):
        check(reading.override(loop(), "plan.split_into_rollouts.size", 16))


def test_one_empty_update_where_no_rollout_learns():
    batch = ragged_batch(1)
    batch = batch.set(gradient_T=torch.zeros_like(batch["gradient_T"]))
    part = SplitIntoRollouts(num_epochs=3)
    (update,) = part(batch, batch["logp_old_T"], torch.Generator())
    assert not update.tokens_T.any()
