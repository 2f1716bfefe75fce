"""Conversion from flat to padded tensors and back."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ragged import ragged_batch

from strop.batch import segments
from strop.batch.batch import from_padded, pad_rollouts, position_of, to_padded

SEEDS = st.integers(0, 10_000)


def test_by_hand():
    rollout_T = torch.tensor([0, 0, 2, 2, 2])
    values_T = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])
    padded = to_padded(values_T, rollout_T, 3, fill=-1)
    assert padded.tolist() == [[1, 2, -1], [-1, -1, -1], [3, 4, 5]]
    assert to_padded(values_T, rollout_T, 3, width=4).shape == (3, 4)
    assert position_of(rollout_T, 3).tolist() == [0, 1, 0, 1, 2]
    with pytest.raises(ValueError, match="3 tokens does not fit into 2"):
        to_padded(values_T, rollout_T, 3, width=2)


@given(SEEDS)
def test_there_and_back(seed):
    batch = ragged_batch(seed)
    place = batch["rollout_T"], position_of(batch["rollout_T"], batch.size("B"))
    for name in ("logp_T", "id_T", "mask_T"):
        padded = to_padded(batch[name], batch["rollout_T"], batch.size("B"))
        assert padded[place].equal(batch[name])
    wide = torch.stack([batch["logp_T"], batch["entropy_T"]], dim=1)
    padded = to_padded(wide, batch["rollout_T"], batch.size("B"))
    assert padded.shape[2] == 2
    assert padded[place].equal(wide)


@given(SEEDS)
def test_pad_rollouts_of_some_in_any_order(seed):
    batch = ragged_batch(seed)
    order = torch.randperm(batch.size("B"), generator=torch.Generator().manual_seed(seed))
    index_B = order[: (batch.size("B") + 1) // 2]
    ids, valid = pad_rollouts(batch, index_B, fill=-7)
    for row, rollout in enumerate(index_B.tolist()):
        own = batch["id_T"][batch["rollout_T"] == rollout].tolist()
        assert ids[row].tolist() == own + [-7] * (ids.shape[1] - len(own))
        assert valid[row].tolist() == [True] * len(own) + [False] * (ids.shape[1] - len(own))
    rows = segments.rows_of(batch["rollout_T"], index_B, batch.size("B"))
    assert ids[valid].equal(batch["id_T"][rows])
    whole, _ = pad_rollouts(batch)
    assert whole.equal(pad_rollouts(batch, batch["index_B"])[0])


def test_rows_are_cut_after_the_last_mask_and_noise_is_removed():
    mask = torch.tensor([[0, 1, 0, 1, 0], [0, 0, 0, 0, 0], [1, 0, 0, 0, 0]])
    values = torch.arange(15.0).reshape(3, 5)
    values[mask == 0] = float("nan")
    batch = from_padded({"logp_T": values, "id_T": torch.arange(15).reshape(3, 5)}, mask)
    assert batch["size_B"].tolist() == [4, 0, 1]
    assert batch["length_B"].tolist() == [2, 0, 1]
    assert batch["logp_T"].tolist() == [0, 1, 0, 3, 10]
    assert batch["id_T"].tolist() == [0, 1, 2, 3, 10]
    assert batch["group_B"].tolist() == [0, 1, 2]
    assert batch.size("P") == 3
    with pytest.raises(ValueError, match="column logp_T has shape"):
        from_padded({"logp_T": values[:, :3]}, mask)


def test_gradient_reaches_masked_positions_only():
    mask = torch.tensor([[True, False, True], [False, True, False]])
    values = torch.tensor([[1.0, float("nan"), 2.0], [float("inf"), 3.0, 4.0]], requires_grad=True)
    batch = from_padded({"logp_T": values}, mask)
    padded = to_padded(batch["logp_T"], batch["rollout_T"], 2, width=3)
    padded.square().sum().backward()
    assert values.grad.tolist() == [[2, 0, 4], [0, 6, 0]]
