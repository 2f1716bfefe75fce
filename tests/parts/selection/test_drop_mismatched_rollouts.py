import math

import pytest
import torch
from builders import flat_batch, ragged_batch, run

from strop.parts.selection.drop_mismatched_rollouts import DropMismatchedRollouts
from strop.support.errors import UserError


def test_rejection_takes_gradients_and_on_request_the_place_in_averages():
    # log ratios (0, .5, 1, -.7): ratios 1, 1.65, 2.72 and 0.50
    batch = flat_batch((4,), logp_old_T=[-1.0] * 4, logp_sampler_T=[-1.0, -1.5, -2.0, -0.3])
    fields = {"lowest": 0.9, "highest": 2.0, "veto": 0.0, "measure": "token_k1"}
    for counts in (True, False):
        chosen = run(DropMismatchedRollouts(**fields, still_counts=counts), batch).value
        assert chosen.gradient_T.tolist() == [True, True, False, False]
        assert chosen.denominator_T.tolist() == [True, True, counts, counts]


@pytest.mark.parametrize("unit", ["token", "turn", "seq"])
@pytest.mark.parametrize("reduce", ["sum", "mean", "max"])
@pytest.mark.parametrize("estimate", ["k1", "k2", "k3"])
def test_rejection_matches_a_slow_loop(unit, reduce, estimate):
    if unit == "token" and reduce != "sum":
        measure, reduce = f"token_{estimate}", "sum"
    else:
        measure = f"token_{estimate}" if unit == "token" else f"{unit}_{reduce}_{estimate}"
    batch = ragged_batch(3, groups=(4, 4, 4), unscored=())
    low, high = (0.6, 1.6) if estimate == "k1" else (0.0, 0.25)
    part = DropMismatchedRollouts(low, high, 0.0, measure, still_counts=True)
    found = run(part, batch)
    one_each = torch.arange(batch.size("T"))
    key_T = {"token": one_each, "turn": batch["turn_T"], "seq": batch["rollout_T"]}[unit]
    values = {}
    for t in batch["mask_T"].nonzero().squeeze(1).tolist():
        x = float(batch["logp_old_T"][t] - batch["logp_sampler_T"][t])
        k = {"k1": x, "k2": x * x / 2, "k3": math.exp(x) - 1 - x}[estimate]
        values.setdefault(int(key_T[t]), []).append(k)
    combine = {"sum": sum, "mean": lambda ks: sum(ks) / len(ks), "max": max}[reduce]
    stays = {}
    for key, ks in values.items():
        s = combine(ks)
        stays[key] = low <= math.exp(s) <= high if estimate == "k1" else s <= high
    expected = [bool(batch["mask_T"][t]) and stays[int(key_T[t])] for t in range(batch.size("T"))]
    assert found.value.gradient_T.tolist() == expected
    assert found.value.denominator_T.equal(batch["mask_T"])
    assert {True, False} == set(stays.values())
    dropped = sum(not s for s in stays.values()) / len(stays)
    assert found.metrics["mismatch/dropped_fraction"] == pytest.approx(dropped)


def test_a_token_far_below_the_engine_takes_its_turn_with_it():
    # rollout 0 has turns of two and one tokens, rollout 1 one of two; exp(-10) < 1e-4
    batch = flat_batch((3, 2), logp_old_T=[-1.0, -11, -1, -1, -1], logp_sampler_T=[-1.0] * 5)
    batch = batch.set(turn_T=torch.tensor([0, 0, 1, 2, 2]), rollout_K=torch.tensor([0, 0, 1]))
    found = run(DropMismatchedRollouts(0.0, math.inf), batch)
    assert found.value.gradient_T.tolist() == [False, False, True, True, True]
    assert found.metrics == {
        "mismatch/dropped_fraction": 0.0, "mismatch/vetoed_fraction": pytest.approx(1 / 3),
    }  # fmt: skip
    assert run(DropMismatchedRollouts(0.0, math.inf, 0.0), batch).value.gradient_T.all()


def test_a_token_that_the_engine_says_nothing_of_counts_nowhere():
    # rollout 0: a void token and one that agrees; rollout 1: nothing is known
    batch = flat_batch((2, 1), logp_old_T=[-9.0, -1, -1],
                       logp_sampler_T=[math.nan, -1.0, math.nan])  # fmt: skip
    found = run(DropMismatchedRollouts(), batch)
    assert found.value.gradient_T.all()
    assert found.metrics["mismatch/dropped_fraction"] == 0.0


def test_an_unknown_measure_is_refused():
    with pytest.raises(UserError, match=r"drop_mismatched_rollouts\.measure"):
        DropMismatchedRollouts(measure="seq_median_k1")


def test_bounds_that_nothing_meets_are_refused():
    with pytest.raises(UserError, match=r"lowest, 1\.1, is above highest, 1:"):
        run(DropMismatchedRollouts(1.1, 1.0), ragged_batch())
    run(DropMismatchedRollouts(1.1, 1.0, measure="seq_mean_k3"), ragged_batch())  # lowest: unread
