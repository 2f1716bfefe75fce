"""The four tables: filtering, indexing, joining and splitting rollouts."""

import functools
import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ragged import ragged_batch

from strop.batch.batch import DERIVED, SIZED_BY, SIZES, Batch, concatenate, from_padded, level_of
from strop.training.learner.kernel import View

SEEDS = st.integers(0, 10_000)


def rollouts(batch: Batch) -> list[dict]:
    """Each rollout as nested Python lists with all of its columns, for comparison."""
    found = []
    for row in range(batch.size("B")):
        group = int(batch["group_B"][row])
        of = {"T": batch["rollout_T"] == row, "K": batch["rollout_K"] == row}
        skipped = {"turn_T", "rollout_K", "group_B", "parent_B"}
        item = {
            name: column[of[level]].tolist() if level in of
            else column[row].tolist() if level == "B"
            else column[group].tolist() if level == "P"
            else column.tolist()
            for name, column in batch.columns.items()
            if name not in skipped and (level := level_of(name)) is not None
        }  # fmt: skip
        turn_T = batch["turn_T"][of["T"]]
        item["turns"] = (turn_T - turn_T[:1]).tolist()
        found.append(item)
    return found


def equal(one: Batch, other: Batch) -> bool:
    return one.columns.keys() == other.columns.keys() and all(
        one[name].equal(other[name]) for name in one.columns
    )


def test_levels_of_names():
    names = ("reward_BM", "logq_TV", "step", "logp_old_T", "uid_P", "adjoint:logp_T", "index_K")
    assert [level_of(name) for name in names] == ["B", "T", "", "T", "P", "T", "K"]


def test_derived_columns_by_hand():
    batch = Batch(
        {
            "turn_T": torch.tensor([0, 0, 1, 2, 2, 2]),
            "rollout_K": torch.tensor([0, 0, 1]),
            "group_B": torch.tensor([1, 0]),
            "uid_P": torch.tensor([5, 6]),
            "mask_T": torch.tensor([False, True, True, False, True, False]),
        }
    )
    assert batch["rollout_T"].tolist() == [0, 0, 0, 1, 1, 1]
    assert batch["group_T"].tolist() == [1, 1, 1, 0, 0, 0]
    assert batch["group_K"].tolist() == [1, 1, 0]
    assert batch["size_B"].tolist() == [3, 3]
    assert batch["length_B"].tolist() == [2, 1]
    assert batch["index_B"].tolist() == [0, 1]
    assert all(name in batch for name in DERIVED)


def test_sizes_are_ints_and_those_of_the_tables():
    batch = ragged_batch(0, group_sizes=(3, 1, 2))
    wanted = {"num_groups": 3, "num_rollouts": 6, "num_turns": len(batch["index_K"])}
    for shown in (batch, View(batch, slice(0, 4))):
        assert {name: shown[name] for name in SIZES} == wanted
        assert all(type(shown[name]) is int for name in SIZES)
    part = batch.keep(batch["group_B"] == 2)
    assert (part["num_groups"], part["num_rollouts"]) == (1, 2)
    assert batch.keep(batch["index_B"] < 0)["num_groups"] == 0


@given(SEEDS)
def test_take_keeps_each_rollout_whole(seed):
    batch = ragged_batch(seed)
    order = torch.randperm(batch.size("B"), generator=torch.Generator().manual_seed(seed))
    half = order[: (batch.size("B") + 1) // 2]
    before, after = rollouts(batch), rollouts(batch.take(half))
    assert after == [before[row] for row in half.tolist()]


@given(SEEDS)
def test_take_and_inverse_take_are_the_identity(seed):
    batch = ragged_batch(seed)
    order = torch.randperm(batch.size("B"), generator=torch.Generator().manual_seed(seed))
    assert equal(batch.take(order).take(torch.argsort(order)), batch)


@given(SEEDS)
def test_take_repeats_rollouts(seed):
    batch = ragged_batch(seed)
    index_B = torch.tensor([0, batch.size("B") - 1, 0])
    before = rollouts(batch)
    assert rollouts(batch.take(index_B)) == [before[row] for row in index_B.tolist()]


@given(SEEDS)
def test_keep_drops_groups_without_rollouts(seed):
    batch = ragged_batch(seed)
    kept = batch.keep(batch["group_B"] != 0)
    assert kept.size("P") == batch.size("P") - 1
    assert kept["uid_P"].tolist() == batch["uid_P"][1:].tolist()
    nothing = batch.keep(torch.zeros(batch.size("B"), dtype=torch.bool))
    assert [nothing.size(level) for level in SIZED_BY] == [0, 0, 0, 0]


def test_take_renumbers_forks():
    batch = ragged_batch(1, (2, 2))
    batch = batch.set(parent_B=torch.tensor([-1, 0, 1, 0]))
    # rollouts 3, 0, 2: the parent of 3 is 0, now row 1; the parent of 2 was 1, which is gone
    assert batch.take(torch.tensor([3, 0, 2]))["parent_B"].tolist() == [1, -1, -1]


@given(SEEDS, st.data())
def test_join_puts_split_groups_together_again(seed, data):
    batch = ragged_batch(seed)
    first_B = torch.tensor(
        data.draw(st.lists(st.booleans(), min_size=batch.size("B"), max_size=batch.size("B")))
    )
    order = torch.cat([first_B.nonzero()[:, 0], (~first_B).nonzero()[:, 0]])
    joined = batch.keep(first_B).join(batch.keep(~first_B))
    assert rollouts(joined) == rollouts(batch.take(order))
    assert joined.size("P") == batch.size("P")
    same = batch["group_B"][order]
    assert (joined["group_B"][:, None] == joined["group_B"]).equal(same[:, None] == same)


def test_join_keeps_other_draws_of_a_prompt_apart_and_shifts_forks():
    batch = ragged_batch(2, (2, 1)).set(parent_B=torch.tensor([-1, 0, -1]))
    again = batch.set(draw_P=torch.ones(2, dtype=torch.int64))
    joined = batch.join(again)
    assert joined.size("P") == 4
    assert joined["parent_B"].tolist() == [-1, 0, -1, -1, 3, -1]


def test_join_refuses_other_columns_and_concatenate_nothing():
    batch = ragged_batch(3)
    with pytest.raises(ValueError, match="extra_B"):
        batch.join(batch.set(extra_B=batch["reward_B"]))
    with pytest.raises(ValueError, match="no batch"):
        concatenate([])
    assert equal(concatenate([batch]), batch)


@pytest.mark.parametrize("number", [2, 3, 5, 64])
def test_concatenate_joins_in_order_and_copies_no_row_often(number, monkeypatch):
    """A batch is copied once in each round of pairs, not once for every batch behind it."""
    batches = [
        ragged_batch(seed).set(draw_P=torch.full_like(ragged_batch(seed)["uid_P"], seed))
        for seed in range(number)
    ]
    wanted = functools.reduce(Batch.join, batches)
    joined, join = [], Batch.join
    monkeypatch.setattr(Batch, "join", lambda one, two: joined.append(join(one, two)) or joined[-1])
    assert equal(concatenate(batches), wanted)
    assert len(joined) == number - 1
    most = sum(batch.size("T") for batch in batches) * math.ceil(math.log2(number))
    assert sum(batch.size("T") for batch in joined) <= most


def test_narrow_keeps_the_other_tables():
    batch = ragged_batch(4)
    narrow = batch.narrow(batch["mask_T"])
    assert narrow.size("T") == int(batch["mask_T"].sum())
    assert narrow["rollout_T"].equal(batch["rollout_T"][batch["mask_T"]])
    assert narrow.size("K") == batch.size("K")


@given(SEEDS, st.integers(1, 60))
def test_split_covers_each_rollout_once_within_the_budget(seed, budget):
    batch = ragged_batch(seed)
    micros = batch.split(budget)
    assert torch.cat(micros).sort().values.equal(batch["index_B"])
    for index_B in micros:
        padded = int(batch["size_B"][index_B].max()) * index_B.shape[0]
        assert padded <= budget or index_B.shape[0] == 1


@pytest.mark.parametrize("pass_tokens", [1, 3, 8, 50, 0])
def test_split_takes_the_fewest_places(pass_tokens):
    sizes, budget = [1, 2, 2, 5, 6, 9], 20
    mask_BL = torch.arange(9) < torch.tensor(sizes)[:, None]
    batch = from_padded({"id_T": torch.zeros(6, 9, dtype=torch.long)}, mask_BL)

    def cost(passes):
        places = [max(row) * len(row) for row in passes]
        return math.inf if max(places) > budget else sum(places) + len(passes) * (pass_tokens or 99)

    cuts = itertools.chain.from_iterable(itertools.combinations(range(1, 6), n) for n in range(6))
    least = min(cost([sizes[a:b] for a, b in itertools.pairwise([0, *cut, 6])]) for cut in cuts)
    found = [[sizes[row] for row in part] for part in batch.split(budget, pass_tokens)]
    assert sorted(itertools.chain.from_iterable(found)) == sizes
    assert cost(found) == least


def test_split_of_nothing_and_of_a_bad_budget():
    batch = ragged_batch(5)
    assert batch.keep(batch["index_B"] < 0).split(10) == []
    with pytest.raises(ValueError, match="token_budget"):
        batch.split(0)


def test_set_forgets_what_was_derived_from_the_old_column():
    batch = ragged_batch(6)
    assert int(batch["length_B"].sum()) == int(batch["mask_T"].sum())
    none = batch.set(mask_T=torch.zeros_like(batch["mask_T"]))
    assert int(none["length_B"].sum()) == 0
    assert int(batch["length_B"].sum()) > 0


def test_wrong_tables_are_refused():
    batch = ragged_batch(7)
    with pytest.raises(ValueError, match="logp_T has shape"):
        batch.set(logp_T=torch.zeros(1))
    with pytest.raises(ValueError, match="turn_T is not in order"):
        batch.set(turn_T=batch["turn_T"].flip(0))
    with pytest.raises(ValueError, match="needs the columns uid_P"):
        Batch({k: v for k, v in batch.columns.items() if k != "uid_P"})
    with pytest.raises(KeyError, match="no column nothing_T"):
        batch["nothing_T"]
