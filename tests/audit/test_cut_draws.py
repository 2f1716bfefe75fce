"""Sampling with top_p, top_k or min_p: the mean effect of a step, compared with autograd."""

import math

import pytest
import torch

from strop.auditing.estimate import Audit, audit
from strop.auditing.tree import Tree, cut, random_policy, random_tree
from strop.engines.rules import MinP, TopK, TopP
from strop.training.settings import config

TREE = random_tree(2, 3, ragged=True, seed=2)
THETA = random_policy(TREE, 0.4, seed=2)
CUTS = {"top_k": (2, TopK(2)), "top_p": (0.7, TopP(0.7)), "min_p": (0.5, MinP(0.5))}
MASKS = ("ignore", "weigh", "renormalise")


def found(mask, cuts, recipe="rloo", tree=TREE, theta=THETA, updates=1, **options) -> Audit:
    given = {f"rollout.{name}": value for name, value in cuts.items()}
    given |= {"rollout.sampling_mask": mask, "sampling.num_rollouts": 2}
    given["plan.num_epochs"] = updates
    method = config.make({"recipe": recipe, "algorithm": given}).build()
    return audit(method, tree, theta, group_size=2, **options)


def mean_step(mask, rule):
    """E d of leave-one-out advantages: sum over answers of q (R - J_q) sum_t w_t grad logp_t."""
    theta = THETA.clone().requires_grad_()
    q_AN = cut(THETA, (rule,)).softmax(0)
    mass_N = torch.where(q_AN > 0, THETA.softmax(0), 0).sum(0)
    logp_AN = theta.masked_fill(q_AN == 0, -math.inf) if mask == "renormalise" else theta
    logp_AN = logp_AN.log_softmax(0)
    q_L = TREE.logp_PL(cut(THETA, (rule,)))[0].exp()
    reward_L = TREE.rewards_PL[0].double()
    total = torch.zeros((), dtype=torch.float64)
    for path, q, reward in zip(TREE.paths, q_L, reward_L, strict=True):
        for at, action in enumerate(path):
            node = TREE.node(0, path[:at])
            if q > 0:
                weight = mass_N[node] if mask == "weigh" else 1.0
                total = total + q * (reward - q_L @ reward_L) * weight * logp_AN[action, node]
    return torch.autograd.grad(total, theta)[0]


def towards(step, slope):
    scale = float((step * slope).sum() / slope.square().sum())
    return scale, float((step - scale * slope).norm() / (abs(scale) * slope.norm()))


@pytest.mark.parametrize("name", CUTS)
def test_the_mean_step_is_that_of_autograd(name):
    value, rule = CUTS[name]
    slope = TREE.success_slope(THETA, (rule,))
    whole = TREE.success_slope(THETA)
    for mask in MASKS:
        told, step = found(mask, {name: value}), mean_step(mask, rule)
        assert told.exact
        assert (told.cut_scale.value, told.cut_bias.value) == pytest.approx(towards(step, slope),
                                                                            abs=1e-6)  # fmt: skip
        assert (told.scale.value, told.bias.value) == pytest.approx(towards(step, whole), abs=1e-6)
    assert (told.cut_scale.value, told.cut_bias.value) == pytest.approx((1, 0), abs=1e-6)
    assert found("ignore", {name: value}).cut_bias.value > 0.02


def test_one_token_by_hand():
    """p = .5, .3, .15, .05, of which two stay: tokens are .8 times as likely as drawn. With one
    token there is no later one that the cut could change: only weighing changes the length.
    """
    tree = Tree(1, 4, torch.tensor([[1.0, 0.0, 1.0, 0.0]]))
    theta = torch.tensor([[0.5], [0.3], [0.15], [0.05]], dtype=torch.float64).log()
    told = {mask: found(mask, {"top_k": 2}, tree=tree, theta=theta) for mask in MASKS}
    assert [each.ratio for each in told.values()] == pytest.approx([0.8, 0.8, 1.0])
    assert [each.cut_scale.value for each in told.values()] == pytest.approx([1, 0.8, 1])
    assert [each.cut_bias.value for each in told.values()] == pytest.approx([0] * 3, abs=1e-6)
    assert [each.ess for each in told.values()] == pytest.approx([1] * 3)
    # J = p1 + p3: what was never drawn moves too, by p (R - J)
    slope = [0.5 * 0.35, -0.3 * 0.65, 0.15 * 0.35, -0.05 * 0.65]
    assert tree.success_slope(theta)[:, 0].tolist() == pytest.approx(slope)


def test_cuts_that_cut_nothing_change_nothing():
    plain = found("ignore", {})
    for mask in MASKS:
        told = found(mask, {"top_k": 3})
        assert told.cut_bias.value == told.bias.value
        assert (told.scale, told.bias, told.noise, told.ratio) == (
            plain.scale, plain.bias, plain.noise, 1.0
        )  # fmt: skip
    assert math.isnan(plain.cut_bias.value)


def test_the_first_update_over_kept_sets_has_ratio_one_and_later_ones_do_not_leave_the_set():
    """Clipping at almost nothing: where a ratio was not 1 at first, its token would be silent."""
    tight = {"terms.policy.objective.clip_low": 1e-9, "terms.policy.objective.clip_high": 1e-9}
    method = {"rollout.top_k": 2, "rollout.sampling_mask": "renormalise", "plan.num_epochs": 3}
    build = {"recipe": "grpo", "algorithm": {**method, **tight, "sampling.num_rollouts": 2}}
    told = audit(config.make(build).build(), TREE, THETA, group_size=2)
    build["algorithm"]["plan.num_epochs"] = 1
    once = audit(config.make(build).build(), TREE, THETA, group_size=2)
    assert told.cut_scale.value == pytest.approx(once.cut_scale.value / 3, rel=0.05)
