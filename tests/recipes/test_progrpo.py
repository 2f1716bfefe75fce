import math

import pytest
import torch
from builders import (
    assert_same_push,
    clipped,
    flat_batch,
    learning,
    ragged_batch,
    rows_learning,
    run,
    stages,
    tokens_of,
)

from strop import functional
from strop.method.check import check
from strop.parts.advantage.baseline.subtract_excess_confidence import SubtractExcessConfidence
from strop.recipes.grpo import grpo
from strop.recipes.progrpo import progrpo

REWARDS = torch.tensor([1.0, 1.0, 0.0, 0.0]).double()


def call(logp_old, rewards=REWARDS, prompt=0.5, **params):
    return functional.advantages(
        "progrpo", rewards=rewards, groups=torch.zeros(4).long(),
        mask=torch.ones(logp_old.shape), logp_old=logp_old,
        prompt_confidence=torch.full((4,), prompt).double(), params=params,
    )[:, 0].tolist()  # fmt: skip


def test_worked_example():
    logp_old = torch.tensor([0.8, 0.4, 0.6, 0.5]).double().log()[:, None]
    found = call(logp_old)
    assert found == pytest.approx([0.776, 0.896, -0.896, -0.866], abs=5e-4)
    # of five tokens the least likely one, of ten the two least likely ones
    five = torch.cat([logp_old, torch.full((4, 4), -0.01)], dim=1)
    assert call(five) == pytest.approx(found)
    ten = torch.cat([logp_old, logp_old, torch.full((4, 8), -0.01)], dim=1)
    assert call(ten) == pytest.approx(found)


def test_without_weight_it_is_grpo_with_a_wider_clip():
    batch = ragged_batch(1)
    confidence_B = torch.rand(batch.size("B"), dtype=torch.float64)
    batch = batch.set(prompt_confidence_B=confidence_B)
    base = grpo(clip_high=0.28, aggregation="token-mean")
    ours, theirs = stages(progrpo(alpha=0.0), batch), stages(base, batch)
    assert ours["advantage_T"].equal(theirs["advantage_T"])
    assert progrpo(alpha=0.0).terms == base.terms


def test_prompts_without_success_are_left_alone():
    logp_old = torch.tensor([0.8, 0.4, 0.6, 0.5]).double().log()[:, None]
    assert call(logp_old, torch.zeros(4).double()) == [0.0] * 4
    # always right: the differences alone are left
    expected = [0.3 * (0.5 - c) for c in (0.8, 0.4, 0.6, 0.5)]
    assert call(logp_old, torch.ones(4).double()) == pytest.approx(expected)


def test_gradient_is_that_of_the_published_loss():
    algorithm = progrpo(alpha=0.4, share=0.5)
    batch = ragged_batch(3)
    confidence_B = torch.rand(batch.size("B"), dtype=torch.float64)
    batch = stages(algorithm, batch.set(prompt_confidence_B=confidence_B))
    base = stages(grpo(), ragged_batch(3))["advantage_B"]
    advantage = {}
    for i, _ in learning(batch):
        values = sorted(batch["logp_old_T"][tokens_of(batch, i)].tolist())
        lowest = values[: max(len(values) // 2, 1)]
        confidence = math.exp(sum(lowest) / len(lowest))
        advantage[i] = base[i] + 0.4 * (confidence_B[i] - confidence)

    def loss_of(logp_T):
        total = logp_T.new_zeros(())
        for i, rows in learning(batch):
            ratio = (logp_T[rows] - batch["logp_old_T"][rows]).exp()
            total = total + clipped(ratio, advantage[i], 0.2, 0.28).sum()
        return total / len(rows_learning(batch))

    assert_same_push(algorithm, batch, loss_of)


def test_composes_with_a_probe_of_the_prompts():
    algorithm = progrpo(share=0.3)
    check(algorithm)
    (probe,) = algorithm.probes
    assert probe.part.share == 0.3
    assert "logp_old_T" in algorithm.reads(("advantage",))


def test_the_mean_excess_of_confidence_is_logged():
    logp = torch.tensor([0.8, 0.4, 0.6, 0.5]).double().log()  # mean 0.575
    batch = flat_batch((1,) * 4, advantage_B=REWARDS, reward_B=REWARDS, logp_old_T=logp,
                       prompt_confidence_B=[0.5] * 4)  # fmt: skip
    told = run(SubtractExcessConfidence(), batch).metrics
    assert told == {"confidence/excess_mean": pytest.approx(0.075)}
