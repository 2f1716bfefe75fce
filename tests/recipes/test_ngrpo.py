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

from strop.method import reading
from strop.method.check import check
from strop.method.part import Use
from strop.parts.curation.drop_uniform_groups import DropUniformGroups
from strop.recipes.grpo import grpo
from strop.recipes.ngrpo import ngrpo
from strop.support.errors import UserError


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [([0.0] * 4, [-0.4472] * 4), ([1.0, 0, 0, 0], [1.0954, -0.7303, -0.7303, -0.7303]),
     ([1.0] * 4, [0.0] * 4), ([0.0] * 8, [-0.3333] * 8), ([0.7], [0.7])],
)  # fmt: skip
def test_worked_example(rewards, expected):
    batch = stages(ngrpo(), flat_batch((1,) * len(rewards), reward_B=rewards))
    assert batch["advantage_B"].tolist() == pytest.approx(expected, abs=5e-5)


def test_refuses_what_would_switch_it_off():
    dead = reading.replace_stage(ngrpo(), "curation", "drop_uniform_groups")
    assert dead.curation == (Use(DropUniformGroups()),)
    with pytest.raises(UserError, match="do not go together"):
        check(dead)
    text = "subtract_group_mean(num_imagined=1) | spread_evenly | whiten_over_batch_tokens"
    with pytest.raises(UserError, match="whitening would remove the bias"):
        check(reading.replace_stage(ngrpo(), "advantage", text))


def test_imagined_rollouts_are_as_many_in_mean_and_deviation():
    for label in ("subtract_group_mean", "divide_by_group_std"):
        with pytest.raises(UserError, match=r"num_imagined is 1, where both|num_imagined is 3, wh"):
            check(ngrpo().with_knobs({f"advantage.{label}.num_imagined": 3}))


def test_without_imagined_rollouts_it_is_grpo():
    batch = ragged_batch(2)
    ours = stages(ngrpo(n_virtual=0), batch)["advantage_T"]
    torch.testing.assert_close(ours, stages(grpo(), batch)["advantage_T"])


def test_gradient_is_that_of_the_published_loss():
    algorithm = ngrpo(n_virtual=2, R_max=1.3)
    batch = stages(algorithm, ragged_batch(1))
    advantage = {}
    for group in range(batch.size("P")):
        members = members_of(batch, group)
        everyone = [float(batch["reward_B"][i]) for i in members] + [1.3, 1.3]
        alone = len(members) == 1
        mean = 0.0 if alone else statistics.mean(everyone)
        scale = 1.0 if alone else statistics.stdev(everyone)
        advantage |= {i: (float(batch["reward_B"][i]) - mean) / (scale + 1e-6) for i in members}
    rows = rows_learning(batch)
    values = [advantage[int(batch["rollout_T"][t])] for t in rows]
    advantage_N = torch.tensor(values, dtype=torch.float64)

    def loss_of(logp_T):
        ratio_N = (logp_T[rows] - batch["logp_old_T"][rows]).exp()
        return clipped(ratio_N, advantage_N, 0.16, 0.24).mean()

    assert_same_push(algorithm, batch, loss_of)
