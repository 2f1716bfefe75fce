"""Kept sets in a batch stay with their tokens, whatever happens to the rows."""

import numpy as np
import pytest
import torch
from builders import NAN, flat_batch

from strop.batch.batch import KEPT_AT, KEPT_IDS, NUM_KEPT
from strop.batch.kept import check_known, kept_columns
from strop.support.errors import UserError


def packed(*ids: int) -> bytes:
    return np.array(ids, np.int32).tobytes()


def batch_of(sets, lengths=(2, 1), **columns):
    batch = flat_batch(lengths, **columns)
    return batch.set(**kept_columns(sets, batch["mask_T"]))


def sets_of(batch):
    """The sets of the tokens; None: not known."""
    found = []
    for first, number in zip(batch[KEPT_AT].tolist(), batch[NUM_KEPT].tolist(), strict=True):
        ids = batch[KEPT_IDS][first : first + max(number, 0)].tolist()
        found.append(None if number < 0 else ids)
    return found


ONE = batch_of([packed(4, 2), b"", packed(7)])
OTHER = batch_of([None, packed(1, 5, 9), packed(3)])


def test_rows_that_are_taken_keep_their_sets():
    assert sets_of(ONE) == [[4, 2], [], [7]]
    assert sets_of(ONE.take(torch.tensor([1, 0, 1]))) == [[7], [4, 2], [], [7]]
    assert sets_of(ONE.narrow(torch.tensor([False, True, True]))) == [[], [7]]
    assert sets_of(ONE.join(OTHER)) == [[4, 2], [], [7], None, [1, 5, 9], [3]]


def test_rows_that_never_had_any_are_joined_as_unknown():
    none = flat_batch((1, 2))
    none = none.set(mask_T=torch.tensor([True, False, True]))
    assert sets_of(none.join(ONE)) == [None, [], None, [4, 2], [], [7]]
    assert sets_of(ONE.join(none)) == [[4, 2], [], [7], None, [], None]


def test_a_known_draw_without_its_set_is_refused():
    drawn = {"version_T": torch.zeros(3, dtype=torch.int64)}
    known = batch_of([packed(1), None, b""], logp_behavior_T=[-1.0, NAN, -2.0], **drawn)
    check_known(known)  # of the void one nothing is known, and nothing needed
    check_known(known.set(version_T=torch.full((3,), -1)))
    with pytest.raises(UserError, match=r"for 1 tokens of this step .* sampling_mask=weigh"):
        check_known(known.set(logp_behavior_T=torch.tensor([-1.0, -3.0, -2.0])))
    with pytest.raises(UserError, match="for 3 tokens"):
        check_known(flat_batch((2, 1), logp_behavior_T=[-1.0] * 3, **drawn))
