import math

import pytest
import torch
from builders import assert_same_push, clipped, pushed, rows_learning, stages
from trees import follow, tree_batch, value

from strop import part as parts
from strop.errors import UserError
from strop.recipes.grpo import grpo
from strop.recipes.spo_tree import spo_tree

TREES = [[[1, 0, 0], [0, 0], 1], [[0.5, 1], [1, [0, 1]]], [[1, 1], [1]]]
TOKENS = 3  # of an edge


def learnt(algorithm, trees, seed=0, sure=0.3):
    """The batch after advantage and selection; a share `sure` of the drawn tokens was certain."""
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
        logp_behavior_T=logp_T, logp_old_T=logp_T, logp_T=logp_T + 0.2 * noise(),
        logp_ref_T=logp_T + 0.3 * noise(), max_length=torch.tensor(9),
    )  # fmt: skip
    for use in algorithm.probes:
        batch = parts.write(batch, use, parts.call(use, batch))
    return stages(algorithm, batch), paths


def edges(batch, paths, trees, grpo_form=False):
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
    raw = {
        row + k: step
        for row, step in edges(batch, paths, TREES, mode == "grpo").items()
        for k in range(TOKENS)
        if float(batch["logp_behavior_T"][row + k]) < math.log(0.9)
    }
    assert rows_learning(batch) == sorted(raw)
    assert batch["denominator_T"].equal(batch["gradient_T"])
    mean = sum(raw.values()) / len(raw)
    scale = math.sqrt(sum((v - mean) ** 2 for v in raw.values()) / (len(raw) - 1) + 1e-8)
    white = {row: (step - mean) / scale for row, step in raw.items()}

    def loss_of(logp_T):
        total = logp_T.new_zeros(())
        for row, step in white.items():
            ratio = (logp_T[row] - batch["logp_old_T"][row]).exp()
            d = batch["logp_ref_T"][row] - logp_T[row]
            advantage = torch.tensor(step, dtype=torch.float64)
            total = total + clipped(ratio, advantage, 0.2, 0.2) + 0.05 * (d.exp() - d - 1)
        return total / len(white)

    assert_same_push(algorithm, batch, loss_of)


def test_token_weights_sum_to_those_of_the_edge_samples():
    algorithm = spo_tree(beta=0.0)
    batch, paths = learnt(algorithm, TREES)
    on_policy = batch.set(logp_T=batch["logp_old_T"])
    _, found, _ = pushed(algorithm, on_policy)
    # c_t = whitened advantage / number of tokens, over each edge's tokens once
    own = [row + k for row in edges(batch, paths, TREES) for k in range(TOKENS)]
    weight_T = -found["logp_T"]
    outside_T = torch.ones(batch.size("T"), dtype=torch.bool)
    outside_T[own] = False
    assert not weight_T[outside_T].any()
    assert float(weight_T.sum()) == pytest.approx(0.0, abs=1e-12)  # whitened over just these
    count = int(batch["gradient_T"].sum())
    total = float(batch["advantage_T"][own].abs().sum()) / count
    assert float(weight_T.abs().sum()) == pytest.approx(total)
    assert total > 0.5


def test_worked_example():
    # leaf scores [[1, 0], [0, 0]]: +-0.25 on the first edges, +-0.5 on two leaves, 4 samples
    batch, _ = learnt(spo_tree(), [[[1, 0], [0, 0]]], sure=0.0)
    learning = batch["gradient_T"].nonzero().squeeze(1).tolist()
    assert learning == [*range(6), *range(9, 15)]
    raw = [0.25] * 3 + [0.5] * 3 + [-0.5] * 3 + [-0.25] * 3
    scale = math.sqrt(sum(x * x for x in raw) / 11 + 1e-8)
    assert batch["advantage_T"][learning].tolist() == pytest.approx([x / scale for x in raw])
    batch, _ = learnt(spo_tree(mode="grpo"), [[[1, 0], [0, 0]]], sure=0.0)
    signs = [1] * 6 + [-1] * 6
    assert batch["advantage_T"][learning].tolist() == pytest.approx(
        [x * math.sqrt(11 / 12) for x in signs], rel=1e-6
    )


@pytest.mark.parametrize("mode", ["rloo", "grpo"])
def test_one_level_is_the_group_baseline(mode):
    trees = [[1, 0, 0.5, 0], [0, 1, 1]]
    batch, _ = learnt(spo_tree(mode=mode), trees, sure=0.0)
    other = grpo(eps=1e-8, std="biased", normalize_std=mode == "grpo")
    theirs = stages(other, batch)["advantage_T"]
    inside = batch["gradient_T"]
    assert inside.all()
    whitened = theirs / (theirs.var() + 1e-8).sqrt()
    torch.testing.assert_close(batch["advantage_T"], whitened, rtol=1e-6, atol=1e-8)


def test_groups_of_one_outcome_learn_nothing():
    batch, _ = learnt(spo_tree(), [[[1, 1], [1]], [[0, 1], 0]])
    first_T = batch["group_T"] == 0
    assert not batch["gradient_T"][first_T].any()
    assert batch["gradient_T"][~first_T].any()


def test_composes():
    algorithm = spo_tree(branching=(4, 2), segment_tokens=8, p0=0.7)
    algorithm.check()
    assert algorithm.rollout.part.branching == (4, 2)
    assert algorithm.rollout.part.segment_tokens == 8
    assert [use.part.p0 for use in algorithm.advantage if hasattr(use.part, "p0")] == [0.7]
    with pytest.raises(UserError, match="mode"):
        spo_tree(mode="loo")
