import pytest
import torch
from builders import flat_batch, members_of, ragged_batch, run, stages, tokens_of

from strop import functional
from strop.method.check import check
from strop.parts.advantage.scale.favour_sure_rollouts import FavourSureRollouts
from strop.recipes.ettrl_ear import ettrl_ear
from strop.recipes.grpo import grpo

# two tokens each, means 0.4, 0.6, 0.8, 0.6
ENTROPY = [[0.3, 0.5], [0.6, 0.6], [1.0, 0.6], [0.4, 0.8]]


def reshaped(**fields):
    batch = flat_batch(
        (2, 2, 2, 2),
        advantage_B=[1.0, -1.0, -1.0, 1.0],
        entropy_old_T=[h for row in ENTROPY for h in row],
    )
    return run(FavourSureRollouts(**fields), batch).value.tolist()


def test_worked_example():
    assert reshaped() == pytest.approx([4 / 3, -1, -2 / 3, 1], rel=1e-6)


def test_worked_example_through_the_padded_call():
    found = functional.advantages(
        "ettrl_ear", rewards=torch.tensor([1.0, 0.0, 0.0, 1.0]).double(),
        groups=torch.zeros(4).long(), mask=torch.ones(4, 2).bool(),
        entropy=torch.tensor(ENTROPY).double(), params={"std": "biased", "eps": 0.0},
    )  # fmt: skip
    assert found[:, 0].tolist() == pytest.approx([4 / 3, -1, -2 / 3, 1], rel=1e-6)
    assert found[:, 1].tolist() == found[:, 0].tolist()


def test_matches_slow_loop():
    batch = ragged_batch(2)
    part = FavourSureRollouts(eps=0.1)
    found = run(part, batch).value
    for group in range(batch.size("P")):
        members = members_of(batch, group)
        own = {i: batch["entropy_old_T"][tokens_of(batch, i)].mean().item() for i in members}
        mean = sum(own.values()) / len(own)
        for i in members:
            expected = batch["advantage_B"][i].item() * (1 + (mean - own[i]) / (mean + 0.1))
            assert found[i].item() == pytest.approx(expected, rel=1e-9)
    assert found[4] == 0.0  # unscored


def test_is_grpo_where_entropies_are_equal_or_the_bound_is_wide():
    batch = ragged_batch(5)
    even = batch.set(entropy_old_T=torch.where(batch["mask_T"], 0.7, torch.nan))
    expected = stages(grpo(), batch)["advantage_T"]
    torch.testing.assert_close(stages(ettrl_ear(), even)["advantage_T"], expected)
    wide = stages(ettrl_ear(form="clip", b=1e6), batch)["advantage_T"]
    torch.testing.assert_close(wide, expected)
    narrow = stages(ettrl_ear(form="clip", b=0.5), batch)["advantage_T"]
    torch.testing.assert_close(narrow, expected.clamp(-0.5, 0.5))


def test_a_factor_below_zero():
    # entropies 3 and 0, 0, 0: mean 0.75, factor 2 - 4 = -2
    batch = flat_batch((1,) * 4, advantage_B=[1.0] * 4, entropy_old_T=[3.0, 0, 0, 0])
    assert run(FavourSureRollouts(eps=0.0), batch).value.tolist() == [-2.0, 2, 2, 2]
    assert run(FavourSureRollouts(True, 0.0), batch).value.tolist() == [0.0, 2, 2, 2]
    alone = flat_batch((1,), advantage_B=[0.3], entropy_old_T=[2.0])
    assert run(FavourSureRollouts(), alone).value.item() == pytest.approx(0.3)


def test_refusals():
    check(ettrl_ear(keep_sign=True, leave_one_out=True))


def test_how_far_factors_lie_from_1_is_logged():
    batch = flat_batch((1, 1), advantage_B=[1.0, -1.0], entropy_old_T=[0.2, 0.4])  # 4/3 and 2/3
    told = run(FavourSureRollouts(), batch).metrics
    assert told == {"advantage/entropy_factor_change": pytest.approx(1 / 3)}
