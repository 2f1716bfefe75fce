import pytest
import torch
from builders import flat_batch, run
from fakes.services import SHELF

from strop.method.part import EARLIER
from strop.parts.curation.replay_groups import ReplayGroups
from strop.support.errors import UserError


def batch_of(step, groups):
    """uid -> outcomes."""
    rows = [float(value) for each in groups.values() for value in each]
    index = [n for n, each in enumerate(groups.values()) for _ in each]
    ids = [100 * step + n for n in range(len(rows))]
    none = [-1] * len(rows)
    batch = flat_batch([1] * len(rows), index, outcome_B=rows, id_T=ids, step=torch.tensor(step),
                       rollout_uid_B=ids, origin_T=[0] * len(rows), parent_B=none,
                       fork_at_B=none, logp_behavior_T=[-float(step)] * len(rows))  # fmt: skip
    return batch.set(uid_P=torch.tensor(list(groups)))


def steps(part, *groups, seed=0):
    """What each step added: uid -> ids, and the last state."""
    state, found = part.init(), []
    for number, each in enumerate(groups, start=1):
        rng = torch.Generator().manual_seed(seed + number)
        result = run(part, batch_of(number, each), rng=rng, state=state)
        state = result.state
        assert result.value.keep_B.all()
        add = result.value.add
        added = {} if add is None else {
            int(uid): add["id_T"][add["group_B"] == row].tolist()
            for row, uid in enumerate(add["uid_P"])
        }  # fmt: skip
        found.append((added, result))
    return found


MIXED = [1, 0]


def test_the_newest_mixed_group_of_each_prompt_comes_back_whole():
    part = ReplayGroups(share=0.5, capacity=9, after=0)
    found = steps(part, {1: MIXED, 2: [1, 1], 3: [0, 0]}, {1: MIXED, 4: MIXED}, {5: MIXED})
    # after step 1: prompt 1 alone is mixed; after step 2 its newest group and prompt 4's
    assert found[0][0] == {}
    assert found[1][0] == {1: [100, 101]}
    both = {1: [200, 201], 4: [202, 203]}
    assert found[2][0].items() <= both.items()
    assert len(found[2][0]) == 1
    add = found[2][1].value.add
    assert add["origin_T"].tolist() == [4, 4]
    assert add["logp_behavior_T"].tolist() == [-2.0, -2.0]
    assert found[2][1].metrics["replay/age_mean"] == 1.0
    assert found[2][1].metrics["replay/share"] == 0.5
    drawn = {next(iter(steps(part, {1: MIXED}, {4: MIXED}, {5: MIXED}, seed=seed)[2][0]))
             for seed in range(0, 90, 9)}  # fmt: skip
    assert drawn == {1, 4}


def test_the_store_forgets_the_oldest_groups():
    part = ReplayGroups(share=0.5, after=0)  # room for twice the fresh groups
    found = steps(part, *({n: MIXED} for n in range(1, 6)))
    stored = [result.state["columns"]["uid_P"].tolist() for _, result in found]
    assert stored == [[1], [1, 2], [2, 3], [3, 4], [4, 5]]
    assert [result.metrics["replay/stored"] for _, result in found] == [2, 4, 4, 4, 4]
    small = steps(ReplayGroups(capacity=1, after=0), {1: MIXED, 2: MIXED}, {3: MIXED})
    assert small[0][1].state["columns"]["uid_P"].tolist() == [2]


def test_the_first_steps_only_fill_and_a_share_of_1_stores_nothing():
    found = steps(ReplayGroups(after=2), *({n: MIXED} for n in range(1, 5)))
    assert [bool(added) for added, _ in found] == [False, False, True, True]
    nothing = steps(ReplayGroups(share=1.0), {1: MIXED}, {2: MIXED})
    assert nothing[1][1].state["columns"] == {}
    assert nothing[1][1].metrics["replay/drawn"] == 0
    for fields in ({"share": 0.0}, {"capacity": -1}, {"after": -1}):
        with pytest.raises(UserError, match=next(iter(fields))):
            ReplayGroups(**fields)


def test_unscored_rollouts_are_not_stored():
    part = ReplayGroups(after=0)
    batch = batch_of(1, {1: [1, 0, 0]}).set(scored_B=torch.tensor([True, True, False]))
    state = run(part, batch, rng=torch.Generator(), state=part.init()).state
    (number,) = state["columns"]["stored_file_B"].unique().tolist()
    assert SHELF.files[number]["id_T"].tolist() == [100, 101]
    nobody = batch.set(scored_B=torch.zeros(3, dtype=torch.bool))
    after = run(part, nobody, rng=torch.Generator(), state=state).state["columns"]
    assert after["uid_P"].tolist() == state["columns"]["uid_P"].tolist() == [1]


def test_each_role_of_a_game_has_its_own_newest_group():
    part, state, drawn = ReplayGroups(share=0.4, capacity=9, after=0), None, []
    state = part.init()
    for step in (1, 2, 3):
        batch = batch_of(step, {7: MIXED, 8: MIXED})
        batch = batch.set(uid_P=torch.tensor([7, 7]), draw_P=torch.tensor([0, 1]),
                          role_B=torch.tensor([0, 0, 1, 1]))  # fmt: skip
        result = run(part, batch, rng=torch.Generator().manual_seed(step), state=state)
        state, add = result.state, result.value.add
        drawn.append([] if add is None else sorted(add["id_T"].tolist()))
    assert drawn == [[], [100, 101, 102, 103], [200, 201, 202, 203]]


def test_a_group_that_was_put_off_is_not_one_of_a_later_step():
    part = ReplayGroups(capacity=9, after=0)
    state = part.init()
    for step, draw in ((2, EARLIER), (3, 0)):  # one is of step 1, and ended in step 2
        batch = batch_of(step, {7: MIXED}).set(draw_P=torch.tensor([draw]))
        state = run(part, batch, rng=torch.Generator(), state=state).state
    assert state["columns"]["group_B"].tolist() == [0, 0, 1, 1]
