import pytest
import torch
from builders import (
    assert_same_push,
    clipped,
    flat_batch,
    pushed,
    ragged_batch,
    rows_learning,
    run,
    stages,
)

from strop import functional
from strop.parts.advantage.credit.praise_and_blame import PraiseAndBlame
from strop.recipes.entrocraft_code_variant import entrocraft_code_variant
from strop.recipes.psr_nsr import psr_nsr

REWARDS = torch.tensor([1.0, 0.0, 1.0, -1.0, float("nan")]).double()
GIVEN = {
    "rewards": REWARDS,
    "mask": torch.tensor([[1, 1, 1], [1, 1, 0], [0, 1, 1]] + [[1] * 3] * 2),
}


@pytest.mark.parametrize(
    ("params", "right", "wrong"),
    [
        ({}, 0.1, -1.0), ({"positive_weight": 0.5}, 0.5, -1.0), ({"mode": "psr"}, 1.0, 0.0),
        ({"mode": "nsr"}, 0.0, -1.0), ({"advantage": "positive"}, 1.0, 0.0),
        ({"mode": "weighted", "positive_advantage_weight": 1.0}, 1.0, -1.0),
    ],
)  # fmt: skip
def test_worked_example_through_the_padded_call(params, right, wrong):
    found = functional.advantages("psr_nsr", **GIVEN, params=params)
    expected = torch.tensor([right, wrong, right, wrong, 0.0]).double()[:, None] * GIVEN["mask"]
    torch.testing.assert_close(found, expected)


def test_the_discount_is_of_praise():
    found = functional.advantages("psr_nsr", **GIVEN, params={"gamma": 0.5})
    assert found[0].tolist() == pytest.approx([0.025, 0.05, 0.1])
    assert found[2].tolist() == pytest.approx([0.0, 0.05, 0.1])
    assert found[1].tolist() == [-1.0, -1.0, 0.0]


def signed(seed):
    """A batch whose rewards are -1 and 1."""
    batch = ragged_batch(seed)
    reward_B = torch.where(batch["outcome_B"] > 0.5, 1.0, -1.0).to(batch["reward_B"].dtype)
    return batch.set(reward_B=reward_B, outcome_B=reward_B)


def test_the_weighted_form_is_the_sum_of_the_others_and_entrocrafts_baseline():
    batch = signed(1)
    both, right, wrong = (
        stages(psr_nsr(mode=mode, positive_weight=0.1), batch)["advantage_T"]
        for mode in ("weighted", "psr", "nsr")
    )
    torch.testing.assert_close(both, 0.1 * right + wrong)
    below = entrocraft_code_variant(h_low=99.0, h_high=100.0, positive_weight=0.1)
    torch.testing.assert_close(both, stages(below, batch)["advantage_T"])
    alike = stages(psr_nsr(positive_weight=1.0), batch)
    scored_T = batch["mask_T"] & batch["scored_B"][batch["rollout_T"]]
    expected_T = torch.where(scored_T, batch["reward_B"][batch["rollout_T"]], 0)
    torch.testing.assert_close(alike["advantage_T"], expected_T)  # plain REINFORCE


def test_gradient_is_that_of_the_published_loss():
    algorithm = psr_nsr(positive_weight=0.25)
    batch = stages(algorithm, signed(2))
    rows = rows_learning(batch)
    reward_N = batch["reward_B"][batch["rollout_T"][rows]]
    advantage_N = torch.where(reward_N > 0, 0.25, -1.0).double()

    def loss_of(logp_T):
        ratio_N = (logp_T[rows] - batch["logp_old_T"][rows]).exp()
        return clipped(ratio_N, advantage_N, 0.2, 0.2).mean()

    assert_same_push(algorithm, batch, loss_of)
    blamed = pushed(psr_nsr(mode="nsr"), stages(psr_nsr(mode="nsr"), signed(2)))[1]["logp_T"]
    assert (blamed[rows][reward_N > 0] == 0).all()


def test_the_share_of_praise_is_logged():
    batch = flat_batch((3, 2), reward_B=[1.0, 0.0])
    told = run(PraiseAndBlame(), batch).metrics
    assert told == {"advantage/praise_share": pytest.approx(0.3 / 2.3)}
    assert run(PraiseAndBlame(positive=0.0), batch).metrics == {"advantage/praise_share": 0.0}
