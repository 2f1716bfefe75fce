import io

import pytest
import torch
from builders import flat_batch, run

from strop.parts.curation.complete_from_pool import CompleteFromPool
from strop.support.errors import UserError


def batch_of(step, groups, scored=None):
    """prompt -> outcomes; uids of rollouts 100 step + place."""
    outcomes = [float(value) for group in groups.values() for value in group]
    index = [n for n, group in enumerate(groups.values()) for _ in group]
    num = len(outcomes)
    uid_B = 100 * step + torch.arange(num)
    scored_B = torch.ones(num, dtype=torch.bool) if scored is None else torch.tensor(scored)
    return flat_batch(
        (1,) * num, index, outcome_B=outcomes, rollout_uid_B=uid_B, id_T=uid_B,
        origin_T=torch.zeros(num, dtype=torch.int64), step=torch.tensor(step),
        logp_behavior_T=[-0.1 * step] * num, uid_P=torch.tensor(list(groups)),
    ).set(scored_B=scored_B)  # fmt: skip


def steps(part, *batches, state=None, seed=0):
    """Rollouts that are trained on, by prompt, at each step; metrics; the state at the end."""
    state, found = part.init() if state is None else state, []
    for batch in batches:
        rng = torch.Generator().manual_seed(1000 * seed + int(batch["step"]))
        result = run(part, batch, state=state, rng=rng)
        curated = batch.keep(result.value.keep_B)
        if result.value.add is not None:
            curated = curated.join(result.value.add)
        state = result.state
        uids = curated["uid_P"][curated["group_B"]].tolist()
        rollouts = curated["rollout_uid_B"].tolist()
        by = {uid: sorted(r for u, r in zip(uids, rollouts, strict=True) if u == uid)
              for uid in sorted(set(uids))}  # fmt: skip
        assert len(by) == curated.size("P")  # what came back is in the prompt's own group
        found.append((by, result.metrics, curated))
    return found, state


def stored(state):
    return state["columns"]["rollout_uid_B"].tolist()


def test_mixed_prompts_are_trained_on_and_others_wait():
    ((by, metrics, _),), state = steps(
        CompleteFromPool(ready=4), batch_of(1, {7: [1, 0, 0, 0], 8: [1, 1, 1, 1], 9: [0, 0, 0, 0]})
    )
    assert by == {7: [100, 101, 102, 103]}
    assert metrics["replay/drawn"] == 0
    # the newest success of 7; all of 8 and 9 wait for one step more
    assert stored(state) == [100, *range(104, 112)]


@pytest.mark.parametrize("num", [4, 24])
def test_groups_are_as_large_as_a_step_asked_for(num):
    """However many that is; a prompt that is given fewer waits over steps until it has as many."""
    part = CompleteFromPool(ready=0, versions=9)
    whole, spared = [1] + [0] * (num - 1), [1] * (num // 2)
    found, state = steps(part, batch_of(1, {7: whole, 8: spared}), batch_of(2, {8: spared[1:]}))
    assert [len(rows) for rows in found[0][0].values()] == [num]
    assert found[1][0] == {}  # a later step asked for fewer, which changes nothing
    found, _ = steps(part, batch_of(3, {8: [0]}), state=state)
    assert found[0][0] == {8: [*range(100 + num, 100 + num + num // 2),
                               *range(200, 200 + num // 2 - 1), 300]}  # fmt: skip
    late = CompleteFromPool(ready=0, versions=2)
    found, _ = steps(late, batch_of(3, {8: [0]}), state=state)
    assert found[0][0] == {}  # those of step 1 wait no longer


def test_a_prompt_without_success_gets_its_newest_in_place_of_the_oldest():
    part = CompleteFromPool(ready=4, versions=1)
    first = batch_of(1, {7: [1, 0, 1, 0], 8: [0, 0, 1, 1]})
    again = batch_of(5, {8: [0, 0, 0, 0], 7: [0, 0, 0, 0], 9: [0, 0, 0, 0]})
    found, state = steps(part, first, again)
    by, metrics, rows = found[1]
    assert by == {7: [102, 505, 506, 507], 8: [107, 501, 502, 503]}
    assert metrics["replay/drawn"] == 2
    assert metrics["replay/age_mean"] == 4
    came_B = rows["rollout_uid_B"] < 200
    assert rows["origin_T"].tolist() == [4 if came else 0 for came in came_B.tolist()]
    assert rows["logp_behavior_T"][came_B].tolist() == pytest.approx([-0.1, -0.1])
    assert stored(state) == [102, 107]  # it may come again
    found, _ = steps(part, batch_of(9, {7: [0, 0, 0, 0]}), state=state)
    assert found[0][0] == {7: [102, 901, 902, 903]}


def test_rollouts_wait_for_their_prompt_one_version():
    part = CompleteFromPool(ready=4, versions=2)
    scored = [True, True, False, True]
    first = batch_of(1, {7: [0, 0, 0, 1]}, scored)
    found, state = steps(part, first)
    assert found[0][0] == {}
    assert stored(state) == [100, 101, 103]
    # 3 of before and 4 of now are 7: 4 of them at random, a right and a wrong one among them
    drawn = set()
    for seed in range(30):
        found, left = steps(part, batch_of(2, {7: [0, 0, 0, 0]}), state=state, seed=seed)
        (rows,) = found[0][0].values()
        assert len(rows) == 4
        assert 103 in rows
        drawn |= set(rows)
        assert set(stored(left)) == {103, *range(200, 204)} - (set(rows) - {103})
    assert drawn == {100, 101, 103, *range(200, 204)}
    found, _ = steps(part, batch_of(3, {7: [0, 0, 0, 0]}), state=state)
    assert found[0][0] == {7: [103, 301, 302, 303]}  # too old to wait, not to come back


def test_no_rollout_is_trained_on_twice_but_a_success():
    part = CompleteFromPool(ready=2, versions=3)
    found, _ = steps(part, batch_of(1, {7: [1, 0, 0]}), batch_of(2, {7: [0, 0, 0]}))
    used = found[0][0][7]
    assert len(used) == 2
    (spare,) = {100, 101, 102} - set(used)
    again = found[1][0][7]
    assert len(again) == 2
    assert 100 in again  # the success, in place of the oldest, the spare one
    assert spare not in again
    assert not set(again) & (set(used) - {100})


def test_a_prompt_that_was_given_fewer_waits_until_it_has_them_all():
    part = CompleteFromPool(ready=4)
    found, _ = steps(part, batch_of(1, {7: [1, 0], 8: [0, 0, 1]}), batch_of(2, {7: [1, 0]}))
    assert [by for by, _, _ in found] == [{}, {7: [100, 101, 200, 201]}]


def test_the_pool_is_bounded():
    part = CompleteFromPool(ready=2, versions=1, capacity=2, max_age=5)
    batches = [batch_of(step, {step % 3: [1, 1, 0, 0]}) for step in range(1, 13)]
    _, state = steps(part, *batches)
    # the newest two successes of each prompt, made in the last five steps
    assert stored(state) == [1000, 1001, 1100, 1101, 1200, 1201]
    _, state = steps(part, batch_of(16, {5: [0, 0]}), state=state)
    assert stored(state) == [1200, 1201]


def test_goes_on_from_a_saved_pool():
    part = CompleteFromPool(ready=4, versions=2)
    batches = [batch_of(n, {7: [n % 3 == 0, 0, 0, n % 5 == 0], 8: [0, n % 2, 0, 0]})
               for n in range(1, 11)]  # fmt: skip
    whole, _ = steps(part, *batches)
    _, state = steps(part, *batches[:5])
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    rest, _ = steps(part, *batches[5:], state=torch.load(file, weights_only=True))
    assert [each[:2] for each in rest] == [each[:2] for each in whole[5:]]
    assert any(told["replay/drawn"] for _, told, _ in rest)


def test_bad_options_are_refused():
    for fields in ({"ready": 1}, {"versions": 0}, {"capacity": -1}, {"max_age": -1}):
        with pytest.raises(UserError, match=next(iter(fields))):
            CompleteFromPool(**fields)


def test_rollouts_complete_the_group_of_their_own_role_alone():
    """Two roles of prompt 7: its second one has nothing from the first, and its success stays."""
    part, state, found = CompleteFromPool(ready=2, versions=9), None, []
    first = batch_of(1, {7: [0], 8: [1, 1]}).set(role_B=torch.tensor([0, 1, 1]))
    second = batch_of(2, {7: [0], 8: [1]}).set(role_B=torch.tensor([0, 1]))
    third = batch_of(3, {7: [0], 8: [0]}).set(role_B=torch.tensor([0, 1]))
    state = part.init()
    for batch in (first, second, third):
        batch = batch.set(uid_P=torch.tensor([7, 7]), draw_P=torch.tensor([0, 1]))
        result = run(part, batch, state=state, rng=torch.Generator().manual_seed(0))
        state, curated = result.state, batch.keep(result.value.keep_B)
        if result.value.add is not None:
            curated = curated.join(result.value.add)
        found.append(curated)
    assert [each.size("B") for each in found] == [0, 0, 2]
    assert set(found[2]["role_B"].tolist()) == {1}
    assert 301 in found[2]["rollout_uid_B"].tolist()
