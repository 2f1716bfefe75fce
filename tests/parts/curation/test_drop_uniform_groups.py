import pytest
import torch
from builders import NAN, flat_batch, members_of, ragged_batch, run

from strop.parts.curation.drop_uniform_groups import DropUniformGroups
from strop.support.errors import UserError


def _batch(*groups: list[float]):
    outcomes = [value for group in groups for value in group]
    numbers = [g for g, group in enumerate(groups) for _ in group]
    batch = flat_batch((1,) * len(outcomes), groups=numbers, outcome_B=outcomes)
    return batch.set(scored_B=~batch["outcome_B"].isnan())


MIXED, RIGHT, WRONG = [1.0, 0.0, 1.0], [1.0, 1.0, 1.0], [0.0, 0.0, 0.0]


def test_worked_example_over_three_rounds():
    part = DropUniformGroups(max_rounds=3)
    # round 1: one of three is live, two missing; the target is what was sampled first
    first = run(part, _batch(MIXED, RIGHT, WRONG), state=part.init())
    assert first.value.ask == 2
    assert first.value.keep_B.all()
    assert first.state == {"rounds": 1, "target": 3}
    assert first.metrics == {
        "dynamic_sampling/rounds": 1.0,
        "dynamic_sampling/uniform_fraction": pytest.approx(2 / 3),
        "dynamic_sampling/missing_prompts": 2.0,
    }
    # round 2: five groups, two live, one missing
    second = run(part, _batch(MIXED, RIGHT, WRONG, MIXED, RIGHT), state=first.state)
    assert second.value.ask == 1
    assert second.state == {"rounds": 2, "target": 3}
    # round 3: enough, and one live group too many is cut off
    groups = (MIXED, RIGHT, WRONG, MIXED, RIGHT, MIXED, MIXED)
    third = run(part, _batch(*groups), state=second.state)
    assert not third.value.ask
    assert third.value.keep_B.view(7, 3)[:, 0].tolist() == [
        True, False, False, True, False, True, False,
    ]  # fmt: skip
    assert third.state == part.init()
    assert third.metrics["dynamic_sampling/missing_prompts"] == 0.0


def test_goes_on_with_what_there_is_or_raises():
    batch = _batch(MIXED, RIGHT)
    part = DropUniformGroups(max_rounds=2)
    last = run(part, batch, state={"rounds": 1, "target": 2})
    assert not last.value.ask
    assert last.value.keep_B.tolist() == [True] * 3 + [False] * 3
    assert last.metrics["dynamic_sampling/missing_prompts"] == 1.0
    strict = DropUniformGroups(max_rounds=2, strict=True)
    with pytest.raises(UserError, match="1 of 2"):
        run(strict, batch, state={"rounds": 1, "target": 2})
    assert run(strict, batch, state=strict.init()).value.ask == 1


def test_without_refill_and_without_limit():
    once = DropUniformGroups(max_rounds=1)
    result = run(once, _batch(MIXED, RIGHT), state=once.init())
    assert not result.value.ask
    assert result.value.keep_B.tolist() == [True] * 3 + [False] * 3
    endless = DropUniformGroups(max_rounds=0)
    assert run(endless, _batch(RIGHT), state={"rounds": 999, "target": 1}).value.ask == 1


def test_target_may_be_given():
    part = DropUniformGroups(num_prompts=4)
    assert run(part, _batch(MIXED, MIXED), state=part.init()).value.ask == 2
    part = DropUniformGroups(num_prompts=1)
    kept = run(part, _batch(MIXED, MIXED), state=part.init()).value
    assert kept.keep_B.tolist() == [True] * 3 + [False] * 3
    assert kept.reason == "uniform_group"


def test_matches_slow_loop():
    batch = ragged_batch(5, groups=(3, 1, 4, 2, 3, 3), unscored=(4, 8))
    part = DropUniformGroups(max_rounds=1)
    found = run(part, batch, state=part.init()).value.keep_B
    for group in range(batch.size("P")):
        values = {float(batch["outcome_B"][i]) for i in members_of(batch, group)}
        live = len(values) > 1 or len(members_of(batch, group)) == 1
        assert set(found[batch["group_B"] == group].tolist()) == {live}
    assert 0 < int(found.sum()) < batch.size("B")


def test_edges():
    part = DropUniformGroups(max_rounds=1)
    # one scored rollout -> live; none -> dropped; an unscored one beside a mixed pair stays
    batch = _batch([1.0], [1.0, NAN], [NAN, NAN], [1.0, 0.0, NAN])
    kept = run(part, batch, state=part.init()).value.keep_B
    assert kept.tolist() == [True, True, True, False, False, True, True, True]
    nothing = run(part, _batch(RIGHT, WRONG), state=part.init())
    assert not nothing.value.keep_B.any()
    assert nothing.metrics["dynamic_sampling/missing_prompts"] == 2.0
    assert nothing.metrics["dynamic_sampling/uniform_fraction"] == 1.0
    single = run(part, _batch(RIGHT), state=part.init())
    assert single.metrics["dynamic_sampling/uniform_fraction"] == 1.0
    live = run(part, _batch(MIXED), state=part.init())
    assert live.metrics["dynamic_sampling/uniform_fraction"] == 0.0
    assert part.facts == {"removes_uniform_groups"}
    for field in ("num_prompts", "max_rounds"):
        with pytest.raises(UserError, match=field):
            DropUniformGroups(**{field: -1})


def test_looks_at_the_outcome_and_not_at_the_shaped_reward():
    batch = _batch(RIGHT).set(reward_B=torch.tensor([1.0, 0.7, 0.4]))
    part = DropUniformGroups(max_rounds=1)
    assert not run(part, batch, state=part.init()).value.keep_B.any()


# never solved, always solved, mixed, a lone perfect one, no score
SOLVED_GROUPS = (0, 0, 1, 1, 2, 2, 3, 4)
SOLVED_BATCH = flat_batch(
    (1,) * 8, groups=SOLVED_GROUPS, outcome_B=[0.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0, 0.0]
).set(scored_B=torch.tensor([True] * 7 + [False]))


def _kept(found):
    return found.value.keep_B.tolist()


def test_keep_failed_keeps_never_solved_and_drops_solved_groups():
    part = DropUniformGroups(max_rounds=1, keep_failed=True)
    found = run(part, SOLVED_BATCH, state=part.init())
    assert part.facts == frozenset()
    assert _kept(found) == [True, True, False, False, True, True, False, False]
    assert found.metrics["dynamic_sampling/missing_prompts"] == 3
    assert found.metrics["dynamic_sampling/uniform_fraction"] == pytest.approx(3 / 5)
    # a unanimous outcome below the best stays, also where the best is another number
    higher = run(
        DropUniformGroups(max_rounds=1, keep_failed=True, best=2.0), SOLVED_BATCH, state=part.init()
    )
    assert _kept(higher) == [True] * 7 + [False]


def test_keep_failed_asks_until_there_are_enough_or_the_rounds_end():
    part = DropUniformGroups(3, 2, keep_failed=True)
    found = run(part, SOLVED_BATCH, state=part.init())
    assert found.value.ask == 1
    assert found.state == {"rounds": 1, "target": 3}
    assert all(_kept(found))
    ended = run(part, SOLVED_BATCH, state=found.state)
    assert ended.value.ask == ()
    assert ended.state == part.init()
    enough = DropUniformGroups(1, keep_failed=True)
    assert _kept(run(enough, SOLVED_BATCH, state=enough.init())) == [True, True] + [False] * 6
