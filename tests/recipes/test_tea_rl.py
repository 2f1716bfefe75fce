import math

import pytest
import torch
from builders import assert_same_push, clipped, flat_batch, ragged_batch, rows_learning, run, stages

from strop import functional
from strop.method.check import check
from strop.parts.loss.penalty.reward_entropy_by_covariance import RewardEntropyByCovariance
from strop.parts.reward.reward_all_or_length import RewardAllOrLength
from strop.recipes.entropy_bonus import entropy_bonus
from strop.recipes.grpo import grpo
from strop.recipes.tea_rl import tea_rl
from strop.support.errors import UserError

LOGP = [-0.1, -2.0, -0.5, -1.0]
ADVANTAGE = [1.0, 1.0, 1.0, -1.0]
WEIGHT = [3.351, 1.296, 2.743, 2.610]


def test_worked_example():
    batch = flat_batch((4,), logp_old_T=LOGP, advantage_T=ADVANTAGE, entropy_T=[1.0] * 4)
    found = run(RewardEntropyByCovariance(), batch).value
    assert found.tolist() == pytest.approx(WEIGHT, abs=6e-4)
    held = run(RewardEntropyByCovariance(ceiling=2.7), batch).value
    assert held.tolist() == pytest.approx([2.7, 1.296, 2.7, 2.610], abs=6e-4)


def test_worked_example_through_the_padded_call():
    # loss of the bonus = -mean c_t H_t with H = 1, 2, 3, 4
    entropy = torch.tensor([[1.0, 2.0, 3.0, 4.0]]).double().requires_grad_()
    given = {name: torch.tensor([values]).double() for name, values in
             (("logp", LOGP), ("logp_old", LOGP), ("advantages", ADVANTAGE))}  # fmt: skip
    _, metrics = functional.policy_loss(
        "tea_rl",
        **given,
        mask=torch.ones(1, 4),
        entropy=entropy,
        params={"beta": 0.0, "weights_length": 0},
    )
    expected = sum(w * h for w, h in zip(WEIGHT, (1, 2, 3, 4), strict=True)) / 4
    assert metrics["loss/entropy"] == pytest.approx(-expected, abs=2e-3)
    assert metrics["entropy_control/weight_mean"] == pytest.approx(2.5)


def test_gradient_is_that_of_the_published_loss():
    algorithm = tea_rl(beta=0.0, cov_alpha=3.0, ub=1.2, weights_length=0)
    batch = stages(algorithm, ragged_batch(3))
    rows = rows_learning(batch)
    own = [int(batch["rollout_T"][t]) for t in rows]
    advantage_N, old_N = batch["advantage_T"][rows], batch["logp_old_T"][rows]

    def loss_of(logp_T, entropy_T):
        ratio_N = (logp_T[rows] - old_N).exp()
        loss_N = clipped(ratio_N, advantage_N, 1.0, 1.0)
        floor_N = torch.minimum(loss_N, -10.0 * advantage_N)
        loss_N = torch.where(advantage_N < 0, floor_N, loss_N)
        cov = ((advantage_N - advantage_N.mean()) * (old_N - old_N.mean())).tolist()
        weight = []
        for cov_t, i in zip(cov, own, strict=True):
            total = sum(math.exp(c) for c, j in zip(cov, own, strict=True) if i == j)
            weight.append(min(3.0 * math.exp(cov_t) / total, 1.2))
        assert 1.2 in weight
        return (loss_N - torch.tensor(weight, dtype=torch.float64) * entropy_T[rows]).mean()

    assert_same_push(algorithm, batch, loss_of, "logp_T", "entropy_T")


def test_is_grpo_without_the_bonus_and_a_plain_bonus_where_covariance_is_constant():
    bare = tea_rl(cov_alpha=0.0, all_bonus=0.0, clip_low=0.2, clip_high=0.2, dual_clip_c=0.0)
    assert bare == grpo(num_rollouts=8, beta=1e-3, aggregation="token-mean")
    # equal advantages: c = cov_alpha / T_i = 2 / 4
    batch = ragged_batch(1, lengths=(4, 4), num_turns=(1, 1)).set(scored_B=torch.ones(10).bool())
    batch = stages(grpo(), batch)
    batch = batch.set(advantage_T=torch.where(batch["mask_T"], 0.7, 0.0))
    part = RewardEntropyByCovariance(2.0)
    rows = rows_learning(batch)
    found = run(part, batch).value[rows]
    torch.testing.assert_close(found, 0.5 * batch["entropy_T"][rows])
    assert entropy_bonus(coef=0.5).terms[-1].average == tea_rl().terms[-1].average


def test_weights_follow_the_longest_answer():
    """With answers of at most 12 tokens they are 12 / 8192 of the published ones."""
    batch = flat_batch((4,), logp_old_T=LOGP, advantage_T=ADVANTAGE, entropy_T=[1.0] * 4)
    batch = batch.set(max_length=torch.tensor(12))
    part = tea_rl().terms[-1].objective.part
    expected = [weight * 12 / 8192 for weight in WEIGHT]
    assert run(part, batch).value.tolist() == pytest.approx(expected, rel=1e-3)
    held = run(tea_rl(ub=2.7).terms[-1].objective.part, batch).value
    assert float(held[0]) == pytest.approx(2.7 * 12 / 8192)


def test_dense_reward():
    nan = math.nan
    given = {
        "reward_B": torch.tensor([0.3, 0.2, 0.1, 0.0]).double(),
        "reward_BM": torch.tensor([[1.0, 1.0], [1.0, 0.0], [1.0, nan], [nan, nan]]).double(),
        "length_B": torch.tensor([4, 2, 8, 4]),
    }
    found = RewardAllOrLength()(**given)
    assert found.tolist() == pytest.approx([1.3, 0.2, 1.1, 0.0])
    # x = (1 - cos(pi len / 8)) / 2: 0.5, 0.14645, 1, 0.5
    found = RewardAllOrLength(long_at=8)(**given)
    assert found.tolist() == pytest.approx([1.3, 0.4 * 0.1464466, -2.0, -0.5])


def test_composes():
    check(tea_rl(long_at=8192))
    with pytest.raises(UserError, match="ceiling must be at least 0"):
        tea_rl(ub=-1.0)
