import pytest
import torch
from builders import flat_batch, learning, ragged_batch, run

from strop.parts.loss.average.average_per_turn import AveragePerTurn


def test_shares_of_turns():
    batch = ragged_batch(3)
    share_T = run(AveragePerTurn(), batch).value
    rows = learning(batch)
    for i, tokens in rows:
        turns = {int(batch["turn_T"][t]) for t in tokens}
        for t in tokens:
            same = [s for s in tokens if batch["turn_T"][s] == batch["turn_T"][t]]
            assert float(share_T[t]) == pytest.approx(1 / (len(same) * len(turns) * len(rows))), i
    assert float(share_T.sum()) == pytest.approx(1.0)


def test_turns_weigh_the_same_in_the_average():
    batch = flat_batch((2,) * 7).set(turn_T=torch.arange(7).repeat_interleave(2))
    share = run(AveragePerTurn(per_rollout=False), batch).value
    assert share.tolist() == pytest.approx([1 / 14] * 14)
    fewer = batch.set(denominator_T=torch.tensor([True, False] + [False] * 2 + [True] * 10))
    share = run(AveragePerTurn(per_rollout=False), fewer).value
    assert share.tolist() == pytest.approx([1 / 6, 0, 0, 0] + [1 / 12] * 10)
