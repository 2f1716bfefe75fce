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
    rows_learning,
    stages,
)

from strop import functional
from strop.method.check import check
from strop.recipes.grpo import grpo
from strop.recipes.reinforce_plus_plus import reinforce_plus_plus, reinforce_plus_plus_baseline

RECIPES = (reinforce_plus_plus, reinforce_plus_plus_baseline)


@pytest.mark.parametrize("recipe", RECIPES)
def test_worked_example(recipe):
    # token-weighted mean of R - .5 is -.1667, unbiased variance .2424
    batch = stages(recipe(), flat_batch((2, 4, 4, 2), reward_B=[1.0, 0.0, 0.0, 1.0]))
    expected = [1.354] * 2 + [-0.677] * 8 + [1.354] * 2
    assert batch["advantage_T"].tolist() == pytest.approx(expected, abs=5e-4)


def test_composes():
    check(reinforce_plus_plus(beta=0.1))
    check(reinforce_plus_plus_baseline(singleton="zero"))


def test_with_one_group_of_equal_lengths_the_baseline_form_is_grpo_up_to_its_deviation():
    batch = flat_batch((3,) * 4, reward_B=[0.3, 0.9, 0.1, 0.4])
    ours = stages(reinforce_plus_plus_baseline(whiten_eps=0.0), batch)["advantage_T"]
    theirs = stages(grpo(eps=0.0), batch)["advantage_T"]
    # unbiased deviations over 4 rollouts and over 12 tokens: sqrt((1 / 3) / (3 / 11))
    factor = float(ours[0] / theirs[0])
    assert factor == pytest.approx((11 / 9) ** 0.5)
    torch.testing.assert_close(ours, theirs * factor)


@pytest.mark.parametrize("recipe", RECIPES)
def test_answers_weigh_the_same_as_in_the_paper(recipe):
    # A is 1.354, -.677, -.677, 1.354 at lengths 2, 4, 4, 2: at ratio 1 the mean per answer is
    # .3385 and over tokens 0, whitened over them as they are
    given = {
        "logp": torch.zeros(4, 4).double(), "logp_old": torch.zeros(4, 4).double(),
        "mask": torch.arange(4)[None] < torch.tensor([2, 4, 4, 2])[:, None],
        "advantages": torch.tensor([1.354, -0.677, -0.677, 1.354]).double(),
    }  # fmt: skip
    loss, _ = functional.policy_loss(recipe.__name__, **given)
    assert float(loss) == pytest.approx(-0.3385)
    loss, _ = functional.policy_loss(recipe.__name__, params={"aggregation": "token-mean"}, **given)
    assert float(loss) == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("aggregation", ["seq-mean-token-mean", "token-mean"])
@pytest.mark.parametrize(("baseline", "gamma"), [(False, 1.0), (False, 0.9), (True, 1.0)])
def test_gradient_is_that_of_the_published_loss(baseline, gamma, aggregation):
    algorithm = (
        reinforce_plus_plus_baseline(beta=0.02, aggregation=aggregation)
        if baseline
        else reinforce_plus_plus(gamma=gamma, beta=0.02, aggregation=aggregation)
    )
    batch = stages(algorithm, ragged_batch(1))
    returns = {}
    for group in range(batch.size("P")):
        members = members_of(batch, group)
        rewards = [float(batch["reward_B"][i]) for i in members]
        mean = statistics.mean(rewards) if baseline and len(rewards) > 1 else 0.0
        for i, reward in zip(members, rewards, strict=True):
            rows = dict(learning(batch))[i]
            returns |= {t: (reward - mean) * gamma**k for k, t in enumerate(reversed(rows))}
    mean, variance = statistics.mean(returns.values()), statistics.variance(returns.values())
    rows = rows_learning(batch)
    values = [(returns[t] - mean) / (variance + 1e-8) ** 0.5 for t in rows]
    advantage_N = torch.tensor(values, dtype=torch.float64)
    answers = [len(tokens) for _, tokens in learning(batch)]
    shares = [1 / (len(answers) * n) for n in answers for _ in range(n)]
    if aggregation == "token-mean":
        shares = [1 / len(rows)] * len(rows)
    weight_N = torch.tensor(shares, dtype=torch.float64)

    def loss_of(logp_T):
        ratio_N = (logp_T[rows] - batch["logp_old_T"][rows]).exp()
        d_N = batch["logp_ref_T"][rows] - logp_T[rows]
        token_N = clipped(ratio_N, advantage_N, 0.2, 0.2) + 0.02 * (d_N.exp() - d_N - 1)
        return (token_N * weight_N).sum()

    assert_same_push(algorithm, batch, loss_of)


def test_padded_call():
    rewards, groups = torch.tensor([1.0, 0.0, 0.0, 1.0]).double(), torch.zeros(4).long()
    lengths = torch.tensor([2, 4, 4, 2])
    mask = torch.arange(4)[None] < lengths[:, None]
    for recipe in ("reinforce_plus_plus", "reinforce_plus_plus_baseline"):
        found = functional.advantages(recipe, rewards=rewards, groups=groups, mask=mask)
        assert found[:, 0].tolist() == pytest.approx([1.354, -0.677, -0.677, 1.354], abs=5e-4)
        assert not found[~mask].any()
