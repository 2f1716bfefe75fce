import math
import statistics

import pytest
import torch
from builders import run
from hypothesis import given
from hypothesis import strategies as st
from trees import follow, tree_batch, value

from strop.batch.batch import Batch
from strop.parts.advantage.credit.credit_value_steps import CreditValueSteps
from strop.parts.probe.back_up_tree_values import BackUpTreeValues


def backed_up(trees, **options):
    batch, paths = tree_batch(trees)
    value_T, std_T = run(BackUpTreeValues(), batch).value
    batch = batch.set(prefix_value_T=value_T, value_std_T=std_T)
    return batch.set(advantage_T=run(CreditValueSteps(**options), batch).value), paths


def test_worked_example():
    tree = [[1, 0], [0, 0]]
    batch, _ = backed_up([tree])
    assert batch["prefix_value_T"][[0, 2, 8, 10]].tolist() == [0.25, 0.5, 0.25, 0.0]
    assert batch["advantage_T"].tolist() == [
        0.25, 0.25, 0.5, 0.5, 0.25, 0.25, -0.5, -0.5, -0.25, -0.25, 0, 0, -0.25, -0.25, 0, 0,
    ]  # fmt: skip
    batch, _ = backed_up([tree], normalize_std=True)
    expected = [1, 1, 1, 1, 1, 1, -1, -1, -1, -1, 0, 0, -1, -1, 0, 0]
    assert batch["advantage_T"].tolist() == pytest.approx(expected, abs=1e-6)


TREES = st.recursive(
    st.sampled_from([0.0, 1.0, 0.5, None]), lambda inner: st.lists(inner, min_size=1, max_size=3),
    max_leaves=12,
)  # fmt: skip


@given(trees=st.lists(st.lists(TREES, min_size=1, max_size=3), min_size=1, max_size=3))
def test_matches_slow_recursion(trees):
    batch, paths = backed_up(trees)
    deviation_T = batch["value_std_T"]
    found = iter(zip(batch["advantage_T"].tolist(), deviation_T.tolist(), strict=True))
    for row, (group, path) in enumerate(paths):
        scored = bool(batch["scored_B"][row])
        for k in range(len(path)):
            node = follow(trees[group], path[:k])
            below = [v for v in map(value, node) if v is not None]
            (first, std), (second, none) = next(found), next(found)
            step = value(follow(node, path[k : k + 1])) - value(node) if scored else 0.0
            assert first == second == pytest.approx(step, abs=1e-12)
            assert math.isnan(none)
            if below:
                assert std == pytest.approx(statistics.pstdev(below), abs=1e-12)
            else:
                assert math.isnan(std)


@given(trees=st.lists(st.lists(TREES, min_size=1, max_size=3), min_size=1, max_size=3))
def test_order_of_rollouts_does_not_matter(trees):
    batch, _ = backed_up(trees)
    order = torch.arange(batch.size("B")).flip(0)
    moved = batch.take(order)
    value_T, std_T = run(BackUpTreeValues(), moved).value
    for found_T, name in ((value_T, "prefix_value_T"), (std_T, "value_std_T")):
        torch.testing.assert_close(found_T, moved[name], equal_nan=True)


def test_two_ways_to_a_state_are_an_edge_of_each_of_the_nodes_above_it():
    """Rollouts 0 and 1 part after the first turn and meet in state 3; rollout 2 ends apart."""
    batch = Batch(
        {
            "turn_T": torch.arange(8),
            "mask_T": torch.ones(8, dtype=torch.bool),
            "rollout_K": torch.tensor([0, 0, 0, 1, 1, 1, 2, 2]),
            "index_K": torch.tensor([0, 1, 2, 0, 1, 2, 0, 1]),
            "state_K": torch.tensor([0, 1, 3, 0, 2, 3, 0, 2]),
            "group_B": torch.zeros(3, dtype=torch.int64),
            "uid_P": torch.tensor([7]),
            "draw_P": torch.tensor([0]),
            "reward_B": torch.tensor([1.0, 0.0, 0.0]),
            "scored_B": torch.ones(3, dtype=torch.bool),
        }
    )
    value_T, std_T = run(BackUpTreeValues(), batch).value
    # state 3: (1 + 0) / 2; state 1 leads to it alone, state 2 to it and to a leaf of 0
    assert value_T.tolist() == [0.375, 0.5, 0.5, 0.375, 0.25, 0.5, 0.375, 0.25]
    assert std_T.tolist() == [0.125, 0, 0.5, 0.125, 0.25, 0.5, 0.125, 0.25]
