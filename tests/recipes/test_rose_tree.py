import pytest
import torch
from builders import assert_same_push, clipped, learning, members_of, ragged_batch, stages

from strop import functional
from strop.method.check import check
from strop.parts.rollout.branch_at_uncertainty import BranchAtUncertainty
from strop.recipes.dr_grpo import dr_grpo
from strop.recipes.rose_tree import rose_tree

LENGTHS = (10, 12, 8, 14)
TREE = {"parent": torch.tensor([-1, 0, -1, 0]), "lengths": torch.tensor(LENGTHS)}


def call(**params):
    mask = torch.arange(14) < torch.tensor(LENGTHS)[:, None]
    names = functional.inputs("rose_tree", "advantages")
    place = "branch_pos" if "branch_pos" in names else "fork_at"
    return functional.advantages(
        "rose_tree", rewards=torch.tensor([1.0, 0, 1, 1]).double(),
        groups=torch.zeros(4, dtype=torch.int64), mask=mask, params=params,
        **{place: torch.tensor([0, 4, 0, 6])}, **TREE,
    )  # fmt: skip


def test_worked_example():
    first, third = -1 / 12, 1 / 3  # V(0) = .75, V(4) = 2/3, V(6) = 1
    found = call(alpha=0.0)
    assert found[0].tolist() == pytest.approx([first] * 4 + [third] * 2 + [0] * 8)
    assert found[1].tolist() == pytest.approx([first] * 4 + [-2 / 3] * 8 + [0] * 2)
    assert found[2].tolist() == pytest.approx([0.25] * 8 + [0] * 6)
    assert found[3].tolist() == pytest.approx([first] * 4 + [third] * 2 + [0] * 8)
    found = call(alpha=1.0)
    assert found[0].tolist() == pytest.approx([-0.1] * 4 + [0.8 * third] * 2 + [0] * 8)
    assert found[3].tolist() == pytest.approx([first / 0.7] * 4 + [third / 1.75] * 2 + [0] * 8)
    assert found[1:3].equal(call(alpha=0.0)[1:3])


def test_composes():
    algorithm = rose_tree(eps_explore=0.2, measure="entropy", num_rollouts=4)
    check(algorithm)
    assert algorithm.rollout.part == BranchAtUncertainty(explore=0.2, measure="entropy")
    assert algorithm.sampling[0].part.num_rollouts == 4
    assert [term.name for term in algorithm.terms] == ["policy", "kl"]
    assert "removes_uniform_groups" in algorithm.facts()


def test_equals_dr_grpo_when_answers_are_independent_and_length_does_not_count():
    batch = ragged_batch(2, groups=(3, 5, 4))
    ours = stages(rose_tree(alpha=0.0), batch)
    theirs = stages(dr_grpo(), batch)
    learns_T = ours["gradient_T"]
    torch.testing.assert_close(ours["advantage_T"][learns_T], theirs["advantage_T"][learns_T])


def test_gradient_is_that_of_the_published_loss():
    algorithm = rose_tree(beta=0.01)
    batch = ragged_batch(1, groups=(3, 5, 4))
    reward_B = torch.where(batch["scored_B"], batch["reward_B"] * 1.4, 0)
    batch = stages(algorithm, batch.set(reward_B=reward_B))
    advantage = {}
    for group in range(batch.size("P")):
        members = members_of(batch, group)
        rewards = {i: float(reward_B[i]) for i in members}
        lengths = {i: int(batch["length_B"][i]) for i in members}
        right = [lengths[i] for i in members if rewards[i] >= 1]
        for i in members:
            value = rewards[i] - sum(rewards.values()) / len(members)
            if rewards[i] >= 1:
                value -= abs(value) * (1 - min(right) / lengths[i])
            advantage[i] = torch.tensor(value, dtype=torch.float64)
    assert sum(float(reward_B[i]) >= 1 for i in advantage) >= 4
    rows = learning(batch)

    def loss_of(logp_T):
        total = logp_T.new_zeros(())
        for i, tokens in rows:
            ratio = (logp_T[tokens] - batch["logp_old_T"][tokens]).exp()
            d = batch["logp_ref_T"][tokens] - logp_T[tokens]
            token = clipped(ratio, advantage[i], 0.2, 0.2) + 0.01 * (d.exp() - d - 1)
            total = total + token.sum()
        return total / (len(rows) * int(batch["max_length"]))

    assert_same_push(algorithm, batch, loss_of)
