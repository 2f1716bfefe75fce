import math

import pytest
import torch
from builders import flat_batch, ragged_batch, run, stages

from strop import functional
from strop.method.check import check
from strop.parts.advantage.weight.modulate_turns_by_entropy import ModulateTurnsByEntropy
from strop.recipes.empg import empg
from strop.recipes.grpo import grpo

ENTROPY = torch.tensor([[0.2, 0.8], [0.5, 1.0]]).double()
GIVEN = {
    "groups": torch.zeros(2, dtype=torch.int64), "mask": torch.ones(2, 2, dtype=torch.bool),
    "turn_ids": torch.tensor([[0, 1], [0, 1]]), "entropy": ENTROPY,
}  # fmt: skip


def modulated(**fields):
    """The worked example's two trajectories of two turns, A = 1 and -1."""
    batch = flat_batch(
        (2, 2), rollout_K=torch.tensor([0, 0, 1, 1]), turn_T=torch.arange(4),
        advantage_B=[1.0, -1.0], entropy_old_T=ENTROPY.flatten().tolist(),
    )  # fmt: skip
    return run(ModulateTurnsByEntropy(**fields), batch).value.tolist()


def test_worked_example():
    assert modulated() == pytest.approx([1.4437, 0.5615, -1.2370, -0.7683], abs=6e-5)


def test_worked_example_through_the_padded_call():
    # rewards 1 and 0 with the biased deviation: advantages 1 and -1
    params = {"std": "biased", "eps": 0.0}
    rewards = torch.tensor([1.0, 0.0]).double()
    found = functional.advantages("empg", rewards=rewards, **GIVEN, params=params)
    expected = [1.4437, 0.5615, -1.2370, -0.7683]
    assert found.flatten().tolist() == pytest.approx(expected, abs=6e-5)
    noisy = {**GIVEN, "mask": torch.tensor([[True, True], [True, False]])}
    found = functional.advantages("empg", rewards=rewards, **noisy, params={**params, "zeta": 0.0})
    g = [math.exp(0), math.exp(-1), math.exp(-0.5)]
    raw = [3 * a * x / sum(g) for a, x in zip((1, 1, -1), g, strict=True)]
    centred = [x - sum(raw) / 3 for x in raw]
    assert found[found != 0].tolist() == pytest.approx(centred)


def test_is_its_parent_centred_over_turns_without_factor_and_bonus():
    batch = ragged_batch(2)
    ours, parent = stages(empg(k=0.0, zeta=0.0), batch), stages(grpo(), batch)
    scored_K = batch["scored_B"][batch["rollout_K"]]
    mean = parent["advantage_B"][batch["rollout_K"]][scored_K].mean()
    where_T = batch["mask_T"] & batch["scored_B"][batch["rollout_T"]]
    torch.testing.assert_close(ours["advantage_T"][where_T], parent["advantage_T"][where_T] - mean)
    assert (ours["advantage_T"][~where_T] == 0).all()


def test_edges():
    alone = flat_batch((3,), advantage_B=[0.7], entropy_old_T=[0.1, 0.2, 0.3])
    assert run(ModulateTurnsByEntropy(), alone).value.tolist() == [0.0]
    assert sum(modulated(bonus=0.7)) == pytest.approx(0.0)
    failed = modulated(bonus=5.0)  # a sure next turn pays in the failed episode too
    assert failed[2] > failed[3] + 1


def test_composes():
    check(empg(k=0.5, k_prime=2.0, zeta=0.05))
    part = empg(k=0.5, k_prime=2.0, zeta=0.05).advantage[-2].part
    assert part == ModulateTurnsByEntropy(0.5, 0.05, 2.0)


def test_the_spread_of_factors_and_the_bonus_are_logged():
    batch = flat_batch(
        (2, 2), rollout_K=torch.tensor([0, 0, 1, 1]), turn_T=torch.arange(4),
        advantage_B=[1.0, -1.0], entropy_old_T=ENTROPY.flatten().tolist(),
    )  # fmt: skip
    told = run(ModulateTurnsByEntropy(), batch).metrics
    unsure = [(h - 0.2) / 0.8 for h in (0.2, 0.8, 0.5, 1.0)]
    factor = torch.tensor([math.exp(-h) for h in unsure]).double()
    assert told["modulation/factor_std"] == pytest.approx(float((factor / factor.mean()).std()))
    bonus = 0.1 * (math.exp(-unsure[1]) + math.exp(-unsure[3])) / 4
    assert told["modulation/bonus_mean"] == pytest.approx(bonus)
