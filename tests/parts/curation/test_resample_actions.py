import pytest
import torch
from builders import run
from fakes.engine import TableEngine, by_last_token
from fakes.services import FakeSampling, FakeServices
from ragged import ragged_batch

from strop.parts.curation.resample_actions import ResampleActions
from strop.support.errors import UserError

# After a 5 the action is 6 and then the end, after a 4 it is 7 and the end.
TABLE = {
    5: (0, 0, 0, 0, 0, 0, 1, 0), 4: (0, 0, 0, 0, 0, 0, 0, 1),
    6: (1, 0, 0, 0, 0, 0, 0, 0), 7: (1, 0, 0, 0, 0, 0, 0, 0),
}  # fmt: skip


def episodes():
    """Two turns (5: 1, 2; 4: 3), then one (4: 2, with a turn before it that has no action)."""
    ids = [5, 1, 2, 4, 3, 9, 4, 2]
    mask = [False, True, True, False, True, False, False, True]
    batch = ragged_batch(2, (2,))
    rows = {"T": 8, "K": 4, "B": 2, "P": 1}
    columns = {}
    for name, column in batch.columns.items():
        level = name.rpartition("_")[2][:1] if "_" in name else ""
        number = rows.get(level)
        columns[name] = column if number is None else column[:1].expand(number, *column.shape[1:])
    columns |= {
        "id_T": torch.tensor(ids), "mask_T": torch.tensor(mask),
        "turn_T": torch.tensor([0, 0, 0, 1, 1, 2, 3, 3]), "rollout_K": torch.tensor([0, 0, 1, 1]),
        "group_B": torch.tensor([0, 0]), "uid_P": torch.tensor([31]), "draw_P": torch.tensor([0]),
        "origin_T": torch.where(torch.tensor(mask), 0, 1), "rollout_uid_B": torch.tensor([1, 2]),
        "reward_K": torch.tensor([0.5, 1.0, 0.0, 2.0]), "done_K": torch.tensor([0, 1, 0, 1]).bool(),
    }  # fmt: skip
    return type(batch)({n: c for n, c in columns.items() if n != "sequence_T"})


def resampled(batch, part=None, **sampling):
    engine = TableEngine(by_last_token(TABLE))
    services = FakeServices(sampling=FakeSampling(engine, **sampling))
    rng = torch.Generator().manual_seed(0)
    return run(part or ResampleActions(), batch, services=services, rng=rng), services.sampling


def rows_of(batch, row):
    own_T = batch["rollout_T"] == row
    return batch["id_T"][own_T].tolist(), batch["origin_T"][own_T].tolist()


def test_every_turn_gets_a_fresh_action_after_what_came_before_it():
    batch = episodes()
    found, sampling = resampled(batch)
    assert [list(request.ids) for request in sampling.asked] == [[5], [5, 1, 2, 4], [9, 4]]
    assert found.metrics == {"replay/actions_resampled": 3.0}
    assert not found.value.keep_B.any()
    added = found.value.add
    assert added.size("B") == 5
    assert rows_of(added, 0) == ([5, 1, 2, 4, 3], [1, 4, 4, 1, 4])
    assert rows_of(added, 1) == ([9, 4, 2], [1, 1, 4])
    assert rows_of(added, 2) == ([5, 6, 0], [1, 0, 0])
    assert rows_of(added, 3) == ([5, 1, 2, 4, 7, 0], [1, 1, 1, 1, 0, 0])
    assert rows_of(added, 4) == ([9, 4, 7, 0], [1, 1, 0, 0])
    # one turn each, unplayed; what was played keeps its rewards
    assert added["reward_K"].tolist() == [0.5, 1.0, 0.0, 2.0, 0, 0, 0]
    assert added["done_K"].tolist() == [False, True, False, True, True, True, True]
    assert added["group_B"].unique().tolist() == [0]
    fresh_T = added["mask_T"] & (added["origin_T"] == 0)
    assert added["logp_behavior_T"][fresh_T].tolist() == [0.0] * 6  # certain
    assert not added["truncated_B"][2:].any()


def test_limits():
    short, sampling = resampled(episodes(), ResampleActions(max_action_tokens=1))
    assert [request.max_tokens for request in sampling.asked] == [1, 1, 1]
    assert rows_of(short.value.add, 2) == ([5, 6], [1, 0])
    assert short.value.add["truncated_B"][2:].all()
    # the second context has four tokens and no room
    found, sampling = resampled(episodes(), context_tokens=4)
    assert [list(request.ids) for request in sampling.asked] == [[5], [9, 4]]
    assert [request.max_tokens for request in sampling.asked] == [3, 2]
    assert found.value.add.size("B") == 4
    with pytest.raises(UserError, match="max_action_tokens"):
        ResampleActions(max_action_tokens=-1)


def test_the_experts_and_the_kept_sets_of_fresh_actions_are_unknown():
    batch = episodes().set(
        experts_behavior_T=torch.full((8, 2), 3, dtype=torch.int16),
        num_kept_T=torch.zeros(8, dtype=torch.int64),
    )
    added = resampled(batch)[0].value.add
    fresh_T = added["rollout_T"] >= 2
    for name, known in (("experts_behavior_T", 3), ("num_kept_T", 0)):
        assert added[name][fresh_T].unique().tolist() == [-1]
        assert added[name][~fresh_T].unique().tolist() == [known]
