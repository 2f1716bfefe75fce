"""The error of a group's estimate by its size: enumerated, and by Hoeffding's formula.

The step of a group of G answers is a U-statistic of order 2 with the kernel
h(a, b) = (r_a - r_b)(s_a - s_b) / 2, s the gradient of an answer's log-probability (arXiv
2603.01162). With zeta_1 the variance of E_b h(a, b) and zeta_2 that of h,
Var = 4 (G - 2) / (G (G - 1)) zeta_1 + 2 / (G (G - 1)) zeta_2 (Hoeffding, Annals of Mathematical
Statistics 19, 1948).
"""

import math

import pytest
import torch

import strop
from strop.auditing.estimate import Limits, audit
from strop.auditing.tree import Tree, random_policy, random_tree
from strop.method import notation

FEW = """
import dataclasses

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.sampling.draw_in_shuffled_order import DrawInShuffledOrder
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo


@inherits(grpo)
def few(**parent) -> Algorithm:
    '''Fewer answers than the parameter that it inherits says.'''
    sampling = (Use(DrawInShuffledOrder(num_rollouts=4)),)
    return dataclasses.replace(grpo(**parent), sampling=sampling)
"""


def score_LAN(tree, theta):
    """The gradient of every answer's log-probability."""
    jacobian = torch.autograd.functional.jacobian(lambda x: tree.logp_PL(x)[0], theta)
    return jacobian.double()


def zetas(tree, theta):
    """Both variances over the squared length of the gradient, and the oracle's: the variance of
    (r - J) s, of an estimate that knows the expected reward.
    """
    p_L, r_L = tree.logp_PL(theta)[0].exp(), tree.rewards_PL[0].double()
    score = score_LAN(tree, theta).flatten(1)
    gap = (r_L[:, None] - r_L)[:, :, None] * (score[:, None] - score[None]) / 2
    mean = torch.einsum("a,b,abd->d", p_L, p_L, gap)
    first = torch.einsum("b,abd->ad", p_L, gap)
    square = float(mean.square().sum())
    one = float(p_L @ first.square().sum(1)) / square - 1
    two = float(torch.einsum("a,b,abd->", p_L, p_L, gap.square())) / square - 1
    known = (r_L - p_L @ r_L)[:, None] * score
    return one, two, float(p_L @ known.square().sum(1)) / square - 1


def closed(size, one, two, prompts=1):
    """N times the error of a mean over groups of N answers in all, of prompts that are drawn."""
    within = (4 * (size - 2) * one + 2 * two) / (size - 1)
    return prompts * within + size * (prompts - 1)


def audited(recipe, tree, theta, size):
    algorithm = notation.recipe(f"{recipe}(num_rollouts={size})")
    return audit(algorithm, tree, theta, group_size=size, limits=Limits(most=1300))


@pytest.mark.parametrize("success", [0.1, 0.5])
@pytest.mark.parametrize("size", [2, 3, 6])
def test_the_error_is_hoeffdings(size, success):
    tree = random_tree(3, 2, ragged=True, seed=2)
    theta = random_policy(tree, success, seed=2)
    one, two, oracle = zetas(tree, theta)
    found = audited("rloo", tree, theta, size)
    assert found.exact
    assert found.error.value == pytest.approx(closed(size, one, two), rel=1e-6)
    assert 4 * one == pytest.approx(oracle, rel=1e-9)  # what is left with ever larger groups
    assert two > 2 * one  # so that they lower the error at a given prompt


def test_the_groups_own_mean_shortens_the_same_statistic():
    tree = random_tree(3, 2, ragged=True, seed=2)
    theta = random_policy(tree, 0.3, seed=2)
    one, two, _ = zetas(tree, theta)
    for size in (2, 5):
        found = audited("dr_grpo", tree, theta, size)
        assert found.error.value == pytest.approx(closed(size, one, two), rel=1e-6)
        assert found.scale.value * tree.depth == pytest.approx((size - 1) / size, abs=1e-5)


def test_the_best_size_of_drawn_prompts_is_the_formulas():
    """Least at G - 1 = sqrt((2 zeta_2 - 4 zeta_1) P / (P - 1)), however many answers there are."""
    twice = Tree(1, 2, torch.tensor([[0.0, 1.0]] * 2))
    one_tree = Tree(1, 2, twice.rewards_PL[:1])
    theta = random_policy(one_tree, 0.2, seed=4)
    one, two, _ = zetas(one_tree, theta)
    both = torch.cat([theta, theta], dim=1)
    found = {size: audited("rloo", twice, both, size) for size in range(2, 6)}
    for size, each in found.items():
        assert each.exact
        assert each.error.value == pytest.approx(closed(size, one, two, 2), rel=1e-6)
    best = 1 + math.sqrt((2 * two - 4 * one) * 2)
    least = min(found, key=lambda size: found[size].error.value)
    assert 2 < least < 5
    assert abs(least - best) < 1


def test_a_sampler_with_fewer_answers_than_its_recipes_parameter_is_audited_at_the_group(tmp_path):
    (tmp_path / "own.py").write_text(FEW)
    found = strop.audit([f"{tmp_path}/own.py:few", "grpo"], group=3, success=0.3, staleness=0)
    few, grpo = str(found).split("\n\n")
    assert few.splitlines()[1:] == grpo.splitlines()[1:]
