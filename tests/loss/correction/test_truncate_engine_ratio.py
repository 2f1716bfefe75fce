import math

import pytest
import torch
from builders import NAN, flat_batch, ragged_batch, run, tokens_of

from strop.errors import UserError
from strop.loss.correction.truncate_engine_ratio import TruncateEngineRatio
from strop.loss.correction.truncate_engine_ratio_per_sequence import (
    TruncateEngineRatioPerSequence,
)

BOTH = (TruncateEngineRatio, TruncateEngineRatioPerSequence)


def _batch(differences, lengths):
    old_T = [-1.0] * len(differences)
    return flat_batch(lengths, logp_old_T=old_T, logp_behavior_T=[-1.0 - x for x in differences])


def test_worked_example():
    # exp of (0, .5, 1, -.7); the third cut to 2; their product exp(.8) = 2.225541
    batch = _batch([0.0, 0.5, 1.0, -0.7], (4,))
    found = run(TruncateEngineRatio(), batch).value.tolist()
    assert found == pytest.approx([1, 1.648721, 2, 0.496585], abs=1e-6)
    assert run(TruncateEngineRatioPerSequence(), batch).value.tolist() == [2.0] * 4
    found = run(TruncateEngineRatioPerSequence(3.0), batch).value.tolist()
    assert found == pytest.approx([2.225541] * 4, abs=1e-6)


def test_matches_slow_loop():
    batch = ragged_batch(1)
    token = run(TruncateEngineRatio(), batch).value
    sequence = run(TruncateEngineRatioPerSequence(), batch).value
    for i in range(batch.size("B")):
        rows = tokens_of(batch, i)
        gaps = [float(batch["logp_old_T"][t] - batch["logp_behavior_T"][t]) for t in rows]
        expected = [min(math.exp(gap), 2.0) for gap in gaps]
        assert token[rows].tolist() == pytest.approx(expected, rel=1e-9)
        expected = [min(math.exp(sum(gaps)), 2.0)] * len(rows)
        assert sequence[rows].tolist() == pytest.approx(expected, rel=1e-9)
    assert (token[~batch["mask_T"]] == 1).all()
    assert torch.isfinite(sequence).all()


def test_equal_when_every_rollout_has_one_token():
    batch = ragged_batch(2, lengths=(1, 1), num_turns=(1, 1))
    mask_T = batch["mask_T"]
    token = run(TruncateEngineRatio(), batch).value[mask_T]
    torch.testing.assert_close(token, run(TruncateEngineRatioPerSequence(), batch).value[mask_T])


@pytest.mark.parametrize("part", BOTH)
def test_edges(part):
    void = _batch([NAN, 0.5, NAN], (2, 1))
    found = run(part(), void).value.tolist()
    half = math.exp(0.5)
    alone = [1.0, half, 1.0] if part is TruncateEngineRatio else [half, half, 1.0]
    assert found == pytest.approx(alone)
    assert run(part(1e12), _batch([50.0, -50.0], (1, 1))).value.tolist() == pytest.approx(
        [math.exp(20), math.exp(-20)], rel=1e-12
    )
    nothing = void.set(mask_T=torch.zeros(3, dtype=torch.bool))
    assert run(part(), nothing).value.tolist() == [1.0, 1.0, 1.0]
    leaf = _batch([0.1], (1,))
    leaf = leaf.set(logp_old_T=leaf["logp_old_T"].clone().requires_grad_())
    assert not run(part(), leaf).value.requires_grad
    assert part.facts == {"corrects_behavior_ratio"}
    with pytest.raises(UserError, match="cap"):
        part(-1.0)
