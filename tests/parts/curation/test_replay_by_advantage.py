import pytest
import torch
from builders import flat_batch, run
from fakes.services import SHELF
from ragged import ragged_batch

from strop.parts.curation.replay_by_advantage import ReplayByAdvantage
from strop.support.errors import UserError


def batch_of(step, advantages, scored=None):
    """One-token rollouts of one prompt, their uids 100 step + place."""
    num = len(advantages)
    scored_B = torch.ones(num, dtype=torch.bool) if scored is None else torch.tensor(scored)
    return flat_batch(
        (1,) * num, made_advantage_B=advantages, rollout_uid_B=100 * step + torch.arange(num),
        origin_T=torch.zeros(num, dtype=torch.int64), step=torch.tensor(step),
        logp_sampler_T=[-0.1 * step] * num,
    ).set(scored_B=scored_B)  # fmt: skip


def steps(part, batches, state=None, seed=0):
    """Rows and metrics of each step, and the state after them."""
    state, found = part.init() if state is None else state, []
    for batch in batches:
        rng = torch.Generator().manual_seed(1000 * seed + int(batch["step"]))
        result = run(part, batch, state=state, rng=rng)
        assert not result.value.keep_B.any()
        assert result.value.add.columns.keys() == batch.columns.keys()
        state = result.state
        found.append((result.value.add, result.metrics))
    return found, state


def uids(rows):
    return rows["rollout_uid_B"].tolist()


@pytest.mark.parametrize(
    ("exponent", "expected"),
    [(1.0, [0.5, 1 / 6, 1 / 6, 1 / 6]), (0.0, [0.25] * 4), (2.0, [0.75, 1 / 12, 1 / 12, 1 / 12])],
)
def test_worked_example_of_the_weights(exponent, expected):
    # |A| = [1.5, .5, .5, .5]: P = [.5, .1667, .1667, .1667], shared by 160 rows of each
    part = ReplayByAdvantage(1.0, exponent=exponent)
    batch = batch_of(1, [1.5, -0.5, -0.5, 0.5] * 160)
    count = torch.zeros(4)
    for seed in range(10):
        ((rows, _),), _ = steps(part, [batch], seed=seed)
        count += torch.bincount((rows["rollout_uid_B"] - 100) % 4, minlength=4)
    assert (count / count.sum()).tolist() == pytest.approx(expected, abs=0.025)


def test_rows_without_an_advantage_leave_and_half_are_drawn():
    advantages = [0.0, 1.0, -1.0, 0.0, 2.0, 0.5, 0.0, -0.7]
    ((rows, metrics),), state = steps(ReplayByAdvantage(), [batch_of(1, advantages)])
    assert rows.size("B") == 4
    assert (rows["made_advantage_B"] != 0).all()
    assert (rows["origin_T"] == 0).all()
    assert metrics["replay/effective"] == 5 / 8
    assert metrics["replay/drawn"] == 0  # enough new ones
    assert state["columns"]["rollout_uid_B"].tolist() == [102, 104, 105, 107]  # newest of half


def test_what_is_missing_comes_from_the_store():
    first, second = batch_of(1, [1.0, -1.0, 2.0, 0.5]), batch_of(2, [0.0, 0.0, 0.3, 0.0])
    part = ReplayByAdvantage(share=1.0)
    found, state = steps(part, [first, second])
    rows, metrics = found[1]
    assert state["columns"]["rollout_uid_B"].tolist() == [101, 102, 103, 202]
    assert rows.size("B") == 4
    assert uids(rows)[0] == 202
    assert set(uids(rows)[1:]) <= {101, 102, 103, 202}
    assert metrics["replay/drawn"] == 3
    assert metrics["replay/effective"] == 0.25
    old_B = rows["rollout_uid_B"] < 200
    assert metrics["replay/age_mean"] == pytest.approx(float(old_B.sum()) / 3)
    assert rows["origin_T"].tolist() == [4 if old else 0 for old in old_B.tolist()]
    made = dict(zip([100, 101, 102, 103, 202], [1.0, -1.0, 2.0, 0.5, 0.3], strict=True))
    assert rows["made_advantage_B"].tolist() == [made[uid] for uid in uids(rows)]
    kept = [-0.1 if old else -0.2 for old in old_B.tolist()]  # of the policy that drew it
    assert rows["logp_sampler_T"].tolist() == pytest.approx(kept)


def test_a_small_store_comes_whole_before_a_draw():
    first, second = batch_of(1, [1.0, -1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]), batch_of(2, [0.0] * 8)
    found, _ = steps(ReplayByAdvantage(share=1.0), [first, second])
    assert sorted(uids(found[0][0])[2:8]).count(100) >= 2  # 2 drawn, then 6 = twice all and a draw
    assert sorted(uids(found[0][0])[2:8]).count(101) >= 2
    rows, metrics = found[1]
    assert rows.size("B") == 8
    assert uids(rows)[:6] == [100, 101] * 3
    assert metrics["replay/effective"] == 0
    assert metrics["replay/age_mean"] == 1


def test_draws_of_the_store_follow_the_advantage():
    first = batch_of(1, [1e-3, 1.0, 0.0, 0.0])
    rare = 0
    for seed in range(30):
        found, _ = steps(ReplayByAdvantage(0.25, capacity=2), [first, batch_of(2, [0.0] * 4)],
                         seed=seed)  # fmt: skip
        assert found[1][0].size("B") == 1
        rare += uids(found[1][0]) == [100]
    assert rare < 2  # of 30 with P = .0011


def test_a_floor_lets_small_advantages_come_back():
    first, small = batch_of(1, [1e-3, 1.0, 0.0, 0.0]), 0
    for seed in range(30):
        part = ReplayByAdvantage(0.25, capacity=2, floor=10.0)
        found, _ = steps(part, [first, batch_of(2, [0.0] * 4)], seed=seed)
        small += uids(found[1][0]) == [100]
    assert 6 < small < 23  # of 30 with P = 10.001 / 21.001


def test_groups_of_different_steps_stay_apart_and_copies_together():
    first, second = batch_of(1, [1.0, -1.0]), batch_of(2, [0.0, 0.4])
    found, _ = steps(ReplayByAdvantage(share=3.0, capacity=8), [first, second])
    rows = found[1][0]
    step_B = rows["rollout_uid_B"] // 100
    assert rows.size("P") == len(set(step_B.tolist())) == 2
    for group in range(2):
        assert len(set(step_B[rows["group_B"] == group].tolist())) == 1


def test_unscored_rollouts_are_neither_stored_nor_drawn():
    batch = batch_of(1, [1.0, 2.0, float("nan"), -1.0], scored=[True, True, False, True])
    ((rows, metrics),), state = steps(ReplayByAdvantage(1.0), [batch])
    assert 102 not in uids(rows) + state["columns"]["rollout_uid_B"].tolist()
    assert rows.size("B") == 3  # as many as have a score
    assert metrics["replay/effective"] == 1


def test_a_step_without_scores_takes_nothing_from_the_store():
    lost = batch_of(2, [1.0, -1.0], scored=[False, False])
    found, _ = steps(ReplayByAdvantage(1.0), [batch_of(1, [1.0, -1.0]), lost, batch_of(3, [0.0])])
    assert [rows.size("B") for rows, _ in found] == [2, 0, 1]
    assert found[1][1]["replay/stored"] == 2


def test_nothing_effective_and_nothing_stored_is_no_row():
    ((rows, metrics),), _ = steps(ReplayByAdvantage(), [batch_of(1, [0.0] * 4)])
    assert rows.size("B") == 0
    assert metrics == {"replay/stored": 0, "replay/drawn": 0, "replay/age_mean": 0,
                       "replay/effective": 0}  # fmt: skip
    nobody = batch_of(1, [1.0]).keep(torch.tensor([False]))
    ((rows, _),), _ = steps(ReplayByAdvantage(), [nobody])
    assert rows.size("B") == 0


def ragged(step):
    batch = ragged_batch(step, group_sizes=(3, 2))
    return batch.set(step=torch.tensor(step), rollout_uid_B=10 * step + torch.arange(5),
                     scored_B=torch.ones(5, dtype=torch.bool))  # fmt: skip


def test_bad_options_and_changed_columns_are_refused():
    for name in ("share", "capacity", "exponent", "floor"):
        with pytest.raises(UserError, match=name):
            ReplayByAdvantage(**{name: -1})
    part = ReplayByAdvantage(share=4.0, capacity=20)
    _, state = steps(part, [ragged(1)])
    (number,) = state["columns"]["stored_file_B"].unique().tolist()
    SHELF.files[number].pop("entropy_T")
    with pytest.raises(UserError, match="differ in entropy_T"):
        run(part, ragged(2), state=state, rng=torch.Generator())
