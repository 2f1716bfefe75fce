import math

import pytest
import torch
from builders import NAN, flat_batch, ragged_batch, run, tokens_of

from strop.parts.advantage.credit.shape_by_potential import ShapeByPotential
from strop.parts.advantage.credit.spread_evenly import SpreadEvenly


def test_worked_example():
    batch = flat_batch((4,), advantage_B=[0.5], potential_T=[0.1, 0.95, 0.97, 0.96])
    found = run(ShapeByPotential(), batch)
    assert found.value.tolist() == pytest.approx([0.2852, 1.1385, 0.1390, 0.0631], abs=5e-5)
    assert found.metrics == pytest.approx(
        {"potential/mean": 0.745, "potential/frac_saturated": 0.75}
    )


def stepped(seed):
    batch = ragged_batch(seed, groups=(4, 3, 2), lengths=(2, 8), num_turns=(1, 1))
    rng = torch.Generator().manual_seed(seed)
    potential_T = 2 * torch.rand(batch.size("T"), generator=rng, dtype=torch.float64) - 1
    ends_T = torch.rand(batch.size("T"), generator=rng) < 0.4
    return batch.set(potential_T=torch.where(ends_T, potential_T, NAN))


def test_matches_slow_loop():
    batch = stepped(4)
    steps = {}
    for i in range(batch.size("B")):
        ends = [t for t in tokens_of(batch, i) if not batch["potential_T"][t].isnan()]
        steps[i] = [(t, float(batch["potential_T"][t])) for t in ends] * bool(batch["scored_B"][i])
    assert min(map(len, steps.values())) == 0
    assert max(map(len, steps.values())) > 2
    change = {
        t: phi - ends[k - 1][1] if k else 0.0
        for ends in steps.values()
        for k, (t, phi) in enumerate(ends)
    }
    low, high = min(change.values()), max(change.values())
    bonus = {t: math.exp((d - low) / (high - low)) for t, d in change.items()}
    mean = sum(bonus.values()) / len(bonus)
    expected = torch.zeros(batch.size("T"), dtype=torch.float64)
    for i, ends in steps.items():
        advantage = float(batch["advantage_B"][i])
        for t in tokens_of(batch, i) if batch["scored_B"][i] else ():
            if not ends:
                expected[t] = advantage
                continue
            k = next((k for k, (end, _) in enumerate(ends) if end >= t), len(ends) - 1)
            solved = sum(phi > 0.2 for _, phi in ends[:k])
            factor = 1 - 0.7 * (1 - math.exp(-solved))
            expected[t] = advantage * factor + 0.3 * (bonus[ends[k][0]] - mean)
    found = run(ShapeByPotential(0.7, 0.3, 0.2), batch).value
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def test_equals_spread_evenly_when_both_weights_are_zero_or_nothing_was_probed():
    batch = stepped(2)
    expected = run(SpreadEvenly(), batch.set(
        advantage_B=torch.where(batch["scored_B"], batch["advantage_B"], 0))).value  # fmt: skip
    assert run(ShapeByPotential(0.0, 0.0), batch).value.equal(expected)
    unprobed = batch.set(potential_T=torch.full_like(batch["potential_T"], NAN))
    assert run(ShapeByPotential(), unprobed).value.equal(expected)


def test_equal_changes_give_no_bonus():
    batch = flat_batch((3, 2), advantage_B=[1.0, -1.0], potential_T=[0.2] * 5)
    assert run(ShapeByPotential(), batch).value.tolist() == [1, 1, 1, -1, -1]
