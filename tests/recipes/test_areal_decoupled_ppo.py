import math

import pytest
import torch
from builders import (
    assert_equal_pushes,
    assert_same_push,
    clipped,
    ragged_batch,
    rows_learning,
    stages,
    tokens_of,
)  # fmt: skip

from strop import functional
from strop.method.check import check
from strop.recipes.areal_decoupled_ppo import areal_decoupled_ppo
from strop.recipes.grpo import grpo
from strop.recipes.rollout_correction import rollout_correction_bypass
from strop.support.errors import UserError


def worked(advantage, **params):
    given = {n: torch.tensor([[v]]).double()
             for n, v in (("logp", -1.0), ("logp_prox", -1.3), ("logp_beh", -1.5))}  # fmt: skip
    loss, _ = functional.policy_loss(
        "areal_decoupled_ppo", params=params, advantages=torch.tensor([advantage]).double(),
        mask=torch.ones(1, 1), **given,
    )  # fmt: skip
    return float(loss)


def test_worked_example_through_the_padded_call():
    # u = 1.349859 is cut to 1.2 for A = 1; w = 1.221403
    assert worked(1.0) == pytest.approx(-1.465683, abs=1e-6)
    assert worked(-1.0) == pytest.approx(1.648721, abs=1e-6)
    assert worked(1.0, decoupled=False) == pytest.approx(-1.2)
    # the dual clip comes before the weight: min(1.349859, 1.1) * w
    assert worked(-1.0, dual_clip_c=1.1) == pytest.approx(1.1 * 1.221403, abs=1e-6)
    assert worked(1.0, action="clamp", upper=1.1) == pytest.approx(-1.2 * 1.1)
    assert worked(1.0, action="mask", upper=1.1) == 0
    assert worked(1.0, action="mask", metric="k1", upper=0.21) == pytest.approx(-1.465683, abs=1e-6)
    assert worked(1.0, action="mask", metric="k1", upper=0.19) == 0


def test_composes_and_the_weight_is_there_without_a_rejection():
    """The released code applies no weight at all unless a rejection is set; here it always is."""
    check(areal_decoupled_ppo(decoupled=False))
    assert areal_decoupled_ppo().terms[0].correction is not None
    assert areal_decoupled_ppo().plan.part.num_minibatches == 4


@pytest.mark.parametrize("ratio_level", ["token", "sequence"])
def test_reductions(ratio_level):
    """With the sampler for proximal policy it is PPO; not decoupled it never reads the latter."""
    batch = stages(grpo(), ragged_batch(1))
    fresh = batch.set(logp_behavior_T=batch["logp_old_T"])
    ours = areal_decoupled_ppo(ratio_level=ratio_level)
    naive = areal_decoupled_ppo(ratio_level=ratio_level, decoupled=False)
    assert_equal_pushes(ours, naive, fresh)
    if ratio_level == "token":
        assert_equal_pushes(ours, grpo(aggregation="token-mean"), fresh)
        assert_equal_pushes(naive, rollout_correction_bypass(), batch)


@pytest.mark.parametrize(
    ("level", "action", "metric", "agg"),
    [
        ("token", "none", "ratio", "mean"),
        ("token", "mask", "ratio", "mean"),
        ("token", "clamp", "ratio", "mean"),
        ("token", "mask", "k2", "mean"),
        ("sequence", "mask", "ratio", "mean"),
        ("sequence", "mask", "ratio", "sum"),
        ("sequence", "mask", "ratio", "max"),
        ("sequence", "clamp", "ratio", "mean"),
        ("sequence", "mask", "k3", "mean"),
    ],
)
def test_gradient_is_that_of_the_published_loss(level, action, metric, agg):
    upper, lower = (1.3, 0.8) if metric == "ratio" else (0.15, 0.0)
    algorithm = areal_decoupled_ppo(
        level=level, action=action, metric=metric, agg=agg, upper=upper, lower=lower
    )
    given = ragged_batch(1, groups=(4, 4, 4))
    gap_T = given["logp_sampler_T"] - given["logp_old_T"]
    given = given.set(logp_behavior_T=given["logp_old_T"] + gap_T * (1 if agg == "mean" else 0.3))
    batch = stages(algorithm, given)
    scored = rows_learning(stages(grpo(), given))
    log_w = batch["logp_old_T"] - batch["logp_behavior_T"]
    weight, stays = {}, {}
    for t in scored:
        mates = tokens_of(batch, int(batch["rollout_T"][t])) if level == "sequence" else [t]
        xs = [float(log_w[s]) for s in mates]
        kind = {"ratio": lambda x: x, "k2": lambda x: x * x / 2,
                "k3": lambda x: math.exp(x) - 1 - x}[metric]  # fmt: skip
        ks = [kind(x) for x in xs]
        value = {"sum": sum(ks), "mean": sum(ks) / len(ks), "max": max(ks)}[agg]
        value = math.exp(value) if metric == "ratio" else value
        inside = lower <= value <= upper
        geometric = level == "sequence" and metric == "ratio"
        w = math.exp(sum(xs) / len(xs)) if geometric else math.exp(float(log_w[t]))
        weight[t] = min(max(w, lower), upper) if action == "clamp" and not inside else w
        stays[t] = inside or action != "mask"
    assert action == "none" or len(set(weight.values())) > 1
    assert (action == "mask") == (not all(stays.values()))
    rows = [t for t in scored if stays[t]]
    weight_N = torch.tensor([weight[t] for t in rows], dtype=torch.float64)

    def loss_of(logp_T):
        u_N = (logp_T[rows] - batch["logp_old_T"][rows]).exp()
        losses_N = weight_N * clipped(u_N, batch["advantage_T"][rows], 0.2, 0.2)
        return losses_N.sum() / len(scored)  # counted before rejection

    assert_same_push(algorithm, batch, loss_of)


def test_refused():
    for level in ("token", "sequence"):
        with pytest.raises(UserError, match=r"clamping takes metric='ratio' and agg='mean'"):
            areal_decoupled_ppo(level=level, action="clamp", agg="sum")
    with pytest.raises(UserError, match="no weight to bound"):
        areal_decoupled_ppo(decoupled=False, action="mask")
