import io
from collections import Counter

import pytest
import torch
from builders import run
from fakes.services import SHELF
from ragged import ragged_batch

from strop.parts.curation.replay_rollouts import ReplayRollouts
from strop.support.errors import UserError


def steps(part, num, seed=0, state=None, first=1):
    """The rollouts and metrics of some steps, and the state after them."""
    state = part.init() if state is None else state
    found = []
    for step in range(first, first + num):
        batch = ragged_batch(100 * seed + step, group_sizes=(3, 2))
        batch = batch.set(
            step=torch.tensor(step), rollout_uid_B=10 * step + torch.arange(5),
            scored_B=torch.ones(5, dtype=torch.bool), uid_P=torch.tensor([7, 8]),
            version_T=torch.full_like(batch["turn_T"], step - 1),
        )  # fmt: skip
        rng = torch.Generator().manual_seed(step)
        result = run(part, batch, state=state, rng=rng)
        assert not result.value.keep_B.any()
        state = result.state
        drawn = batch.keep(result.value.keep_B).join(result.value.add)
        found.append((batch, drawn, result.metrics))
    return found, state


def uids(batch):
    return batch["rollout_uid_B"].tolist()


def test_without_limits_everything_comes_back_each_step():
    found, _ = steps(ReplayRollouts(), 3)
    for step, (_, drawn, metrics) in enumerate(found, start=1):
        assert uids(drawn) == [10 * s + i for s in range(1, step + 1) for i in range(5)]
        assert metrics["replay/stored"] == metrics["replay/drawn"] == 5 * step
        assert metrics["replay/age_mean"] == pytest.approx((step - 1) / 2)


def test_rollouts_come_back_as_they_were():
    found, _ = steps(ReplayRollouts(), 2)
    (first, _, _), (_, drawn, _) = found
    old_T = drawn["rollout_T"] < 5
    for name, column in first.columns.items():
        if name.endswith("_T") and name not in ("turn_T", "origin_T"):
            torch.testing.assert_close(drawn[name][old_T], column, equal_nan=True)
    policys = drawn["mask_T"]
    assert (drawn["origin_T"][old_T & policys] == 4).all()
    assert (drawn["origin_T"][old_T & ~policys] == 1).all()
    assert (drawn["origin_T"][~old_T & policys] == 0).all()
    assert drawn.columns.keys() == first.columns.keys()


def test_groups_of_different_steps_stay_apart():
    _, (_, drawn, _) = steps(ReplayRollouts(), 2)[0]
    assert drawn["uid_P"].tolist() == [7, 8, 7, 8]
    assert len(set(drawn["draw_P"].tolist())) == 2
    sizes = torch.bincount(drawn["group_B"]).tolist()
    assert sizes == [3, 2, 3, 2]


def test_what_is_drawn_leaves_and_the_rest_ages():
    part = ReplayRollouts(0, 0, per_prompt=1, max_age=2, keep_drawn=False)
    found, _ = steps(part, 4)
    seen = Counter(uid for _, drawn, _ in found for uid in uids(drawn))
    assert set(seen.values()) == {1}
    for step, (_, drawn, metrics) in enumerate(found, start=1):
        assert sorted(drawn["uid_P"][drawn["group_B"]].tolist()) == [7, 8]
        assert all(uid // 10 > step - 2 for uid in uids(drawn))
        assert metrics["replay/drawn"] == 2
    # 3 left of the first step, at most 3 + 3 at the second; those of the first go at the third
    assert [m["replay/stored"] for _, _, m in found][:2] == [3, 6]
    assert found[2][2]["replay/aged_out"] > 0
    found, _ = steps(ReplayRollouts(max_age=2), 4)  # all five of the step before the last one
    assert [metrics["replay/aged_out"] for *_, metrics in found] == [0, 0, 5, 5]
    assert [metrics["replay/stored"] for *_, metrics in found] == [5, 10, 10, 10]


def test_limits_of_draws_and_of_room():
    found, _ = steps(ReplayRollouts(num_drawn=4), 3)
    assert [len(uids(drawn)) for _, drawn, _ in found] == [4, 4, 4]
    part = ReplayRollouts(capacity=12)
    found, state = steps(part, 4)
    kept = state["columns"]
    assert kept["rollout_K"].shape[0] <= 12
    last = uids(found[-1][1])
    assert last == sorted(last)  # the newest, in order
    assert last[-1] == 44
    assert len(last) == found[-1][2]["replay/stored"]


def test_unscored_rollouts_are_not_stored():
    batch = ragged_batch(1, group_sizes=(4,))
    scored_B = torch.tensor([True, False, True, False])
    part = ReplayRollouts()
    rng = torch.Generator().manual_seed(0)
    result = run(part, batch.set(scored_B=scored_B), state=part.init(), rng=rng)
    assert uids(result.value.add) == [0, 2]


def test_goes_on_from_a_saved_store():
    part = ReplayRollouts(0, 5, 3, 3, keep_drawn=False)
    whole, _ = steps(part, 5)
    _, state = steps(part, 3)
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    rest, _ = steps(part, 2, state=torch.load(file, weights_only=True), first=4)
    for (_, one, told), (_, other, again) in zip(whole[3:], rest, strict=True):
        assert told == again
        for name, column in one.columns.items():
            torch.testing.assert_close(other[name], column, equal_nan=True)


def test_columns_must_stay_the_same():
    part = ReplayRollouts()
    _, state = steps(part, 1)
    stored = state["columns"]
    (number,) = stored["stored_file_B"].unique().tolist()
    SHELF.files[number].pop("entropy_T")
    with pytest.raises(UserError, match="differ in entropy_T"):
        steps(part, 1, state=state, first=2)
    stored.pop("truncated_B")
    with pytest.raises(UserError, match="differ in truncated_B"):
        steps(part, 1, state=state, first=2)


def test_nothing_to_store_and_nothing_to_draw():
    batch = ragged_batch(2)
    part = ReplayRollouts()
    nobody = batch.keep(batch["index_B"] < 0)
    result = run(part, nobody, state=part.init(), rng=torch.Generator())
    assert result.value.add.size("B") == 0
    assert result.metrics["replay/age_mean"] == 0
