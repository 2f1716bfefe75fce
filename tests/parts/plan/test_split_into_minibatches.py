import pytest
import torch
from builders import ragged_batch

from strop.parts.plan.split_into_minibatches import SplitIntoMinibatches
from strop.support.errors import UserError


def groups_of(part, batch, seed=0):
    """The prompt groups of every update; each group's policy tokens are all in it or none."""
    found = []
    for update in part(batch, torch.Generator().manual_seed(seed)):
        groups = sorted(set(batch["group_T"][update.tokens_T].tolist()))
        whole_T = torch.isin(batch["group_T"], torch.tensor(groups)) & batch["mask_T"]
        assert update.tokens_T.equal(whole_T)
        found.append(groups)
    return found


def test_one_update_over_everything_by_default():
    batch = ragged_batch(1)
    (update,) = SplitIntoMinibatches()(batch, torch.Generator())
    assert update.tokens_T.equal(batch["mask_T"])
    assert SplitIntoMinibatches().num_updates == 1


def test_replayed_groups_have_the_last_update_for_themselves():
    batch = ragged_batch(2, groups=(2, 1, 3, 2))
    origin_T = torch.where(torch.isin(batch["group_T"], torch.tensor([1, 3])), 4, 0)
    replayed = batch.set(origin_T=torch.where(batch["mask_T"], origin_T, 1))
    assert groups_of(SplitIntoMinibatches(replayed_last=True), replayed) == [[0, 2], [1, 3]]
    twice = groups_of(SplitIntoMinibatches(2, 2, replayed_last=True), replayed)
    assert sorted(twice[:2]) == sorted(twice[2:4]) == [[0], [2]]
    assert twice[4:] == [[1, 3]]
    assert SplitIntoMinibatches(2, 2, replayed_last=True).num_updates == 5
    assert groups_of(SplitIntoMinibatches(replayed_last=True), batch) == [[0, 1, 2, 3]]


def test_every_epoch_passes_over_all_groups_once_in_an_order_of_its_own():
    batch = ragged_batch(2, groups=(2, 1, 3, 2, 1, 2, 4))
    part = SplitIntoMinibatches(num_epochs=3, num_minibatches=3)
    found = groups_of(part, batch)
    assert part.num_updates == len(found) == 9
    for epoch in range(3):
        pieces = found[3 * epoch : 3 * epoch + 3]
        assert [len(piece) for piece in pieces] == [3, 2, 2]
        assert sorted(group for piece in pieces for group in piece) == list(range(7))
    assert len({str(found[3 * epoch : 3 * epoch + 3]) for epoch in range(3)}) == 3
    assert found == groups_of(part, batch)
    assert found != groups_of(part, batch, seed=1)


def test_more_pieces_than_groups():
    batch = ragged_batch(3, groups=(2, 2), unscored=())
    found = groups_of(SplitIntoMinibatches(num_minibatches=5), batch)
    assert sorted(found) == [[0], [1]]
    with pytest.raises(UserError, match=r"split_into_minibatches\.num_epochs"):
        SplitIntoMinibatches(num_epochs=0)
