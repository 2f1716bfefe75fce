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


def test_turns_are_averaged_and_their_tokens_added():
    batch, part = flat_batch((3, 1, 2)), AveragePerTurn(per_rollout=False, added=True)
    assert run(part, batch).value.tolist() == pytest.approx([1 / 3] * 6)
    batch = batch.set(denominator_T=torch.tensor([True, False, True, False, True, True]))
    assert run(part, batch).value.tolist() == [0.5, 0, 0.5, 0, 0.5, 0.5]
    # two rollouts of 1 and 2 turns: half each, and the second one's turns a quarter each
    batch = flat_batch((3, 4)).set(
        turn_T=torch.tensor([0, 0, 0, 1, 1, 1, 2]), rollout_K=torch.tensor([0, 1, 1])
    )
    found = run(AveragePerTurn(added=True), batch).value.tolist()
    assert found == [0.5, 0.5, 0.5, 0.25, 0.25, 0.25, 0.25]
