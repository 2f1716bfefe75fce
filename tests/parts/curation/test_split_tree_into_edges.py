import torch
from builders import run
from hypothesis import given
from hypothesis import strategies as st
from trees import tree_batch

from strop.parts.advantage.credit.credit_value_steps import CreditValueSteps
from strop.parts.curation.split_tree_into_edges import SplitTreeIntoEdges
from strop.parts.probe.back_up_tree_values import BackUpTreeValues

TREES = st.recursive(
    st.sampled_from([0.0, 1.0, 0.5, None]), lambda inner: st.lists(inner, min_size=1, max_size=3),
    max_leaves=12,
)  # fmt: skip


def split(trees):
    batch, paths = tree_batch(trees)
    value_T, std_T = run(BackUpTreeValues(), batch).value
    batch = batch.set(prefix_value_T=value_T, value_std_T=std_T)
    batch = batch.set(advantage_T=run(CreditValueSteps(), batch).value,
                      id_T=torch.arange(batch.size("T")))  # fmt: skip
    return batch, paths, run(SplitTreeIntoEdges(), batch)


@given(trees=st.lists(st.lists(TREES, min_size=1, max_size=3), min_size=1, max_size=3))
def test_each_edge_with_an_advantage_is_a_rollout_once(trees):
    batch, paths, result = split(trees)
    edges, row, seen, expected = result.value.add, 0, set(), []
    for i, (group, path) in enumerate(paths):
        begin = row
        for k in range(len(path)):
            edge, credit = (group, path[: k + 1]), float(batch["advantage_T"][row])
            if edge not in seen and credit != 0 and batch["scored_B"][i]:
                expected.append((list(range(begin, row + 2)), credit, group))
            seen.add(edge)
            row += 2
    found = [
        (
            edges["id_T"][edges["rollout_T"] == i].tolist(),
            float(edges["reward_B"][i]),
            int(edges["uid_P"][edges["group_B"][i]]) - int(batch["uid_P"][0]),
        )
        for i in range(edges.size("B"))
    ]
    assert found == expected
    assert (edges["length_B"] == 2).all()
    assert (edges["fork_at_B"] == -1).all()
    assert not result.value.keep_B.any()
    assert result.metrics["tree/edges"] >= len(expected)


def test_metrics_count_the_edges():
    _, _, result = split([[[1, 0], [0, 0]]])
    assert result.metrics == {"tree/edges": 6.0, "tree/frac_edges_zero": 1 - 4 / 6}
