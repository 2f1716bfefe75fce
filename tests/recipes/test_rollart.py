import dataclasses

import pytest
from fakes.engine import TableEngine
from fakes.services import Steps
from models import Lab, without_times
from runs import Runner

from strop.method import notation
from strop.method.check import check
from strop.method.part import Draw
from strop.parts.rollout.leave_slow_groups_for_later import LeaveSlowGroupsForLater
from strop.parts.rollout.sample_independently import SampleIndependently
from strop.parts.rollout.take_first_complete_groups import TakeFirstCompleteGroups
from strop.recipes.grpo import grpo
from strop.recipes.rollart import rollart
from strop.support.errors import UserError

# Prompts are one token; 0 ends an answer, 5 and 6 go on.
A, B, C, D, E, F = range(1, 7)
PROMPTS = {uid: (uid,) for uid in (A, B, C, D, E, F)}


def tails(tokens):
    """a never ends, b and d end after 2 tokens, c after 4, e at once or after 3 tokens."""
    name, new = tokens[0], len(tokens) - 1
    ends = {B: new == 1, D: new == 1, C: new == 3, E: 1.0 if new == 2 else 0.5 * (new == 0)}
    stops = float(ends.get(name, 0.0))
    return [stops, 0, 0, 0, 0, (1 - stops) / 2, (1 - stops) / 2]


def begun(part, answer_tokens=40):
    return Steps(part, TableEngine(tails), PROMPTS, answer_tokens)


def draws(*uids, spare=(), num=2):
    return tuple(Draw(uid, num, {"spare_B": float(uid in spare)}) for uid in uids)


def test_worked_example():
    """alpha = 1, one group a step, n = 2, x = 1: the queue begins with two groups, three answers
    of each are drawn, two make it complete, and what is two steps old is dropped."""
    steps = begun(TakeFirstCompleteGroups(max_age=1, spare=1))
    first = steps(draws(A, B, spare=(B,)))
    assert [request.ids for request in steps.submitted] == [(A,)] * 3 + [(B,)] * 3
    assert first.batch["uid_P"].tolist() == [B]
    assert first.batch["length_B"].tolist() == [2, 2]
    assert first.num_discarded == 2  # the third of b, which ended too
    assert first.metrics == {
        "partial/groups_left": 1.0, "partial/tokens_left": 3 * 2.0, "partial/given_up": 0,
    }  # fmt: skip
    second = steps(draws(C), seed=1)
    assert [len(request.ids) for request in steps.submitted] == [3] * 3 + [1] * 3  # a goes on
    assert second.batch["uid_P"].tolist() == [C]
    assert second.metrics["partial/tokens_left"] == 3 * (2 + 4.0)
    third = steps(draws(D), seed=2)
    assert [request.ids for request in steps.submitted] == [(D,)] * 3
    assert third.batch["uid_P"].tolist() == [D]
    assert third.metrics["partial/given_up"] == 1
    assert third.num_discarded == 3 * 6 + 2  # a of two steps, and the third of d
    assert third.metrics["partial/groups_left"] == 0


def test_age_is_counted_from_the_step_that_drew_a_group():
    steps = begun(TakeFirstCompleteGroups(max_age=1))
    steps(draws(A, B, spare=(A,)))
    assert steps(draws(F, B, spare=(F,))).metrics["partial/groups_left"] == 2
    third = steps(draws(B))
    assert third.metrics["partial/given_up"] == 1  # a; f is one step old
    assert third.metrics["partial/groups_left"] == 1
    assert steps(draws(B)).metrics["partial/given_up"] == 1


def test_the_slowest_answers_are_broken_off():
    """Of e's answers some end at once, the others after three tokens: the quick ones count."""
    seed = next(s for s in range(99) if quick_of_e(s) == 2)
    found = begun(TakeFirstCompleteGroups(spare=1))(draws(E), seed)
    assert found.batch["length_B"].tolist() == [1, 1]
    assert found.num_discarded == 1  # the first token of the third answer
    one = next(s for s in range(99) if quick_of_e(s) == 1)
    found = begun(TakeFirstCompleteGroups(spare=1))(draws(E), one)
    assert sorted(found.batch["length_B"].tolist()) == [1, 3]  # the first two in their order
    assert found.num_discarded == 3


def quick_of_e(seed):
    found = begun(SampleIndependently())(draws(E, num=3), seed)
    return int((found.batch["length_B"] == 1).sum())


def test_what_goes_on_keeps_its_tokens_and_the_answers_that_have_ended():
    steps = begun(TakeFirstCompleteGroups(max_age=3, spare=1))
    steps(draws(C, B, spare=(B,)))
    (saved,) = steps.state["groups"]
    before = [[id for told in events for id in told[0].tolist()] for _, events in saved["answers"]]
    found = steps(draws(A), seed=1)
    assert found.batch["uid_P"].tolist() == [C]
    assert found.batch["length_B"].tolist() == [4, 4]
    ids = found.batch["id_T"][found.batch["mask_T"]].reshape(2, 4)[:, :2].tolist()
    assert ids == before[:2]


@pytest.mark.parametrize("part", [SampleIndependently(), LeaveSlowGroupsForLater()])
def test_equals_plain_samples_without_a_queue_and_spare_answers(part):
    ours = begun(TakeFirstCompleteGroups(), 6)(draws(A, B, C, E, num=3), seed=4)
    theirs = begun(part, 6)(draws(A, B, C, E, num=3), seed=4).batch
    for name, column in theirs.columns.items():
        assert ours.batch[name].equal(column), name


def test_equals_leaving_slow_groups_for_later_while_nothing_is_too_old():
    ours, theirs = begun(TakeFirstCompleteGroups(max_age=9), 6), begun(LeaveSlowGroupsForLater(), 6)
    for step, drawn in enumerate([draws(A, C, B, spare=(C,)), draws(D, E), draws(B, C)]):
        one, other = ours(drawn, seed=step).batch, theirs(drawn, seed=step).batch
        for name, column in other.columns.items():
            assert one[name].equal(column), (step, name)


def test_composes():
    algorithm = rollart(alpha=2, x=3, num_prompts=4)
    assert algorithm.sampling[1].part.share == 2.0
    assert algorithm.rollout.part == TakeFirstCompleteGroups(max_age=2, spare=3)
    plain = rollart(alpha=0)  # draws as grpo does, by the test above: the same but for that part
    assert dataclasses.replace(plain, rollout=grpo().rollout) == grpo()
    for text in ("alpha=-1", "x=-1"):
        with pytest.raises(UserError):
            check(notation.recipe(f"rollart({text})"))


def test_a_run_has_a_queue(tmp_path):
    lab = Lab.make(tmp_path)
    raw = lab.raw("rollart(alpha=2, x=1, num_prompts=3)", "even")
    del raw["algorithm"]["sampling.num_prompts"]
    raw["training"] |= {"steps": 5}
    Runner().whole(raw, tmp_path / "run")
    lines = without_times(tmp_path / "run")
    assert max(line["partial/tokens_left"] for line in lines) > 0


@pytest.mark.parametrize("recipe", ["rollart", "rollart(alpha=1, x=2)", "april_partial_rollout"])
def test_the_queue_follows_the_number_of_prompts_that_an_option_gives(recipe, tmp_path):
    """Four prompts a step, and so four more under way; with the defaults too they wait."""
    raw = Lab.make(tmp_path).raw(recipe, "even", training={"steps": 2})
    raw["algorithm"]["sampling.num_prompts"] = 4
    lines = Runner().go(Runner().start(raw, tmp_path / "run")).seen
    assert [line["partial/groups_left"] for line in lines] == [4, 4]
    assert lines[1]["sampling/age_steps"] > 0
