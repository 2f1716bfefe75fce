import math

import pytest
import torch
from builders import (
    assert_same_push,
    clipped,
    learning,
    members_of,
    ragged_batch,
    stages,
    tokens_of,
)

from strop import functional
from strop.method import reading
from strop.method.check import check
from strop.parts.advantage.scale.blame_overconfident_errors import BlameOverconfidentErrors
from strop.recipes.ace import ace
from strop.recipes.grpo import grpo
from strop.support.errors import UserError

REWARDS = torch.tensor([1.0, 0.0, 0.0, 0.0]).double()


def call(gain, length=1, **params):
    logp_old = torch.tensor(gain).double()[:, None].expand(4, length) - 3
    return functional.advantages(
        "ace", rewards=REWARDS, groups=torch.zeros(4).long(), mask=torch.ones(4, length),
        logp_old=logp_old, logp_ref=torch.full_like(logp_old, -3), params=params,
    )[:, 0]  # fmt: skip


def test_worked_example():
    # grpo gives (1.5, -.5, -.5, -.5); -.5 (1 + softplus(.5)) = -.5 * 1.9741
    found = call([0.0, 0.5, 1.0, -1.0])
    assert found.tolist() == pytest.approx([1.5, -0.9870, -1.1566, -0.6566], abs=5e-5)


def test_without_strength_it_is_grpo():
    batch = ragged_batch(2)
    ours, theirs = stages(ace(alpha=0.0), batch), stages(grpo(), batch)
    assert ours["advantage_T"].equal(theirs["advantage_T"])


def test_sum_mean_and_cap():
    long = call([0.0, 0.5, 1.0, -1.0], length=4)
    assert float(long[1]) == pytest.approx(-0.5 * (1 + math.log1p(math.exp(2.0))), abs=1e-5)
    per_token = call([0.0, 0.5, 1.0, -1.0], length=4, per_token=True)
    assert per_token.tolist() == pytest.approx(call([0.0, 0.5, 1.0, -1.0]).tolist())
    capped = call([0.0, 50.0, 100.0, -1.0], cap=0.5)
    assert capped.tolist() == pytest.approx(call([0.0, 0.5, 0.5, -1.0]).tolist())


def test_metric_is_the_share_of_overconfident_errors():
    result = BlameOverconfidentErrors()(
        torch.tensor([1.0, -1.0, -1.0, -1.0]), torch.tensor([-1.0, -1.0, -3.0, -2.0]),
        torch.full((4,), -2.0), torch.arange(4), torch.ones(4, dtype=torch.bool),
    )  # fmt: skip
    assert result.metrics["advantage/overconfident_errors"] == pytest.approx(1 / 3)


def test_gradient_is_that_of_the_published_loss():
    algorithm = ace(alpha=0.7)
    batch = stages(algorithm, ragged_batch(3))
    base = stages(grpo(), ragged_batch(3))
    advantage = {}
    for group in range(batch.size("P")):
        for i in members_of(batch, group):
            rows = tokens_of(batch, i)
            value = float(base["advantage_T"][rows[0]])
            gain = float((batch["logp_old_T"] - batch["logp_ref_T"])[rows].sum())
            factor = 1 + 0.7 * math.log1p(math.exp(gain)) if value < 0 else 1.0
            advantage[i] = torch.tensor(value * factor, dtype=torch.float64)

    def loss_of(logp_T):
        total = logp_T.new_zeros(())
        for i, rows in learning(batch):
            ratio = (logp_T[rows] - batch["logp_old_T"][rows]).exp()
            total = total + clipped(ratio, advantage[i], 0.2, 0.2).mean() / len(advantage)
        return total

    assert_same_push(algorithm, batch, loss_of)


def test_wrong_options_and_a_whitening_after_it_are_refused():
    with pytest.raises(UserError, match="alpha must be at least 0"):
        ace(alpha=-1.0)
    text = "subtract_group_mean | blame_overconfident_errors | whiten_over_batch | spread_evenly"
    with pytest.raises(UserError, match="do not go together"):
        check(reading.replace_stage(grpo(), "advantage", text))
