import math
import statistics

import pytest
import torch
from builders import assert_same_push, clipped, run, stages
from fakes.services import FakeServices
from hypothesis import given
from hypothesis import strategies as st
from trees import follow, tree_batch, value

from strop import functional as F
from strop.method import part as parts
from strop.method.check import check
from strop.parts.advantage.credit.compare_nodes_of_depth import CompareNodesOfDepth
from strop.parts.probe.back_up_tree_values import BackUpTreeValues
from strop.parts.selection.prune_tree_edges import PruneTreeEdges
from strop.recipes.branch_grpo import branch_grpo
from strop.support.errors import UserError

TOKENS = 2  # of an edge
TREE = [[1, 0], [1, 1]]


def credited(trees, **options):
    """The tree's batch with the credit of its edges, and the paths of its rollouts."""
    batch, paths = tree_batch(trees, TOKENS)
    value_T, std_T = run(BackUpTreeValues(), batch).value
    batch = batch.set(prefix_value_T=value_T, value_std_T=std_T)
    credit_T, depth_T = run(CompareNodesOfDepth(**options), batch).value
    return batch.set(credit_T=credit_T, depth_T=depth_T), paths


def learnt(algorithm, trees, step=1):
    """The batch of edges after advantage and selection."""
    batch, _ = tree_batch(trees, TOKENS)
    rng = torch.Generator().manual_seed(0)
    logp_T = -torch.rand(batch.size("T"), generator=rng, dtype=torch.float64) - 0.1
    batch = batch.set(
        logp_behavior_T=logp_T, logp_sampler_T=logp_T, logp_old_T=logp_T, logp_T=logp_T + 0.2,
        max_length=torch.tensor(9), step=torch.tensor(step), id_T=torch.arange(batch.size("T")),
        origin_T=torch.zeros_like(batch["turn_T"]),
    )  # fmt: skip
    for use in algorithm.reward[1:]:
        batch = parts.write(batch, use, parts.call(use, batch))
    for use in algorithm.curation:
        curated = parts.call(use, batch, rng=rng, services=FakeServices()).value
        batch = batch.keep(curated.keep_B).join(curated.add)
    return stages(algorithm, batch)


def test_worked_example():
    # two nodes of 0.5 and 1, then four leaves of mean 3/4 and deviation 1/2
    first, leaves = F.tree_edges("branch_grpo", tree=TREE)
    torch.testing.assert_close(first, torch.tensor([-1, 1]).double() / math.sqrt(2))
    torch.testing.assert_close(leaves, torch.tensor([0.5, -1.5, 0.5, 0.5]).double())
    # a step that does not branch is a depth of its own
    chain = F.tree_edges("branch_grpo", tree=[[[1], [0]], [[1], [1]]])
    torch.testing.assert_close(chain[2], chain[1])
    alone, below = F.tree_edges("branch_grpo", tree=[[1, 0]])
    assert alone.tolist() == [0]  # one node: before the first branching nothing is learnt
    assert below.tolist() == pytest.approx([math.sqrt(0.5), -math.sqrt(0.5)])


def test_a_tree_that_branches_once_is_grpo():
    scores = torch.tensor([1.0, 0.0, 0.25, 0.5])
    own = F.advantages("branch_grpo", tree=scores.tolist())
    grpo = F.advantages(
        "grpo", rewards=scores, groups=torch.zeros(4), params={"eps": 1e-8, "std": "unbiased"}
    )
    torch.testing.assert_close(own.squeeze(1).float(), grpo)


def test_edges():
    batch, _ = credited([[1, 0, None], [1, [1, 1]]], clamp=0.5)
    credit_T = batch["credit_T"]
    assert credit_T[:6].tolist() == [0.5, 0.5, -0.5, -0.5, 0, 0]  # clamped; no score
    assert not credit_T[6:].any()  # all alike
    near = [0.5, 0.5 + 1e-7]
    assert not credited([near])[0]["credit_T"].any()
    assert batch["depth_T"][6:].tolist() == [0, 0, 0, 0, 1, 1, 0, 0, 1, 1]
    with pytest.raises(UserError, match="clamp"):
        CompareNodesOfDepth(clamp=-1.0)


TREES = st.recursive(
    st.sampled_from([0.0, 1.0, 0.5, None]), lambda inner: st.lists(inner, min_size=1, max_size=3),
    max_leaves=10,
)  # fmt: skip


@given(trees=st.lists(st.lists(TREES, min_size=1, max_size=3), min_size=1, max_size=3))
def test_matches_slow_loop(trees):
    batch, paths = credited(trees)
    nodes = [{} for _ in trees]  # of each tree: path -> value
    for group, path in paths:
        for depth in range(1, len(path) + 1):
            nodes[group][path[:depth]] = value(follow(trees[group], path[:depth]))
    found = iter(batch["credit_T"].tolist())
    for row, (group, path) in enumerate(paths):
        for depth in range(1, len(path) + 1):
            peers = [v for p, v in nodes[group].items() if len(p) == depth and v is not None]
            own, std = nodes[group][path[:depth]], statistics.stdev(peers) if peers[1:] else 0.0
            expected = 0.0
            if batch["scored_B"][row] and std > 1e-6:
                expected = (own - statistics.mean(peers)) / (std + 1e-8)
            assert [next(found) for _ in range(TOKENS)] == pytest.approx([expected] * 2, abs=1e-9)


def test_each_edge_learns_once_with_grpos_loss():
    algorithm = branch_grpo()
    batch = learnt(algorithm, [TREE, [[1, 0], 0]])
    edges = [
        *F.tree_edges("branch_grpo", tree=TREE),
        *F.tree_edges("branch_grpo", tree=[[1, 0], 0]),
    ]
    expected = sorted(a for level in edges for a in level.tolist() if a)
    assert sorted(batch["reward_B"].tolist()) == pytest.approx(expected)
    assert batch["gradient_T"].equal(batch["mask_T"])

    def loss_of(logp_T):
        total = logp_T.new_zeros(())
        rows = batch["mask_T"].nonzero().squeeze(1).tolist()
        for row in rows:
            ratio = (logp_T[row] - batch["logp_old_T"][row]).exp()
            edge = clipped(ratio, batch["advantage_T"][row], 0.2, 0.2)
            total = total + edge / (TOKENS * batch.size("B"))
        return total

    assert_same_push(algorithm, batch, loss_of)


def kept(part, batch):
    """Rollouts that learn."""
    selected = run(part, batch).value
    assert selected.gradient_T.equal(selected.denominator_T)
    return sorted({*batch["rollout_T"][selected.gradient_T].tolist()})


def pruned_batch(advantages, depths, step=1):
    batch, _ = tree_batch([[0.0] * len(advantages)], 1)
    return batch.set(
        advantage_B=torch.tensor(advantages), depth_T=torch.tensor(depths), step=torch.tensor(step),
        rollout_T=batch["turn_T"],
    )  # fmt: skip


def test_width():
    batch = pruned_batch([0.0, 0.1, -2.0, 3.0, -0.2, 1.0], [0, 2, 2, 2, 2, 2])
    assert kept(PruneTreeEdges(below=2, share=0.8), batch) == [0, 2, 3, 4, 5]  # two best, two worst
    assert kept(PruneTreeEdges(below=2, share=0.6), batch) == [0, 2, 3, 4]  # one best, two worst
    assert kept(PruneTreeEdges(below=2, share=0.0), batch) == [0, 2, 3]
    assert kept(PruneTreeEdges(below=2, share=1.0), batch) == [*range(6)]
    wide = pruned_batch([1.0] * 100, [2] * 100)  # 0.29 times 100 is a little less than 29
    assert len(kept(PruneTreeEdges(share=0.29), wide)) == 29
    assert run(PruneTreeEdges(below=2, share=0.0), batch).metrics == {
        "tree/frac_edges_pruned": pytest.approx(0.5)
    }


def test_depths_move_up():
    part = PruneTreeEdges((12, 14), 30, 9, 1.0)
    assert [part.pruned_at(step) for step in (0, 29, 30, 60, 300)] == [
        [12, 14], [12, 14], [11, 13], [10, 12], [9, 11],
    ]  # fmt: skip
    depths = [9, 10, 11, 12, 13, 14]
    assert kept(part, pruned_batch([1.0] * 6, depths)) == [0, 1, 2, 4]
    assert kept(part, pruned_batch([1.0] * 6, depths, step=31)) == [0, 1, 3, 5]
    with pytest.raises(UserError, match="depths"):
        PruneTreeEdges((-1,))


def test_the_recipe_prunes_the_last_level():
    algorithm = branch_grpo(width=0.5, branching=(2, 2))
    batch = learnt(algorithm, [TREE, [[1, 0], 0]])
    learning = {*batch["rollout_T"][batch["gradient_T"]].tolist()}
    # 4 first edges; of the 4 + 2 leaves of the last level the highest, and the two lowest
    assert len(learning) == 4 + 3
    assert batch["advantage_B"].argmin().item() in learning


def test_composes():
    algorithm = branch_grpo(branching=(4, 2), segment_tokens=8, width=0.5, pruned_depths=(1,))
    check(algorithm)
    assert algorithm.rollout.part.branching == (4, 2)
    (prune,) = (use.part for use in algorithm.selection)
    assert (prune.depths, prune.share, prune.below) == ((1,), 0.5, 1)
    assert branch_grpo(late=-3).selection[0].part.below == 1
    with pytest.raises(UserError, match="level of 2, it is 2"):
        branch_grpo(branching=(4, 2), late=2)
    with pytest.raises(UserError, match=r"interval=5 would have no effect.*below late=1"):
        branch_grpo(branching=(4, 2), pruned_depths=(1,), interval=5)
    (prune,) = branch_grpo(branching=(4, 2), pruned_depths=(1,), interval=5, late=0).selection
    assert prune.part.pruned_at(5) == [0]


def test_tokens_of_a_tree_count_once(lab, runner, tmp_path):
    """The batch has edges in place of answers; what was sampled are the leaves' own tokens."""
    plain = lab.raw("branch_grpo(branching=(2, 2))", training={"steps": 2, "rollouts_every": 0})
    del plain["algorithm"]["sampling.num_rollouts"]
    plain["algorithm"]["rollout.segment_tokens"] = 2
    for line in runner.go(runner.start(plain, tmp_path / "run")).seen:
        edges = line["completions/mean_length"] * line["num_rollouts"]
        assert line["data/tokens_sampled"] == pytest.approx(edges)
        assert line["rollout/tokens_shared"] > 0
