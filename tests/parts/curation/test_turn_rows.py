"""A turn as a rollout of its own: its context is everything before it in its rollout."""

import torch
from builders import ragged_batch

from strop.parts.curation._rows import own_turns, turn_rows


def test_rows_of_turns_in_any_order_and_more_than_once():
    batch = ragged_batch(seed=1, num_turns=(1, 3)).set()
    turns_N = torch.tensor([5, 0, 5, 2])
    rows = turn_rows(batch, turns_N)
    turn, rollout = batch["turn_T"].tolist(), batch["rollout_T"].tolist()
    for n, wanted in enumerate(turns_N.tolist()):
        own = int(batch["rollout_K"][wanted])
        context = [t for t, k in enumerate(turn) if rollout[t] == own and k <= wanted]
        here = rows["rollout_T"] == n
        assert rows["id_T"][here].equal(batch["id_T"][context])
        policy = [bool(batch["mask_T"][t]) and turn[t] == wanted for t in context]
        assert rows["mask_T"][here].tolist() == policy
        group = rows["group_B"][n]
        assert rows["uid_P"][group] == batch["uid_P"][batch["group_B"][own]]
    assert rows["parent_B"].tolist() == [-1] * 4


def test_a_turn_before_another_context_is_not_seen():
    batch = ragged_batch(seed=1, num_turns=(2, 2))
    batch = batch.set(sequence_T=batch["turn_T"] % 2)
    rows = turn_rows(batch, torch.tensor([3]))
    assert rows["id_T"].equal(batch["id_T"][batch["turn_T"] == 3])


def test_turns_of_ones_own_lie_behind_the_fork():
    batch = ragged_batch(seed=2, num_turns=(2, 2), lengths=(2, 2))
    fork_B = torch.tensor([-1, 1, 2, 3, 4] + [0] * (batch.size("B") - 5))
    own_K = own_turns(batch.set(fork_at_B=fork_B))
    # Of the answer's tokens 0 to 3 the turns have two each.
    wanted = [(True, True), (True, True), (False, True), (False, True), (False, False)]
    assert own_K[:10].tolist() == [own for pair in wanted for own in pair]
