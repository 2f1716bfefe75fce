import math

import pytest
import torch
from builders import (
    assert_equal_pushes,
    assert_same_push,
    clipped,
    pushed,
    ragged_batch,
    rows_learning,
    stages,
    tokens_of,
)  # fmt: skip

from strop import functional
from strop.method import notation, reading
from strop.method.check import check
from strop.recipes.cispo import cispo
from strop.recipes.grpo import grpo
from strop.recipes.rollout_correction import (
    rollout_correction,
    rollout_correction_bypass,
    rollout_correction_reinforce,
)
from strop.support.errors import UserError

# log w = (0, .5, 1, -.7) between old and behaviour; old = current; A = 1
WORKED = {
    "logp": torch.full((1, 4), -1.0).double(),
    "logp_old": torch.full((1, 4), -1.0).double(),
    "logp_beh": torch.tensor([[-1.0, -1.5, -2.0, -0.3]]).double(),
    "advantages": torch.ones(1).double(),
    "mask": torch.ones(1, 4, dtype=torch.bool),
}


@pytest.mark.parametrize(
    ("params", "weights"),
    [
        ({}, [1, 1.648721, 2, 0.496585]),
        ({"low": 0.5, "outside": "mask"}, [1, 1.648721, 0, 0]),
        ({"normalise": True}, [0.777408, 1.281728, 1.554815, 0.386049]),
        ({"unit": "sequence"}, [2.0] * 4),
        ({"unit": "sequence-mean"}, [1.221403] * 4),
    ],
)
def test_worked_example_through_the_padded_call(params, weights):
    loss, _ = functional.policy_loss("rollout_correction", params=params, **WORKED)
    assert float(loss) == pytest.approx(-sum(weights) / 4, abs=1e-6)
    found = functional.token_weights("rollout_correction", params=params, **WORKED)
    assert found[0].tolist() == pytest.approx([w / 4 for w in weights], abs=1e-6)


def rejected(batch, t):
    """The largest k2 of the rollout of a token."""
    rows = tokens_of(batch, int(batch["rollout_T"][t]))
    return float((batch["logp_old_T"] - batch["logp_behavior_T"])[rows].square().max()) / 2


@pytest.mark.parametrize("unit", ["token", "turn", "turn-mean", "sequence", "sequence-mean"])
def test_gradient_is_that_of_the_published_loss(unit):
    """Weights over the mask before rejection, rejected tokens still in the average."""
    algorithm = rollout_correction(
        unit=unit, low=0.7, high=1.4, outside="mask", reject="seq_max_k2", reject_high=0.1
    )
    given = ragged_batch(1, groups=(4, 4))
    gap_T = given["logp_behavior_T"] - given["logp_old_T"]
    given = given.set(logp_behavior_T=given["logp_old_T"] + 0.4 * gap_T)
    batch = stages(algorithm, given)
    rows = rows_learning(batch)
    count = len(rows)
    rows = [t for t in rows if rejected(batch, t) <= 0.1]
    assert 0 < len(rows) < count
    gap_T = batch["logp_old_T"] - batch["logp_behavior_T"]
    weight = {}
    for t in rows:
        key = {"turn": "turn_T", "sequence": "rollout_T"}.get(unit.partition("-")[0])
        mates = [t]
        if key:
            same_T = (batch[key] == batch[key][t]) & batch["mask_T"]
            mates = same_T.nonzero().squeeze(1).tolist()
        w = math.exp(float(gap_T[mates].sum()) / (len(mates) if "mean" in unit else 1))
        weight[t] = w if 0.7 <= w <= 1.4 else 0.0
    weight_N = torch.tensor([weight[t] for t in rows], dtype=torch.float64)
    assert (weight_N == 0).any()

    def loss_of(logp_T):
        ratio_N = (logp_T[rows] - batch["logp_old_T"][rows]).exp()
        losses_N = weight_N * clipped(ratio_N, batch["advantage_T"][rows], 0.2, 0.2)
        return losses_N.sum() / count

    assert_same_push(algorithm, batch, loss_of)


@pytest.mark.parametrize("unit", ["token", "turn", "sequence-mean"])
def test_bypass_is_the_clipped_loss_over_the_sampler(unit):
    algorithm = rollout_correction_bypass(unit=unit, clip_high=0.3)
    batch = stages(algorithm, ragged_batch(2))
    rows = rows_learning(batch)

    def loss_of(logp_T):
        gap_T = torch.where(batch["mask_T"], logp_T - batch["logp_behavior_T"], 0)
        logs = []
        for t in rows:
            if unit == "token":
                logs.append(gap_T[t])
            elif unit == "turn":
                logs.append(gap_T[batch["turn_T"] == batch["turn_T"][t]].sum())
            else:
                logs.append(gap_T[tokens_of(batch, int(batch["rollout_T"][t]))].mean())
        return clipped(torch.stack(logs).exp(), batch["advantage_T"][rows], 0.2, 0.3).mean()

    assert_same_push(algorithm, batch, loss_of)


def test_reinforce_is_the_weighted_score():
    algorithm = rollout_correction_reinforce(unit="sequence", low=0.5, high=1.5)
    batch = stages(algorithm, ragged_batch(3))
    rows = rows_learning(batch)

    def loss_of(logp_T):
        total = 0.0
        for t in rows:
            mates = tokens_of(batch, int(batch["rollout_T"][t]))
            gap = (logp_T - batch["logp_behavior_T"])[mates].sum().detach()
            total = total - gap.exp().clamp(0.5, 1.5) * batch["advantage_T"][t] * logp_T[t]
        return total / len(rows)

    assert_same_push(algorithm, batch, loss_of)


def test_reductions():
    """Fresh answers need no correction; over the sampler everything is the parent's own."""
    batch = stages(grpo(), ragged_batch(1))
    fresh = batch.set(logp_behavior_T=batch["logp_old_T"])
    for other in (rollout_correction(), rollout_correction(unit="sequence", outside="mask"),
                  rollout_correction_bypass()):  # fmt: skip
        assert_equal_pushes(other, grpo(aggregation="token-mean"), fresh)
    weighted = cispo(clip_low=1.0, clip_high=1.0, aggregation="token-mean")
    assert_equal_pushes(rollout_correction_reinforce(), weighted, fresh)


def test_a_void_sampler_counts_as_the_current_policy():
    """A demonstration's token has no sampler: its ratio is 1, its weight 1, it is not rejected."""
    batch = stages(grpo(), ragged_batch(1))
    void_T = torch.arange(batch.size("T")) % 3 == 0
    holed = batch.set(logp_behavior_T=torch.where(void_T, math.nan, batch["logp_behavior_T"]))
    filled = torch.where(void_T, batch["logp_T"], batch["logp_behavior_T"])
    for unit in ("token", "turn", "sequence"):
        algorithm = rollout_correction_bypass(unit=unit)
        found, expected = (pushed(algorithm, batch.set(logp_behavior_T=c))
                           for c in (holed["logp_behavior_T"], filled))  # fmt: skip
        assert found[0] == pytest.approx(expected[0])
        torch.testing.assert_close(found[1]["logp_T"], expected[1]["logp_T"])


def test_a_weight_beside_the_bypass_is_refused_and_any_recipe_takes_one():
    bypass = reading.replace_stage(
        rollout_correction_bypass(), "correction", "weigh_by_engine_ratio"
    )
    with pytest.raises(UserError, match="importance weight would be applied twice"):
        check(bypass)
    for name in ("gspo", "dr_grpo", "gae"):
        text = 'weigh_by_engine_ratio(unit="sequence", outside="mask", high=3.0)'
        check(reading.replace_stage(notation.recipe(name), "correction", text))
