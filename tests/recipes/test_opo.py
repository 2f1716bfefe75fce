import pytest
import torch
from builders import assert_same_push, flat_batch, members_of, ragged_batch, stages

from strop import functional
from strop.recipes.dr_grpo import dr_grpo
from strop.recipes.opo import opo


def test_worked_example():
    # baseline (2 + 2) / 12 = 1/3
    batch = stages(opo(), flat_batch((2, 4, 4, 2), reward_B=[1.0, 0.0, 0.0, 1.0]))
    assert batch["advantage_B"].tolist() == pytest.approx([2 / 3, -1 / 3, -1 / 3, 2 / 3])


def test_composes_without_ratio_and_old_policy():
    algorithm = opo()
    assert "logp_old_T" not in algorithm.reads()
    assert algorithm.plan.part.num_updates == 1


def test_equal_lengths_give_the_advantage_of_dr_grpo():
    batch = flat_batch((3,) * 5, groups=(0, 0, 0, 1, 1), reward_B=[0.3, 0.9, 0.1, 2.0, -1.0])
    ours, theirs = stages(opo(), batch), stages(dr_grpo(), batch)
    torch.testing.assert_close(ours["advantage_T"], theirs["advantage_T"])


def test_gradient_is_that_of_the_published_loss():
    batch = stages(opo(), ragged_batch(1))
    rows, advantage = [], []
    for group in range(batch.size("P")):
        members = members_of(batch, group)
        tokens = {i: (batch["rollout_T"] == i) & batch["mask_T"] for i in members}
        lengths = {i: int(tokens[i].sum()) for i in members}
        weighted = sum(lengths[i] * float(batch["reward_B"][i]) for i in members)
        baseline = weighted / sum(lengths.values()) if len(members) > 1 else 0.0
        for i in members:
            rows += tokens[i].nonzero().squeeze(1).tolist()
            advantage += [float(batch["reward_B"][i]) - baseline] * lengths[i]
    advantage_N = torch.tensor(advantage, dtype=torch.float64)
    assert_same_push(opo(), batch, lambda logp_T: -(advantage_N * logp_T[rows]).sum() / len(rows))


def test_padded_call():
    mask = torch.arange(4)[None] < torch.tensor([2, 4, 4, 2])[:, None]
    rewards, groups = torch.tensor([1.0, 0.0, 0.0, 1.0]).double(), torch.zeros(4).long()
    found = functional.advantages("opo", rewards=rewards, groups=groups, mask=mask)
    assert found[:, 0].tolist() == pytest.approx([2 / 3, -1 / 3, -1 / 3, 2 / 3])
    alone = functional.advantages(
        "opo", rewards=rewards, groups=torch.arange(4), mask=mask, params={"singleton": "zero"}
    )
    assert not alone.any()
