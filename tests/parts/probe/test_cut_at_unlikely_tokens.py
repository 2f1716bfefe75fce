import math

import pytest
import torch
from builders import flat_batch, ragged_batch, run, tokens_of

from strop.parts.probe.cut_at_unlikely_tokens import CutAtUnlikelyTokens
from strop.support.errors import UserError

EXAMPLE = [0.99, 0.5, 0.95, 0.3, 0.99, 0.7, 0.99, 0.2]


def test_worked_example():
    batch = flat_batch((8,), logp_behavior_T=torch.tensor(EXAMPLE).double().log())
    # unlikely 1, 3, 5, 7; the cuts' prefixes end at 0 and 4
    assert run(CutAtUnlikelyTokens(0.9, 2), batch).value.nonzero().squeeze(1).tolist() == [1, 5]
    every = run(CutAtUnlikelyTokens(0.9, 1), batch).value
    assert every.nonzero().squeeze(1).tolist() == [1, 3, 5, 7]


@pytest.mark.parametrize("interval", [1, 2, 3])
def test_matches_slow_loop(interval):
    batch = ragged_batch(4, lengths=(3, 8))
    cuts = set()
    for i in range(batch.size("B")):
        low = [t for t in tokens_of(batch, i) if float(batch["logp_behavior_T"][t]) < math.log(0.6)]
        cuts.update(low[::interval])
    assert len(cuts) > 8
    cut_T = run(CutAtUnlikelyTokens(0.6, interval), batch).value
    assert set(cut_T.nonzero().squeeze(1).tolist()) == cuts


def test_edges():
    batch = flat_batch((3,), logp_behavior_T=[math.log(0.9), math.nan, 0.0])
    assert not run(CutAtUnlikelyTokens(0.9), batch).value.any()  # p0 itself is not below it
    with pytest.raises(UserError, match="interval"):
        CutAtUnlikelyTokens(interval=0)
    with pytest.raises(UserError, match="p0"):
        CutAtUnlikelyTokens(1.5)
