import pytest
import torch
from builders import assert_same_push, flat_batch, members_of, ragged_batch, rows_learning, stages

from strop import functional
from strop.recipes.gpg import gpg
from strop.recipes.opo import opo

TWO_GROUPS = flat_batch((1,) * 8, (0,) * 4 + (1,) * 4, reward_B=[1.0, 0, 0, 0, 1, 1, 1, 1])


def test_worked_examples():
    # alpha = 4 / 2, then 8 / 5 of the code and 8 / 4 of the paper
    batch = stages(gpg(), flat_batch((2, 4, 4, 2), reward_B=[1.0, 0.0, 0.0, 1.0]))
    assert batch["advantage_B"].tolist() == [1, -1, -1, 1]
    assert stages(gpg(), TWO_GROUPS)["advantage_B"].tolist() == pytest.approx(
        [1.2, -0.4, -0.4, -0.4, 0, 0, 0, 0]
    )
    paper = stages(gpg(variant="paper"), TWO_GROUPS)["advantage_B"].tolist()
    assert paper == pytest.approx([1.5, -0.5, -0.5, -0.5, 0, 0, 0, 0])


def test_composes_and_the_factor_is_one_when_no_reward_is_zero():
    batch = flat_batch((3,) * 4, reward_B=[-1.0, 1.0, 1.0, -1.0])
    # equal lengths: the length-weighted mean is the mean
    assert stages(gpg(), batch)["advantage_T"].equal(stages(opo(), batch)["advantage_T"])


def test_gradient_is_that_of_the_published_loss():
    algorithm = gpg(f_norm=0.7)
    given = ragged_batch(1)
    given = given.set(reward_B=given["outcome_B"])  # zeros among them
    batch = stages(algorithm, given)
    scored = batch["scored_B"].nonzero().squeeze(1).tolist()
    alpha = len(scored) / sum(float(batch["reward_B"][i]) != 0 for i in scored)
    assert alpha > 1
    advantage = {}
    for group in range(batch.size("P")):
        members = members_of(batch, group)
        rewards = [float(batch["reward_B"][i]) for i in members]
        mean = sum(rewards) / len(rewards) if len(rewards) > 1 else 0.0
        advantage |= {i: alpha * (float(batch["reward_B"][i]) - mean) / 0.7 for i in members}
    rows = rows_learning(batch)
    values = [advantage[int(batch["rollout_T"][t])] for t in rows]
    advantage_N = torch.tensor(values, dtype=torch.float64)
    assert_same_push(algorithm, batch, lambda logp_T: -(advantage_N * logp_T[rows]).mean())


def test_padded_calls():
    mask = torch.ones(8, 1, dtype=torch.bool)
    rewards, groups = TWO_GROUPS["reward_B"], TWO_GROUPS["group_B"]
    found = functional.advantages("gpg", rewards=rewards, groups=groups, mask=mask)
    assert found[:, 0].tolist() == pytest.approx([1.2, -0.4, -0.4, -0.4, 0, 0, 0, 0])
    logp = torch.tensor([[-1.0, -2.0]]).double()
    for name in ("gpg", "gpg_loss"):  # logp_old is taken and not read
        loss, _ = functional.policy_loss(
            name, logp=logp, logp_old=logp - 1, advantages=torch.tensor([2.0]), mask=logp < 0
        )
        assert float(loss) == pytest.approx(3.0)
