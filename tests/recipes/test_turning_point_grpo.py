import pytest
import torch
from builders import assert_same_push, clipped, flat_batch, ragged_batch, rows_learning, run, stages

from strop import functional
from strop.parts.advantage.credit.credit_turning_points import CreditTurningPoints
from strop.recipes.turning_point_grpo import turning_point_grpo
from strop.support.errors import UserError

# scores before each step and of the answer itself; the card's four rollouts
SCORES = torch.tensor([
    [0.40, 0.50, 0.45, 0.60, 0.70], [0.50, 0.45, 0.40, 0.42, 0.40],
    [0.45, 0.45, 0.50, 0.55, 0.50], [0.30, 0.35, 0.30, 0.25, 0.28],
], dtype=torch.float64)  # fmt: skip
GROUPS = torch.zeros(4).long()
PAID = torch.tensor([
    [0.30, -0.05, 0.25, 0.10], [-0.10, -0.05, 0.02, -0.02],
    [0.0, 0.05, 0.05, -0.05], [0.05, -0.07, -0.05, 0.03],
], dtype=torch.float64)  # fmt: skip


def advantages(scores=SCORES, groups=GROUPS, **params):
    return functional.advantages(
        "turning_point_grpo", prefix_scores=scores, groups=groups, params=params
    )


def normalised(paid):
    return (paid - paid.mean(0)) / (paid.std(0, correction=0) + 1e-4)


def test_worked_example_through_the_padded_call():
    found = advantages()
    torch.testing.assert_close(found, normalised(PAID), atol=1e-9, rtol=0)
    first, third = [1.6105, -1.1019, -0.4238, -0.0848], [1.6362, -0.4259, -0.1569, -1.0534]
    assert found[:, 0].tolist() == pytest.approx(first, abs=6e-5)
    assert found[:, 2].tolist() == pytest.approx(third, abs=6e-5)
    assert advantages(clamp=1.0).abs().max() == 1.0
    unbiased = (PAID - PAID.mean(0)) / (PAID.std(0) + 1e-4)
    torch.testing.assert_close(advantages(std="unbiased"), unbiased, atol=1e-9, rtol=0)


def test_without_weight_it_is_plain_steps_that_add_up_to_the_whole_gain():
    rises = SCORES.diff(dim=1)
    torch.testing.assert_close(advantages(eta=0.0), normalised(rises), atol=1e-9, rtol=0)
    twice = advantages(eta=2.0)  # turns of .6 and .5 beside the same rises
    paid = PAID.clone()
    for row, step in ((0, 0), (0, 2), (1, 0), (3, 1)):
        paid[row, step] *= 2
    torch.testing.assert_close(twice, normalised(paid), atol=1e-9, rtol=0)


def test_turns_up_and_down_are_made_equally_many():
    """Two more rollouts that rise at once: of six turns up the two of the largest gain stay."""
    rising = torch.tensor(
        [[0.1, 0.2, 0.2, 0.2, 0.9], [0.1, 0.15, 0.2, 0.2, 0.35]], dtype=torch.float64
    )
    scores = torch.cat([SCORES, rising])
    groups = torch.tensor([0, 0, 0, 0, 1, 1])
    found = advantages(scores, groups)
    plain = torch.cat([SCORES.diff(dim=1), rising.diff(dim=1)])
    paid = torch.cat([PAID, rising.diff(dim=1)])
    paid[0, 2] = plain[0, 2]  # gains .8, .3, .3, .25 up: the first, and rollout 0's first turn
    paid[4, 0] = 0.8
    expected = torch.cat([normalised(paid[:4]), normalised(paid[4:])])
    torch.testing.assert_close(found, expected, atol=1e-9, rtol=0)
    mirrored = advantages(1 - scores, groups)  # six turns down
    torch.testing.assert_close(mirrored, -expected, atol=1e-9, rtol=0)
    every = advantages(scores, groups, balance=False)
    paid[0, 2], paid[5, 0] = 0.25, 0.25
    expected = torch.cat([normalised(paid[:4]), normalised(paid[4:])])
    torch.testing.assert_close(every, expected, atol=1e-9, rtol=0)


def test_turns_that_tie_go_to_the_first_rows_in_every_precision():
    # gains of .3 up in rollouts 0 and 1, which float32 tells apart, and one turn down
    scores = torch.tensor([[0.2, 0.4, 0.5], [0.4, 0.5, 0.7], [0.5, 0.4, 0.1]], dtype=torch.float64)
    assert (
        scores[1, 2].float() - scores[1, 0].float() != scores[0, 2].float() - scores[0, 0].float()
    )
    paid = torch.tensor([[0.3, 0.1], [0.1, 0.2], [-0.4, -0.3]], dtype=torch.float64)
    expected, groups = normalised(paid), torch.zeros(3).long()
    torch.testing.assert_close(advantages(scores, groups), expected, atol=1e-9, rtol=0)
    found = advantages(scores.float(), groups)
    torch.testing.assert_close(found, expected.float(), atol=1e-5, rtol=0)
    turned = advantages(scores[[1, 0, 2]].float(), groups)
    paid = torch.tensor([[0.3, 0.2], [0.2, 0.1], [-0.4, -0.3]], dtype=torch.float64)
    torch.testing.assert_close(turned, normalised(paid).float(), atol=1e-5, rtol=0)


def test_tokens_of_a_stretch_share_its_advantage_and_ragged_answers_compare_what_they_have():
    values = torch.tensor([[0.5, float("nan"), 0.25, float("nan")], [0.5, float("nan")] * 2])
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])
    found = functional.advantages(
        "turning_point_grpo", prefix_value=values.double(), rewards=torch.tensor([1.0, 0]).double(),
        groups=GROUPS[:2], mask=mask, params={"eps": 0.0, "balance": False},
    )  # fmt: skip
    # first stretches: -.25 against -.5, where nothing follows the second; then one without peer
    assert found.tolist() == [[1.0, 1.0, 0.0, 0.0], [-1.0, -1.0, 0.0, 0.0]]
    with pytest.raises(UserError, match=r"must be \[B, n \+ 1\]"):
        advantages(SCORES[:, :1])
    with pytest.raises(UserError, match="says rewards"):
        functional.advantages("turning_point_grpo", prefix_scores=SCORES, groups=GROUPS,
                              rewards=torch.ones(4))  # fmt: skip


def test_gradient_is_that_of_the_clipped_loss():
    algorithm = turning_point_grpo(beta=0.0)
    batch = ragged_batch(3)
    first_T = torch.cat([batch["mask_T"][:1], batch["mask_T"][1:] & ~batch["mask_T"][:-1]])
    value_T = torch.where(first_T, batch["logp_old_T"].exp(), float("nan"))
    batch = stages(algorithm, batch.set(prefix_value_T=value_T))
    rows = rows_learning(batch)
    assert (batch["advantage_T"][rows] != 0).sum() > 3

    def loss_of(logp_T):
        ratio_N = (logp_T[rows] - batch["logp_old_T"][rows]).exp()
        return clipped(ratio_N, batch["advantage_T"][rows], 0.2, 0.2).mean()

    assert_same_push(algorithm, batch, loss_of)


def test_refuses():
    with pytest.raises(UserError, match="std must be one of"):
        CreditTurningPoints(std="none")


def test_the_share_of_turning_steps_is_logged():
    # down by 1/4, up by 1/2 for good, up by 1/4, which is the last step and turns nothing
    batch = flat_batch((3,), prefix_value_T=[0.5, 0.25, 0.75], reward_B=[1.0])
    told = run(CreditTurningPoints(), batch).metrics
    assert told["steps/frac_turning"] == pytest.approx(1 / 3)
    assert told["steps/per_rollout"] == 3
    assert told["steps/change_abs_mean"] == pytest.approx(1 / 3)
    unknown = batch.set(prefix_value_T=batch["prefix_value_T"] * float("nan"))
    assert run(CreditTurningPoints(), unknown).metrics == dict.fromkeys(told, 0.0)
