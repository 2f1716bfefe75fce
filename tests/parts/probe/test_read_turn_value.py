import pytest
import torch
from builders import flat_batch
from ragged import ragged_batch

from strop.method.part import Use, call
from strop.parts.probe.read_turn_value import PLACES, ReadTurnValue
from strop.support.errors import UserError


def slow(batch, place):
    """Row of the token that the value of every turn is read at; None without one."""
    found = []
    for k in range(batch.size("K")):
        rows = ((batch["turn_T"] == k) & batch["mask_T"]).nonzero().squeeze(1).tolist()
        if not rows:
            found.append(None)
            continue
        spans = [int(batch["span_T"][t]) for t in rows]
        at = 0
        if place == "last":
            at = len(rows) - 1
        elif place == "action":
            for bit in (1, 2):
                ends = [i + 1 for i, span in enumerate(spans) if span & bit]
                at = max(ends) if ends else at
            at = min(at, len(rows) - 1)
        found.append(rows[at])
    return found


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("seed", range(5))
def test_matches_slow_loop(place, seed):
    batch = ragged_batch(seed, max_turns=4)
    value_K, at_T = call(Use(ReadTurnValue(place)), batch).value
    rows = slow(batch, place)
    owner = batch["rollout_K"].tolist()
    if place == "next":
        after = [*rows[1:], None]
        same = [k + 1 < len(owner) and owner[k] == owner[k + 1] for k in range(len(owner))]
        rows = [row if goes_on else None for row, goes_on in zip(after, same, strict=True)]
        assert not at_T.any()
    if place == "begin":
        rows = [rows[owner.index(k)] for k in owner]
    expected = [0.0 if row is None else float(batch["value_T"][row]) for row in rows]
    assert value_K.tolist() == expected
    if place == "segment":
        begins = [k == 0 or owner[k] != owner[k - 1] or bool(batch["switch_K"][k])
                  for k in range(len(owner))]  # fmt: skip
        rows = [row if begin else None for row, begin in zip(rows, begins, strict=True)]
    elif place == "begin":
        rows = [row if owner.index(owner[k]) == k else None for k, row in enumerate(rows)]
    if place != "next":
        assert at_T.nonzero().squeeze(1).tolist() == sorted(r for r in rows if r is not None)


def test_the_action_begins_behind_the_switch_block_where_there_is_no_subgoal():
    # turns of three tokens: a switch block of one, no block, a subgoal block of one behind it
    batch = flat_batch((9,), turn_T=torch.arange(3).repeat_interleave(3),
                       rollout_K=torch.zeros(3, dtype=torch.int64),
                       span_T=torch.tensor([1, 0, 0, 0, 0, 0, 1, 2, 0]),
                       value_T=[float(t) for t in range(9)])  # fmt: skip
    value_K, at_T = call(Use(ReadTurnValue("action")), batch).value
    assert value_K.tolist() == [1, 3, 8]
    assert at_T.nonzero().squeeze(1).tolist() == [1, 3, 8]


def test_nothing_follows_the_last_turn_of_two_rollouts():
    batch = flat_batch((2, 1), turn_T=torch.arange(3), rollout_K=torch.tensor([0, 0, 1]),
                       value_T=[5.0, 6.0, 7.0])  # fmt: skip
    assert call(Use(ReadTurnValue("next")), batch).value[0].tolist() == [6, 0, 0]


def test_only_turns_of_some_origins_are_marked():
    batch = ragged_batch(3)
    origin_T = torch.where(batch["rollout_T"] % 2 == 0, 4, 0)
    batch = batch.set(origin_T=origin_T)
    value_K, all_T = call(Use(ReadTurnValue()), batch).value
    other_K, some_T = call(Use(ReadTurnValue(origins=(4,))), batch).value
    assert other_K.equal(value_K)
    assert some_T.equal(all_T & (origin_T == 4))


def test_refuses_an_unknown_place():
    with pytest.raises(UserError, match=r"place must be one of first, last, action"):
        ReadTurnValue("middle")
