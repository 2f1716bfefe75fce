import math

import pytest
import torch
from builders import assert_same_push, clipped, pushed, rows_learning, stages
from fakes.services import FakeServices
from trees import follow, tree_batch, value

from strop.method import part as parts
from strop.method.check import check
from strop.recipes.grpo import grpo
from strop.recipes.spo_tree import spo_tree

TREES = [[[1, 0, 0], [0, 0], 1], [[0.5, 1], [1, [0, 1]]], [[1, 1], [1]]]
TOKENS = 3  # of an edge


def learnt(algorithm, trees, seed=0, sure=0.3):
    """The batch after advantage and selection; a share `sure` of the drawn tokens was certain.

    `id_T` is the token's row in the tree's own batch, where every leaf is a rollout.
    """
    batch, paths = tree_batch(trees, TOKENS)
    rng = torch.Generator().manual_seed(seed)

    def noise():
        return torch.randn(batch.size("T"), generator=rng, dtype=torch.float64)

    # Copies of an edge's tokens have equal log-probabilities, as an engine would report them.
    own = {}
    logp_T = -noise().abs() - 0.2
    logp_T = torch.where(torch.rand(batch.size("T"), generator=rng) < sure, -0.01, logp_T)
    row = 0
    for group, path in paths:
        for k in range(len(path)):
            for token in range(TOKENS):
                key = (group, path[: k + 1], token)
                logp_T[row] = logp_T[own.setdefault(key, row)]
                row += 1
    batch = batch.set(
        logp_behavior_T=logp_T, logp_sampler_T=logp_T, logp_T=logp_T + 0.2 * noise(),
        logp_ref_T=logp_T + 0.3 * noise(), max_length=torch.tensor(9), step=torch.tensor(1),
        id_T=torch.arange(batch.size("T")), origin_T=torch.zeros_like(batch["turn_T"]),
    )  # fmt: skip
    for use in algorithm.reward[1:]:
        batch = parts.write(batch, use, parts.call(use, batch))
    for use in algorithm.curation:
        first = {"state": use.part.init()} if hasattr(use.part, "init") else {}
        curated = parts.call(use, batch, rng=rng, services=FakeServices(), **first).value
        batch = batch.keep(curated.keep_B).join(curated.add)
    return stages(algorithm, batch), paths


def edges(paths, trees, grpo_form=False):
    """Row of an edge's first token -> its advantage, of every edge that moves the value."""
    found, seen, row = {}, set(), 0
    for group, path in paths:
        for k in range(len(path)):
            edge = (group, path[: k + 1])
            node = follow(trees[group], path[:k])
            step = value(node[path[k]]) - value(node)
            if edge not in seen and step != 0:
                if grpo_form:
                    below = [value(child) for child in node]
                    mean = sum(below) / len(below)
                    step /= math.sqrt(sum((v - mean) ** 2 for v in below) / len(below)) + 1e-8
                found[row] = step
            seen.add(edge)
            row += TOKENS
    return found


@pytest.mark.parametrize("mode", ["rloo", "grpo"])
def test_loss_is_that_of_edges_as_samples_of_their_own(mode):
    algorithm = spo_tree(mode=mode, beta=0.05)
    batch, paths = learnt(algorithm, TREES)
    known = {
        row + k: step
        for row, step in edges(paths, TREES, mode == "grpo").items()
        for k in range(TOKENS)
    }
    drawn = {int(batch["id_T"][t]): t for t in batch["mask_T"].nonzero().squeeze(1).tolist()}
    assert drawn.keys() == known.keys()
    raw = {
        t: known[id]
        for id, t in drawn.items()
        if float(batch["logp_behavior_T"][t]) < math.log(0.9)
    }
    assert rows_learning(batch) == sorted(raw)
    assert batch["denominator_T"].equal(batch["gradient_T"])
    mean = sum(raw.values()) / len(raw)
    scale = math.sqrt(sum((v - mean) ** 2 for v in raw.values()) / (len(raw) - 1) + 1e-8)
    white = {row: (step - mean) / scale for row, step in raw.items()}
    num_edges = len(set(batch["rollout_T"][list(white)].tolist()))

    def loss_of(logp_T):
        total = logp_T.new_zeros(())
        for row, step in white.items():
            ratio = (logp_T[row] - batch["logp_sampler_T"][row]).exp()
            d = batch["logp_ref_T"][row] - logp_T[row]
            advantage = torch.tensor(step, dtype=torch.float64)
            total = total + clipped(ratio, advantage, 0.2, 0.2) / len(white)
            total = total + 0.05 * (d.exp() - d - 1) / num_edges
        return total

    assert_same_push(algorithm, batch, loss_of)


def test_an_edge_has_the_text_before_it_as_context():
    batch, paths = learnt(spo_tree(), TREES, sure=0.0)
    starts, row = {}, 0
    for group, path in paths:
        for k in range(len(path)):
            starts.setdefault((group, path[: k + 1]), (row, row - k * TOKENS))
            row += TOKENS
    expected = sorted(
        list(range(begin, end + TOKENS))
        for edge, (end, begin) in starts.items()
        if end in edges(paths, TREES)
    )
    found = [batch["id_T"][batch["rollout_T"] == i].tolist() for i in range(batch.size("B"))]
    assert sorted(found) == expected
    assert (batch["length_B"] == TOKENS).all()
    assert batch.size("K") == batch.size("B")


def test_token_weights_sum_to_those_of_the_edge_samples():
    algorithm = spo_tree(beta=0.0)
    batch, _ = learnt(algorithm, TREES)
    on_policy = batch.set(logp_T=batch["logp_sampler_T"])
    _, found, _ = pushed(algorithm, on_policy)
    # c_t = whitened advantage / number of tokens
    weight_T = -found["logp_T"]
    assert not weight_T[~batch["mask_T"]].any()
    assert float(weight_T.sum()) == pytest.approx(0.0, abs=1e-12)  # whitened over just these
    total = float(batch["advantage_T"].abs().sum()) / int(batch["gradient_T"].sum())
    assert float(weight_T.abs().sum()) == pytest.approx(total)
    assert total > 0.5


def test_worked_example():
    # leaf scores [[1, 0], [0, 0]]: +-0.25 on the first edges, +-0.5 on two leaves, 4 samples
    batch, _ = learnt(spo_tree(), [[[1, 0], [0, 0]]], sure=0.0)
    assert batch["gradient_T"].equal(batch["mask_T"])
    assert batch["reward_B"].tolist() == pytest.approx([0.25, 0.5, -0.5, -0.25])
    raw = [0.25] * 3 + [0.5] * 3 + [-0.5] * 3 + [-0.25] * 3
    scale = math.sqrt(sum(x * x for x in raw) / 11 + 1e-8)
    found = batch["advantage_T"][batch["mask_T"]].tolist()
    assert found == pytest.approx([x / scale for x in raw])
    batch, _ = learnt(spo_tree(mode="grpo"), [[[1, 0], [0, 0]]], sure=0.0)
    assert batch["reward_B"].tolist() == pytest.approx([1, 1, -1, -1], rel=1e-6)


@pytest.mark.parametrize("mode", ["rloo", "grpo"])
def test_one_level_is_the_group_baseline(mode):
    trees = [[1, 0, 0.5, 0], [0, 1, 1]]
    batch, _ = learnt(spo_tree(mode=mode), trees, sure=0.0)
    plain, _ = tree_batch(trees, TOKENS)
    other = grpo(eps=1e-8, std="biased", normalize_std=mode == "grpo")
    theirs = stages(other, plain)["advantage_T"]
    assert batch["gradient_T"].all()
    whitened = theirs / (theirs.var() + 1e-8).sqrt()
    torch.testing.assert_close(batch["advantage_T"], whitened[batch["id_T"]], rtol=1e-6, atol=1e-8)


def test_groups_of_one_outcome_learn_nothing():
    batch, _ = learnt(spo_tree(), [[[1, 1], [1]], [[0, 1], 0]])
    assert batch["uid_P"].tolist() == [1]
    assert batch["gradient_T"].any()
    nobody, _ = learnt(spo_tree(), [[[1, 1], [1]]])
    assert nobody.size("B") == 0


def test_composes():
    algorithm = spo_tree(branching=(4, 2), segment_tokens=8, p0=0.7)
    check(algorithm)
    assert algorithm.rollout.part.branching == (4, 2)
    assert algorithm.rollout.part.segment_tokens == 8
    assert [use.part.p0 for use in algorithm.advantage if hasattr(use.part, "p0")] == [0.7]
    store = spo_tree(per_prompt=3, num_edges=4, max_age=5).curation[1].part
    assert (store.per_prompt, store.num_drawn, store.max_age, store.keep_drawn) == (3, 4, 5, False)
