import math

import pytest
import torch
from builders import NAN, flat_batch, ragged_batch, run

from strop.method.part import Use, facts
from strop.parts.loss.correction.weigh_by_engine_ratio import UNITS, WeighByEngineRatio
from strop.support.errors import UserError


def _batch(differences, lengths):
    old_T = [-1.0] * len(differences)
    return flat_batch(lengths, logp_old_T=old_T, logp_behavior_T=[-1.0 - x for x in differences])


def _weights(part, batch):
    return run(part, batch).value.tolist()


def test_worked_example():
    # exp of (0, .5, 1, -.7); the third cut to 2; their product exp(.8) = 2.225541
    batch = _batch([0.0, 0.5, 1.0, -0.7], (4,))
    truncated = [1, 1.648721, 2, 0.496585]
    assert _weights(WeighByEngineRatio(), batch) == pytest.approx(truncated, abs=1e-6)
    masked = WeighByEngineRatio(low=0.5, outside="mask")
    assert _weights(masked, batch) == pytest.approx([1, 1.648721, 0, 0], abs=1e-6)
    normalised = [0.777408, 1.281728, 1.554815, 0.386049]  # mean 1.286327
    found = _weights(WeighByEngineRatio(normalise=True), batch)
    assert found == pytest.approx(normalised, abs=1e-6)
    assert _weights(WeighByEngineRatio("sequence"), batch) == [2.0] * 4
    found = _weights(WeighByEngineRatio("sequence", high=3.0), batch)
    assert found == pytest.approx([2.225541] * 4, abs=1e-6)
    found = _weights(WeighByEngineRatio("sequence-mean"), batch)
    assert found == pytest.approx([1.221403] * 4, abs=1e-6)
    low = WeighByEngineRatio(low=0.6)
    assert _weights(low, batch)[3] == 0.6


def test_effective_sample_size():
    # w = 1, 2, .5, .5: 1 / mean((w / 1)^2) = 4 / 5.5
    batch = _batch([0.0, math.log(2), -math.log(2), -math.log(2)], (1, 1, 1, 1))
    metrics = run(WeighByEngineRatio(high=1.5), batch).metrics
    assert float(metrics["correction/ess"]) == pytest.approx(0.727273, abs=1e-6)
    assert metrics["correction/outside_mean"].tolist() == [0, 1, 0, 0]
    assert metrics["correction/mean"].tolist() == pytest.approx([1, 1.5, 0.5, 0.5])


def test_a_weight_cut_to_nearly_itself_is_not_outside():
    # 2 e^0.00005 and 2 e^0.0005 are cut to 2: by less and by more than a ten-thousandth
    batch = _batch([math.log(2) + 5e-5, math.log(2) + 5e-4, 0.1], (3,))
    found = run(WeighByEngineRatio(), batch)
    assert found.value.tolist()[:2] == [2, 2]
    assert found.metrics["correction/outside_mean"].tolist() == [0, 1, 0]


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("outside", ["truncate", "mask"])
@pytest.mark.parametrize("normalise", [False, True])
def test_matches_slow_loop(unit, outside, normalise):
    batch = ragged_batch(1)
    key_T = {"turn": batch["turn_T"], "sequence": batch["rollout_T"]}.get(
        unit.partition("-")[0], torch.arange(batch.size("T"))
    )
    found = run(WeighByEngineRatio(unit, 0.4, 1.7, outside, normalise), batch).value
    units = {}
    for t in batch["mask_T"].nonzero().squeeze(1).tolist():
        gap = float(batch["logp_old_T"][t] - batch["logp_behavior_T"][t])
        units.setdefault(int(key_T[t]), []).append(gap)
    weights = {}
    for key, gaps in units.items():
        w = math.exp(sum(gaps) / (len(gaps) if "mean" in unit else 1))
        inside = 0.4 <= w <= 1.7
        weights[key] = w if inside else min(max(w, 0.4), 1.7) if outside == "truncate" else 0.0
    mean = sum(weights.values()) / len(weights) if normalise else 1.0
    assert len(set(weights.values())) > 2
    for t in batch["mask_T"].nonzero().squeeze(1).tolist():
        assert float(found[t]) == pytest.approx(weights[int(key_T[t])] / mean, rel=1e-9)
    assert (found[~batch["mask_T"]] == 1).all()


def test_units_are_equal_when_every_rollout_has_one_token():
    batch = ragged_batch(2, lengths=(1, 1), num_turns=(1, 1))
    mask_T = batch["mask_T"]
    token = run(WeighByEngineRatio(), batch).value[mask_T]
    for unit in UNITS[1:]:
        torch.testing.assert_close(token, run(WeighByEngineRatio(unit), batch).value[mask_T])


@pytest.mark.parametrize("unit", UNITS)
def test_edges(unit):
    part = WeighByEngineRatio(unit)
    half = math.exp(0.5)
    alone = [1.0, half, 1.0] if unit == "token" else [half, half, 1.0]
    void = _batch([NAN, 0.5, NAN], (2, 1))
    assert _weights(part, void) == pytest.approx(alone)
    strict = WeighByEngineRatio(unit, 1.2, 2.0, "mask")  # a void is not outside its band
    assert _weights(strict, void) == pytest.approx(alone)
    wide = WeighByEngineRatio(unit, high=1e12)
    assert _weights(wide, _batch([50.0, -50.0], (1, 1))) == pytest.approx(
        [math.exp(20), math.exp(-20)], rel=1e-12
    )
    nothing = void.set(mask_T=torch.zeros(3, dtype=torch.bool))
    assert _weights(part, nothing) == [1.0, 1.0, 1.0]
    gone = WeighByEngineRatio(unit, 5.0, 6.0, "mask", normalise=True)  # all 0: not divided
    assert _weights(gone, _batch([0.1, 0.2], (1, 1))) == [0.0, 0.0]
    leaf = _batch([0.1], (1,))
    leaf = leaf.set(logp_old_T=leaf["logp_old_T"].clone().requires_grad_())
    assert not run(part, leaf).value.requires_grad


def test_refused():
    with pytest.raises(UserError, match="high"):
        WeighByEngineRatio(high=-1.0)
    with pytest.raises(UserError, match="unit"):
        WeighByEngineRatio("rollout")
    with pytest.raises(UserError, match=r"low 3.0 is above high 2.0"):
        run(WeighByEngineRatio(low=3.0), _batch([0.1], (1,)))
    assert facts(Use(WeighByEngineRatio())) == {"corrects_behavior_ratio"}
