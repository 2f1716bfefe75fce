"""Conversion from flat to padded tensors and back."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ragged import ragged_batch

from strop.batch import segments
from strop.batch.batch import from_padded, to_padded

SEEDS = st.integers(0, 10_000)


def test_by_hand():
    rollout_T = torch.tensor([0, 0, 2, 2, 2])
    values_T = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])
    padded = to_padded(values_T, rollout_T, 3, fill=-1)
    assert padded.tolist() == [[1, 2, -1], [-1, -1, -1], [3, 4, 5]]
    assert to_padded(values_T, rollout_T, 3, width=4).shape == (3, 4)
    assert segments.place_in_run(rollout_T, 3).tolist() == [0, 1, 0, 1, 2]
    with pytest.raises(ValueError, match="3 tokens does not fit into 2"):
        to_padded(values_T, rollout_T, 3, width=2)


@given(SEEDS)
def test_there_and_back(seed):
    batch = ragged_batch(seed)
    place = batch["rollout_T"], segments.place_in_run(batch["rollout_T"], batch.size("B"))
    for name in ("logp_T", "id_T", "mask_T"):
        padded = to_padded(batch[name], batch["rollout_T"], batch.size("B"))
        assert padded[place].equal(batch[name])
    wide = torch.stack([batch["logp_T"], batch["entropy_T"]], dim=1)
    padded = to_padded(wide, batch["rollout_T"], batch.size("B"))
    assert padded.shape[2] == 2
    assert padded[place].equal(wide)


@given(SEEDS)
def test_each_row_is_a_rollout(seed):
    batch = ragged_batch(seed)
    ids = to_padded(batch["id_T"], batch["rollout_T"], batch.size("B"), fill=-7)
    for rollout, row in enumerate(ids.tolist()):
        own = batch["id_T"][batch["rollout_T"] == rollout].tolist()
        assert row == own + [-7] * (ids.shape[1] - len(own))


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
