import json

import pytest
import torch
from builders import assert_same_push, clipped, flat_batch, ragged_batch, rows_learning, stages
from models import Lab
from runs import Runner

from strop import functional
from strop.method.check import check
from strop.recipes.remax import remax
from strop.tracking.metrics_file import read_metrics


@pytest.mark.parametrize(
    ("greedy", "expected"), [(0.5, [0.5, -0.5, -0.5, 0.5]), (1.0, [0, -1, -1, 0])]
)
def test_worked_example(greedy, expected):
    given = {"reward_B": [1.0, 0.0, 0.0, 1.0], "greedy_reward_B": [greedy] * 4}
    batch = stages(remax(), flat_batch((2, 4, 4, 2), **given))
    assert batch["advantage_B"].tolist() == expected
    found = functional.advantages(
        "remax", rewards=torch.tensor([1.0, 0.0, 0.0, 1.0]), groups=torch.zeros(4).long(),
        greedy_rewards=torch.full((4,), greedy), mask=torch.ones(4, 2),
    )  # fmt: skip
    assert found[:, 1].tolist() == expected


def test_composes():
    check(remax(beta=0.05))
    labels = [use.label for use in remax(beta=0.05).advantage]
    assert labels == ["subtract_kl_to_reference", "subtract_greedy_reward", "spread_evenly"]


def test_a_greedy_reward_of_zero_is_reinforce():
    given = {"reward_B": [0.3, -2.0, 0.7], "greedy_reward_B": [0.0] * 3}
    batch = stages(remax(), flat_batch((1, 2, 1), **given))
    assert batch["advantage_T"].tolist() == [0.3, -2.0, -2.0, 0.7]


def test_gradient_is_that_of_the_published_loss():
    greedy_P = torch.tensor([0.2, 1.0, 0.0, 0.9], dtype=torch.float64)
    given = ragged_batch(1)
    batch = stages(remax(), given.set(greedy_reward_B=greedy_P[given["group_B"]]))
    rows = rows_learning(batch)
    rollout = batch["rollout_T"][rows]
    advantage_N = (batch["reward_B"] - greedy_P[batch["group_B"]])[rollout]
    num = len(rollout.unique())

    def loss_of(logp_T):
        ratio_N = (logp_T[rows] - batch["logp_old_T"][rows]).exp()
        return clipped(ratio_N, advantage_N, 0.2, 0.2).sum() / num

    assert_same_push(remax(), batch, loss_of)


def test_greedy_rollouts_are_scored_and_never_trained_on(tmp_path):
    lab, runner = Lab.make(tmp_path), Runner()
    seen = []
    run = runner.start(lab.raw("remax", training={"steps": 2}), tmp_path / "run")
    grade = run.world.services.grading.grade

    def watched(batch):
        seen.append(batch)
        return grade(batch)

    run.world.services.grading.grade = watched
    runner.go(run)
    assert [batch.size("B") for batch in seen] == [10, 10]  # 2 prompts, 4 samples and 1 greedy
    for batch in seen:
        greedy_B = batch["stage_B"] == 1
        assert greedy_B.tolist() == [False] * 4 + [True] + [False] * 4 + [True]
        greedy_T = greedy_B[batch["rollout_T"]] & batch["mask_T"]
        assert (batch["logp_behavior_T"][greedy_T] == 0).all()  # certain
    lines = read_metrics(tmp_path / "run")
    assert [line["data/dropped/stage_1"] for line in lines if line["step"]] == [2, 2]
    assert [line["num_rollouts"] for line in lines if line["step"]] == [8, 8]
    assert json.dumps(lines)
