import math
import statistics

import pytest
import torch
from builders import (
    assert_same_push,
    clipped,
    flat_batch,
    members_of,
    ragged_batch,
    rows_learning,
    stages,
)

from strop import functional
from strop.method.schedule import Linear
from strop.recipes.entrocraft_code_variant import entrocraft_code_variant
from strop.recipes.grpo import grpo

REWARDS = [1.0, 1.0, 1.0, -1.0]


@pytest.mark.parametrize(
    ("entropy", "expected"),
    [(0.2, [0, 0, 0, -1]), (0.5, [1, 1, 1, 0]), (0.4, [0.5, 0.5, 0.5, -1.5])],
)
def test_worked_example(entropy, expected):
    # half way the band 0.6 -> 0.1, 0.7 -> 0.2 is (.35, .45)
    params = {"h_low": Linear(0.6, 0.1), "h_high": Linear(0.7, 0.2), "eps": 0.0}
    batch = flat_batch((1,) * 4, reward_B=REWARDS, entropy_old_T=[entropy] * 4)
    batch = stages(entrocraft_code_variant(**params), batch, step=50, num_steps=100)
    assert batch["advantage_B"].tolist() == pytest.approx(expected)
    found = functional.advantages(
        "entrocraft_code_variant", rewards=torch.tensor(REWARDS), groups=torch.zeros(4).long(),
        mask=torch.ones(4, 2), batch_entropy=entropy,
        params={**params, "step": 50, "total_steps": 100},
    )  # fmt: skip
    assert found[:, 1].tolist() == pytest.approx(expected)


def test_members_of_the_family():
    batch = flat_batch((1,) * 4, reward_B=REWARDS, entropy_old_T=[0.3] * 4)

    def advantages(**params):
        return stages(entrocraft_code_variant(**params), batch)["advantage_B"].tolist()

    assert advantages(h_high=-math.inf, h_low=-math.inf) == [1, 1, 1, 0]  # raftpp
    assert advantages(h_low=math.inf, h_high=math.inf) == [0, 0, 0, -1]  # nsr
    weighted = advantages(h_low=math.inf, h_high=math.inf, positive_weight=0.1)
    assert weighted == pytest.approx([0.1, 0.1, 0.1, -1])  # w_reinforce


def test_composes_rescales_zero_and_one_and_is_grpo_inside_the_band():
    algorithm = entrocraft_code_variant()
    assert [use.label for use in algorithm.reward] == ["score_with_verifiers", "rescale_reward"]
    batch = ragged_batch(1)
    inside = stages(entrocraft_code_variant(h_low=-math.inf, h_high=math.inf), batch)
    assert inside["advantage_T"].equal(stages(grpo(), batch)["advantage_T"])


@pytest.mark.parametrize("band", [(9.0, 10.0), (-2.0, -1.0), (-1.0, 9.0)])
def test_gradient_is_that_of_the_published_loss(band):
    algorithm = entrocraft_code_variant(h_low=band[0], h_high=band[1])
    given = ragged_batch(1)
    given = given.set(reward_B=2 * given["outcome_B"] - 1)
    batch = stages(algorithm, given)
    advantage = {}
    for group in range(batch.size("P")):
        rewards = {i: float(batch["reward_B"][i]) for i in members_of(batch, group)}
        if band[0] == 9.0:
            advantage |= {i: min(r, 0.0) for i, r in rewards.items()}
        elif band[1] == -1.0:
            advantage |= {i: max(r, 0.0) for i, r in rewards.items()}
        else:
            many = len(rewards) > 1
            mean = statistics.mean(rewards.values()) if many else 0.0
            scale = statistics.stdev(rewards.values()) if many else 1.0
            advantage |= {i: (r - mean) / (scale + 1e-6) for i, r in rewards.items()}
    rows = rows_learning(batch)  # rollouts of advantage 0 stay in the average
    values = [advantage[int(batch["rollout_T"][t])] for t in rows]
    advantage_N = torch.tensor(values, dtype=torch.float64)

    def loss_of(logp_T):
        ratio_N = (logp_T[rows] - batch["logp_old_T"][rows]).exp()
        d_N = batch["logp_ref_T"][rows] - logp_T[rows]
        return (clipped(ratio_N, advantage_N, 0.2, 0.2) + 1e-3 * (d_N.exp() - d_N - 1)).mean()

    assert_same_push(algorithm, batch, loss_of)
