"""Trees and table policies: probabilities, exact slopes, values, and bad shapes."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from strop.auditing.bench import TableModel, TrueCritic, node_of_tokens
from strop.auditing.tree import Tree, paths_of, random_policy, random_tree
from strop.engines.base import Answer, Event, Request
from strop.method.part import Draw
from strop.parts.rollout.base import assemble
from strop.support.errors import UserError

shapes = st.tuples(st.integers(1, 4), st.integers(2, 3), st.booleans(), st.integers(1, 3))


def test_a_ragged_tree_ends_with_action_0() -> None:
    assert paths_of(3, 2, ragged=True) == [(0,), (1, 0), (1, 1, 0), (1, 1, 1)]
    assert paths_of(2, 2, ragged=False) == list(itertools.product((0, 1), repeat=2))


@settings(max_examples=25, deadline=None)
@given(shapes, st.integers(0, 1000))
def test_slopes_are_those_of_finite_differences(shape: tuple, seed: int) -> None:
    depth, branching, ragged, prompts = shape
    tree = random_tree(depth, branching, num_prompts=prompts, ragged=ragged, seed=seed)
    theta = random_policy(tree, seed=seed)
    assert tree.logp_PL(theta).exp().sum(1) == pytest.approx(1.0)
    truth = tree.truth(theta)
    way = torch.randn(theta.shape, generator=torch.Generator().manual_seed(seed)).double()
    after, before = (tree.truth(theta + sign * 1e-5 * way) for sign in (1, -1))
    for name in ("success", "entropy"):
        measured = (getattr(after, name) - getattr(before, name)) / 2e-5
        slope = getattr(truth, f"{name}_slope")
        assert measured == pytest.approx(float((slope * way).sum()), abs=1e-7)


@given(shapes, st.floats(0.01, 0.99))
def test_a_policy_has_the_success_that_was_asked_for(shape: tuple, success: float) -> None:
    depth, branching, ragged, prompts = shape
    tree = random_tree(depth, branching, num_prompts=prompts, ragged=ragged)
    theta = random_policy(tree, success)
    reached_P = (tree.logp_PL(theta).exp() * tree.rewards_PL).sum(1)
    assert reached_P.tolist() == pytest.approx([success] * prompts, abs=1e-9)


def test_values_are_expected_rewards_from_a_node_on() -> None:
    tree = Tree(2, 2, torch.tensor([[1.0, 0.0, 0.0, 4.0]]))
    theta = torch.tensor([[0.0, 0.0, 0.0], [0.0, 0.0, 1.0986122886681098]])  # 1:1, 1:1, 1:3
    assert tree.values_N(theta).tolist() == pytest.approx([1.75, 0.5, 3.0])
    assert tree.truth(theta).success == pytest.approx(1.75)


@settings(max_examples=20, deadline=None)
@given(shapes, st.integers(0, 99))
def test_the_model_has_the_trees_probabilities(shape: tuple, seed: int) -> None:
    depth, branching, ragged, prompts = shape
    tree = random_tree(depth, branching, num_prompts=prompts, ragged=ragged, seed=seed)
    theta = random_policy(tree, seed=seed)
    model = TableModel(tree, theta)
    logp_PL = tree.logp_PL(theta)
    for prompt, (row, path) in itertools.product(range(prompts), enumerate(tree.paths)):
        ids = torch.tensor([[*tree.prompt_ids(prompt), *path]])
        logits = model.head(model.trunk(ids).last_hidden_state)[0, tree.prompt_length - 1 : -1]
        logp = logits.log_softmax(-1)[torch.arange(len(path)), list(path)].sum()
        assert logp.item() == pytest.approx(float(logp_PL[prompt, row]))


def test_a_true_critic_knows_the_value_before_every_token() -> None:
    tree = random_tree(3, 2, num_prompts=3, seed=1)
    theta = random_policy(tree, seed=1)
    answers = [(0, (1, 0, 1)), (2, (0, 1)), (2, (1, 1, 1))]
    told = [
        Answer(
            Request(tree.prompt_ids(prompt), 3),
            (Event(i, path, (0.0,) * len(path), 0, (), (), (), "stop"),),
        )
        for i, (prompt, path) in enumerate(answers)
    ]
    batch = assemble([Draw(0, 1), Draw(2, 2)], told)
    nodes = node_of_tokens(tree, batch)[batch["mask_T"]].tolist()
    wanted = [tree.node(prompt, path[:at]) for prompt, path in answers for at in range(len(path))]
    assert nodes == wanted
    found = TrueCritic(tree, theta, ("value_T",)).columns(batch, ("value_T",))["value_T"]
    assert found[batch["mask_T"]].tolist() == tree.values_N(theta)[wanted].tolist()
    assert not found[~batch["mask_T"]].any()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: random_tree(0, 2), "depth of at least 1"),
        (lambda: random_tree(2, 1), "2 branches"),
        (lambda: random_tree(13, 2), "at most 4,096"),
        (lambda: random_tree(2, 2, share=1.0), "share of right paths"),
        (lambda: Tree(1, 2, torch.zeros(1, 3)), "one number a path"),
        (lambda: random_policy(random_tree(2, 2), 1.5), "success of 1.5"),
    ],
)
def test_what_is_no_tree_is_refused(make, message: str) -> None:
    with pytest.raises(UserError, match=message):
        make()


def test_a_mean_ratio_is_that_of_all_tokens_of_three_prompts() -> None:
    tree = random_tree(2, 2, num_prompts=3)
    theta, drawn = (random_policy(tree, seed=seed) for seed in (1, 2))
    ours, theirs = theta.softmax(0), drawn.softmax(0)
    total = 0.0
    for prompt, path in itertools.product(range(3), tree.paths):
        places = [(action, tree.node(prompt, path[:at])) for at, action in enumerate(path)]
        chance = math.prod(float(theirs[place]) for place in places)
        total += chance * sum(float(ours[place] / theirs[place]) for place in places)
    assert tree.mean_ratio(theta, drawn) == pytest.approx(total / (3 * 2))
