import pytest
import torch
from builders import (
    assert_same_push,
    flat_batch,
    members_of,
    pushed,
    ragged_batch,
    rows_learning,
    run,
    stages,
)

from strop import functional
from strop.parts.loss.bound.regress_on_random_policy_value import RegressOnRandomPolicyValue
from strop.recipes.gpg import gpg
from strop.recipes.grpo import grpo
from strop.recipes.rover import rover

ONE = torch.ones(1, 2, dtype=torch.bool)


def test_worked_example_through_the_padded_call():
    rewards = torch.tensor([1.0, 0, 0, 0, 0]).double()
    found = functional.advantages("rover_reward", rewards=rewards, groups=torch.zeros(5).long())
    assert found.tolist() == pytest.approx([0.8, -0.2, -0.2, -0.2, -0.2])
    # first token: Q .1, target .8 + .05; second: Q 0, nothing after it, target .8
    given = {
        "logp": torch.tensor([[-1.0, -2.0]]).double(), "mask": ONE,
        "logp_old": torch.tensor([[-1.1, -2.0]]).double(),
        "mean_logp_vocab": torch.tensor([[-3.0, -3.95]]).double(),
        "mean_logp_vocab_old": torch.tensor([[9.0, -4.0]]).double(),
        "advantages": torch.tensor([0.8]).double(),
    }  # fmt: skip
    loss, metrics = functional.policy_loss("rover", **given, params={"aggregation": "token-sum"})
    assert float(loss) == pytest.approx(0.5625 + 0.64)
    assert metrics["rover/q_mean"] == pytest.approx(0.05)
    assert metrics["rover/target_mean"] == pytest.approx((0.85 + 0.8) / 2)
    weights = functional.token_weights("rover", **given)
    assert weights[0].tolist() == pytest.approx([2 * 0.75 / 2, 2 * 0.8 / 2])


def test_value_after_an_observation_or_the_end_is_nothing():
    batch = flat_batch(
        (3, 1), (0, 1), log_ratio_T=[0.0] * 4, advantage_T=[0.0] * 4,
        mean_logp_T=[1.0, 2.0, 3.0, 5.0], mean_logp_old_T=[0.0] * 4,
    )  # fmt: skip
    part = RegressOnRandomPolicyValue(tau=0.5, kappa=2.0)
    assert run(part, batch).value.tolist() == pytest.approx([-4.0, -9.0, 0.0, 0.0])
    cut = batch.set(mask_T=torch.tensor([True, False, True, True]))
    assert run(part, cut).value.tolist() == pytest.approx([0.0, -9.0, 0.0, 0.0])


def test_the_next_turn_adds_nothing_without_the_tokens_between():
    batch = flat_batch(
        (3,), log_ratio_T=[0.0] * 3, advantage_T=[0.0] * 3, mean_logp_T=[1.0, 2.0, 3.0],
        mean_logp_old_T=[0.0] * 3,
    )  # fmt: skip
    batch = batch.set(
        turn_T=torch.tensor([0, 0, 1]), rollout_K=torch.tensor([0, 0]), index_K=torch.tensor([0, 1])
    )
    found = run(RegressOnRandomPolicyValue(), batch).value
    assert found.tolist() == pytest.approx([-4.0, 0.0, 0.0])


@pytest.mark.parametrize("params", [{}, {"tau": 0.5, "kappa": 0.3, "normalize_std": True}])
def test_gradient_is_that_of_the_published_loss(params):
    algorithm = rover(**params)
    batch = stages(algorithm, ragged_batch(1, groups=(3, 5, 4)))
    tau, kappa = params.get("tau", 1.0), params.get("kappa", 1.0)
    target = {}
    for group in range(batch.size("P")):
        members = members_of(batch, group)
        reward_G = batch["reward_B"][members]
        scale = reward_G.std() + 1e-6 if params else 1.0
        target |= dict(zip(members, (reward_G - reward_G.mean()) / scale, strict=True))
    rows = rows_learning(batch)
    last = batch.size("T") - 1

    def after(t):
        follows = t < last and batch["rollout_T"][t + 1] == batch["rollout_T"][t]
        if not follows or not batch["mask_T"][t + 1]:
            return 0.0
        return tau * (batch["mean_logp_T"][t + 1] - batch["mean_logp_old_T"][t + 1])

    goal = torch.stack([target[int(batch["rollout_T"][t])] + kappa * after(t) for t in rows])

    def loss_of(logp_T):
        q = tau * (logp_T[rows] - batch["logp_old_T"][rows])
        return ((q - goal) ** 2).mean()

    assert_same_push(algorithm, batch, loss_of)


def test_first_update_is_the_plain_policy_gradient_twice():
    batch = stages(rover(), ragged_batch(2))
    batch = batch.set(logp_T=batch["logp_old_T"], mean_logp_T=batch["mean_logp_old_T"])
    _, found, _ = pushed(rover(), batch)
    _, plain, _ = pushed(gpg(), batch)
    torch.testing.assert_close(found["logp_T"], 2 * plain["logp_T"])
    with_std = stages(rover(normalize_std=True), ragged_batch(2))
    assert with_std["advantage_T"].equal(stages(grpo(), ragged_batch(2))["advantage_T"])


def test_edges():
    alone = stages(rover(), flat_batch((2,), reward_B=[0.7]))
    assert alone["advantage_B"].tolist() == [0.7]  # mean 0, deviation 1
    assert rover(singleton="zero") != rover()
    same = stages(rover(normalize_std=True), flat_batch((2, 2), reward_B=[1.0, 1.0]))
    assert same["advantage_T"].tolist() == [0.0] * 4
