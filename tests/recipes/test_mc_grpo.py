import statistics

import pytest
import torch
from builders import (
    assert_same_push,
    clipped,
    flat_batch,
    learning,
    members_of,
    ragged_batch,
    stages,
)

from strop.method.check import check
from strop.recipes.mc_grpo import mc_grpo


def test_worked_example():
    # median .5, MAD .4: -.4 / .401 = -.9975 and so on; rollout 1 is the median, not trained on
    batch = stages(mc_grpo(), flat_batch((1,) * 5, reward_B=[0.1, 0.5, 0.9, 1.0, 0.2]))
    expected = [-0.9975, 0.0, 0.9975, 1.2469, -0.7481]
    assert batch["advantage_T"].tolist() == pytest.approx(expected, abs=5e-5)
    assert batch["gradient_T"].tolist() == [True, False, True, True, True]
    assert batch["denominator_T"].tolist() == batch["gradient_T"].tolist()
    rescaled = mc_grpo(nonzero_rescale=True)
    batch = stages(rescaled, flat_batch((1,) * 5, reward_B=[0.1, 0.5, 0.9, 1.0, 0.2]))
    expected = [-1.2469, 0.0, 1.2469, 1.5586, -0.9352]
    assert batch["advantage_T"].tolist() == pytest.approx(expected, abs=5e-5)


def test_one_success_of_five_is_praised_as_by_the_parent():
    # median 0 and MAD 0; std sqrt((.64 + 4 * .04) / 4) = .44721: 1 / .44821
    batch = stages(mc_grpo(), flat_batch((1,) * 5, reward_B=[1.0, 0.0, 0.0, 0.0, 0.0]))
    assert batch["advantage_T"].tolist() == pytest.approx([2.2311, 0, 0, 0, 0], abs=5e-5)


def test_composes_and_samples_one_more():
    algorithm = mc_grpo(num_rollouts=4, num_prompts=7)
    check(algorithm)
    assert algorithm.sampling[0].part.num_rollouts == 5
    assert algorithm.sampling[0].part.num_prompts == 7
    assert algorithm.plan.part.num_updates == 2
    assert [term.name for term in algorithm.terms] == ["policy", "kl"]


def test_gradient_is_that_of_the_published_loss():
    algorithm = mc_grpo(floor=0.05)
    batch = stages(algorithm, ragged_batch(1, groups=(3, 5, 4)))
    advantage = {}
    for group in range(batch.size("P")):
        members = members_of(batch, group)
        rewards = [float(batch["reward_B"][i]) for i in members]
        median = statistics.median_low(rewards)
        mad = max(statistics.median_low([abs(r - median) for r in rewards]), 0.05)
        dropped = members[rewards.index(median)]
        for i, reward in zip(members, rewards, strict=True):
            if i != dropped:
                value = (reward - median) / (mad + 1e-3)
                advantage[i] = torch.tensor(value, dtype=torch.float64)
    assert [i for i, _ in learning(batch)] == sorted(advantage)

    def loss_of(logp_T):
        total = logp_T.new_zeros(())
        for i, tokens in learning(batch):
            ratio = (logp_T[tokens] - batch["logp_old_T"][tokens]).exp()
            d = batch["logp_ref_T"][tokens] - logp_T[tokens]
            token = clipped(ratio, advantage[i], 0.2, 0.2) + 0.04 * (d.exp() - d - 1)
            total = total + token.mean() / len(advantage)
        return total

    assert_same_push(algorithm, batch, loss_of)
