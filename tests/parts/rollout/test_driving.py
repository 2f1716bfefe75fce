"""Strategies on the table engine: answers, events, sharing, refusals; and the fake itself."""

import itertools
from types import SimpleNamespace

import pytest
import torch
from fakes.engine import TableEngine, by_last_token
from fakes.models import tiny
from fakes.services import FakeServices

from strop.engines.base import Request
from strop.engines.local.engine import LocalEngine
from strop.engines.rules import TopK
from strop.method.part import Draw
from strop.parts.rollout.assemble import assemble
from strop.parts.rollout.commands import Abort, Fork, Resume, Reward, Score, Submit
from strop.parts.rollout.drive import Crowd, _turn, drive, drive_all, roll_out, sample
from strop.parts.rollout.listen import converse, hear, listen
from strop.support.errors import UserError

# token 0 goes to 1 or 2, 1 to 2, 2 to 0
CYCLE = {0: (0.0, 0.5, 0.5), 1: (0.0, 0.0, 1.0), 2: (1.0, 0.0, 0.0)}


def cycle(**fields) -> TableEngine:
    return TableEngine(by_last_token(CYCLE), **fields)


def collect(requests):
    """The simplest strategy: submit all, wait for all; returns new tokens and the messages seen."""
    ids, events = yield [Submit(request) for request in requests]
    assert events == []
    new = {id: [] for id in ids}
    running = set(ids)
    while running:
        _, events = yield []
        assert events
        for event in events:
            new[event.request] += event.ids
            running -= {event.request} if event.ended else set()
    return [new[id] for id in ids]


def test_value_and_release():
    engine = cycle()
    progress = []
    value = drive(
        collect([Request((1,), 4)] * 3), engine, on_progress=lambda *x: progress.append(x)
    )
    assert [new[:2] for new in value] == [[2, 0]] * 3
    assert engine.rows == {}
    assert progress == [(0, 3), (0, 3), (0, 3), (3, 3)]


def test_several_strategies_share_an_engine():
    engine = cycle()
    requests = [[Request((i % 3,), 3 + i, seed=i)] * (i + 1) for i in range(4)]
    together = drive_all([collect(r) for r in requests], engine)
    assert together == [drive(collect(r), cycle()) for r in requests]
    assert engine.num_steps == 6  # as many as the longest alone


def test_fork_resume_abort():
    def strategy():
        (root,), _ = yield [Submit(Request((0,), 6, pause_every=2, seed=1))]
        _, events = yield []
        _, more = yield []
        events = [*events, *more]
        assert [event.ended for event in events] == ["", "paused"]
        tokens = [0, *(id for event in events for id in event.ids)]
        answers, events = yield [
            Fork(root, 1, (2,), {"pause_every": 0, "max_tokens": 2}),
            Resume(root, {"pause_every": 0}),
            Abort(root),
        ]
        fork, nothing, finished = answers
        assert nothing is None
        assert [id for event in finished.events for id in event.ids] == tokens[1:]
        assert finished.events[-1].ended == "aborted"
        new = []
        while not events or not events[-1].ended:
            _, events = yield []
            assert {event.request for event in events} == {fork}
            new += [id for event in events for id in event.ids]
        return new

    assert drive(strategy(), cycle())[0] == 0  # after 0, 2


def test_abort_withholds_events_that_were_not_heard_yet():
    def strategy():
        (a, b), _ = yield [Submit(Request((0,), 1)), Submit(Request((1,), 3))]
        _, events = yield []
        assert {event.request for event in events} == {a, b}
        answers, events = yield [Abort(b)]
        assert events == []
        return [id for event in answers[0].events for id in event.ids]

    assert drive(strategy(), cycle()) == [2]


def test_a_crowd_knows_what_is_left_of_each():
    def strategy():
        ids, _ = yield [Submit(Request((0,), 1)), Submit(Request((0,), 2))]
        ended = 0
        while ended < 2:
            _, events = yield []
            ended += sum(bool(event.ended) for event in events)
        yield [Fork(ids[1], 1, ()), Fork(ids[1], 1, ())]
        while True:
            yield []

    crowd, left = Crowd(cycle()), []
    crowd.begin("a", strategy())
    while left[-1:] != [(2, 2)]:
        left.append((crowd.left("a", 2), crowd.left("a", 4)))
        _turn([*crowd.runs.values()], crowd.owners, crowd.engine)
    crowd.close()
    assert [own for own, _ in itertools.groupby(left)] == [(2, 4), (1, 3), (2, 2)]


def test_an_episode_between_two_turns_has_not_ended():
    def strategy():
        for _ in range(3):
            yield [Submit(Request((0,), 2))]
            while not any(event.ended for event in (yield [])[1]):
                pass
        while True:
            yield []

    crowd = Crowd(cycle())
    crowd.begin("a", strategy())
    while crowd.left("a", 1):
        _turn([*crowd.runs.values()], crowd.owners, crowd.engine)
    assert len(crowd.runs["a"].ids) == 3
    crowd.close()


def test_services_answer_score_and_reward():
    class Both:
        def score(self, batch, policy, names):
            return [(name, batch, policy) for name in names]

        def grade(self, batch):
            return SimpleNamespace(outcome_B=[batch])

    services = FakeServices(scoring=Both(), grading=Both())

    def strategy():
        answers, _ = yield [Score("batch", "ref", ("logp_T",)), Reward("batch")]
        return answers

    assert drive(strategy(), cycle(), services) == [[("logp_T", "batch", "ref")], ["batch"]]
    with pytest.raises(UserError, match="give drive services"):
        drive(strategy(), cycle())


def test_sampling_inside_a_reward_keeps_the_outer_events():
    engine = cycle()

    class Grading:
        def grade(self, batch):
            found = sample(engine, [Request((1,), 5, pause_every=2)])
            return SimpleNamespace(outcome_B=found)

    services = FakeServices(grading=Grading())

    def strategy():
        yield [Submit(Request((1,), 4))]
        _, events = yield []
        new = [*events[0].ids]
        answers, events = yield [Reward(None)]
        finished = answers[0][0]
        assert [x for event in finished.events for x in event.ids][:2] == [2, 0]
        while len(new) < 4:
            new += [x for event in events for x in event.ids]
            if len(new) < 4:
                _, events = yield []
        return new

    assert drive(strategy(), engine, services) == drive(collect([Request((1,), 4)]), cycle())[0]
    assert engine.parked == []


def test_deadlock_is_an_error():
    def idle():
        yield []

    def forgets_to_resume():
        yield [Submit(Request((0,), 9, pause_every=1))]
        yield []
        yield []

    for strategy in (idle, forgets_to_resume):
        with pytest.raises(RuntimeError, match="nothing to run"):
            drive(strategy(), cycle())


@pytest.mark.parametrize(
    ("command", "lacking"),
    [
        (Submit(Request((0,), 1, rules=(TopK(1),))), "rules"),
        (Submit(Request((0,), 1, num_top=1)), "top"),
        (Submit(Request((0,), 1, want=frozenset({"entropy"}))), "entropy"),
        (Submit(Request((0,), 1, pause_every=1)), "pause"),
        (Fork(0, 1), "fork"),
        (Resume(0), "pause"),
    ],
)
def test_missing_capability(command, lacking):
    def strategy():
        yield [command]

    with pytest.raises(UserError, match=f"needs an engine with '{lacking}'; TableEngine has"):
        drive(strategy(), cycle(capabilities=frozenset()))


def test_others_requests_and_other_objects_are_refused():
    engine = cycle()
    foreign = engine.submit(Request((0,), 9))

    def strategy(command):
        yield [command]

    with pytest.raises(UserError, match="did not submit"):
        drive(strategy(Abort(foreign)), engine)
    with pytest.raises(UserError, match="no command"):
        drive(strategy("stop"), engine)
    assert list(engine.rows) == [foreign]


def test_requests_are_released_when_a_strategy_fails():
    def strategy():
        yield [Submit(Request((0,), 9))]
        raise KeyError("broken")

    engine = cycle()
    with pytest.raises(KeyError):
        drive(strategy(), engine)
    assert engine.rows == {}


def test_table_engine_and_local_engine_agree():
    """Same contract, same draws: the fake with the model's probabilities gives its tokens."""
    model = tiny("llama")

    def probabilities(tokens):
        with torch.no_grad():
            return model(torch.tensor([tokens])).logits[0, -1].softmax(-1).tolist()

    requests = [
        Request((3, 4), 6, seed=1, stop_ids=(1, 2)),
        Request((3, 4, 5), 6, seed=2, rules=(TopK(4),), pause_every=2),
        Request((9,), 6, temperature=0.5, seed=3, num_top=2, want=frozenset({"entropy"})),
    ]
    fake = sample(TableEngine(probabilities), requests)
    real = sample(LocalEngine(model, num_slots=2), requests)
    for a, b in zip(fake, real, strict=True):
        for name in ("ids", "logp", "entropy"):
            mine, other = ([x for e in f.events for x in getattr(e, name)] for f in (a, b))
            assert mine == pytest.approx(other, abs=1e-9)
        tops = [[x for e in f.events for x in e.top] for f in (a, b)]
        assert [list(x) for x in tops[0]] == [list(x) for x in tops[1]]
        assert a.events[-1].ended == b.events[-1].ended


def best_of(num, stop_early=False):
    """A strategy that draws candidates and keeps the first; the others' tokens are for nothing."""
    draws = (Draw(1, 1),)
    requests = [Request((0,), 3, seed=seed) for seed in range(num)]

    def strategy():
        if stop_early:
            numbers, _ = yield [Submit(request) for request in requests]
            yield []  # the first token of each
            (done,), _ = yield [Abort(numbers[0])]
            heard = [done.events]
        else:
            heard = yield from listen(requests)
        return assemble(draws, requests[:1], heard[:1]), None

    return strategy()


def test_tokens_of_candidates_that_are_not_taken_are_counted():
    assert roll_out(best_of(1), cycle()).num_thrown_away == 0
    found = roll_out(best_of(4), cycle())
    assert found.num_thrown_away == 3 * 3
    assert found.batch["length_B"].tolist() == [3]
    # one token of each was drawn when the strategy stopped listening
    assert roll_out(best_of(4, stop_early=True), cycle()).num_thrown_away == 3


def test_tokens_that_rollouts_share_count_once():
    def strategy():
        request = Request((0,), 4, seed=1)
        (first,) = yield from hear([Submit(request)])
        (other,) = yield from hear([Fork(first.number, 3, changes={"seed": 2})])
        shared = first.events[:2]
        batch = assemble(
            (Draw(1, 2),), [request, request], [first.events, [*shared, *other.events]]
        )
        return batch.set(fork_at_B=torch.tensor([-1, 2])), None

    engine = cycle()
    assert roll_out(strategy(), engine).num_thrown_away == 0
    assert engine.num_tokens == 4 + 2


def test_requests_that_follow_others_are_heard_under_their_keys():
    """Each ends after two tokens and is asked again, until it has been twice; a pause is no end."""
    ends = []

    def follow(ended):
        ends.append(set(ended))
        return {key: Submit(Request((1,), 2)) for key in ended if sum(key in e for e in ends) < 2}

    starts = {
        "a": Submit(Request((0,), 2)), "b": Submit(Request((0,), 4, seed=3, pause_every=1)),
    }  # fmt: skip
    heard = drive(converse(starts, follow), cycle())
    assert ends == [{"a"}, {"a", "b"}, {"b"}]
    assert {key: sum(len(e.ids) for e in each.events) for key, each in heard.items()} == {
        "a": 2, "b": 2,
    }  # fmt: skip
    assert drive(converse({}), cycle()) == {}


def test_a_strategy_that_returns_no_pair_is_named():
    with pytest.raises(UserError, match="returned list; it returns its batch and its state"):
        roll_out(collect([Request((0,), 2, 1)]), cycle())
