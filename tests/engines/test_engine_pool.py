"""A fleet of local engines in this process: the tokens of one engine, whichever member is lost."""

import copy
import functools
import random
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import pytest
from fakes.engine import Driven, in_pieces
from fakes.models import tiny
from hypothesis import given, settings
from hypothesis import strategies as st

from strop.engines.asynchronous import asynchronous, gather, run
from strop.engines.base import Account, Answer, Engine, Event, Request
from strop.engines.local.engine import LocalEngine
from strop.engines.pool.one_for_all import SharedEngine
from strop.engines.pool.one_per_process import ParallelEngine
from strop.engines.pool.pool import Back, EnginePool, Facts, Lost, Turn
from strop.support.errors import UserError
from strop.training.cluster.engine_worker import Turns

MODEL = tiny("qwen3")


def text(ids) -> str:
    return "".join(chr(97 + id) * 2 for id in ids)


def local(num_slots: int = 4) -> LocalEngine:
    return LocalEngine(MODEL, decode=text, num_slots=num_slots)


class HereCrew:
    """Engines of this process. losing(engine, turn): whether it is lost in its turn of that number,
    with what it had drawn in it. orders: all that were given."""

    def __init__(
        self, count: int = 2, num_slots: int = 4,
        losing: Callable[[int, int], bool] = lambda engine, turn: False,
    ) -> None:  # fmt: skip
        self.num_slots, self.losing = num_slots, losing
        self.engines = [Turns(local(num_slots)) for _ in range(count)]
        self.outbox: list[list] = [[] for _ in range(count)]
        self.taken = [0] * count
        self.gone: set[int] = set()
        self.orders: list[tuple[int, tuple]] = []
        self.version = 0
        self.versions = [0] * count

    def facts(self) -> list[Facts]:
        engines = [turns.engine for turns in self.engines]
        return [Facts(e.capabilities, None, self.num_slots, notes=e.notes) for e in engines]

    def publish(self, weights, version: int) -> None:
        self.version = version

    def exchange(self, orders, busy, wait, behind):
        for number, own in orders.items():
            self.outbox[number] += own
            self.orders += [(number, order) for order in own]
        for number, each in enumerate(self.engines):
            if number not in behind and self.versions[number] != self.version:
                self.versions[number] = self.version
                each.engine.load_weights(None, self.version)
        if wait <= 0:
            return []
        if self.gone:
            back, self.gone = sorted(self.gone), set()
            return [(number, Back()) for number in back]
        asked = [n for n, own in enumerate(self.outbox) if own or n in busy]
        return [(number, self._turn(number)) for number in asked]

    def _turn(self, number: int) -> Turn | Lost:
        own, self.outbox[number] = self.outbox[number], []
        self.taken[number] += 1
        turn = self.engines[number].turn(own)
        if not self.losing(number, self.taken[number]):
            return turn
        self.engines[number] = Turns(local(self.num_slots))
        self.engines[number].engine.version = self.versions[number] = self.version
        self.gone.add(number)
        return Lost("it was to be")

    def close(self) -> None:
        pass


def pool(crew: HereCrew, renews_alone: bool = False) -> EnginePool:
    return EnginePool(crew, MODEL, lambda make: make(), renews_alone=renews_alone)


def fleet(crew: HereCrew, renews_alone: bool = False) -> Driven:
    return Driven(pool(crew, renews_alone))


def new_ids(events: list[Event]) -> tuple[int, ...]:
    return tuple(id for event in events for id in event.ids)


REQUESTS = [
    Request((3, 4 + n // 4), 5 + 7 * n % 11, seed=n,
            stop_strings=("hh", "mm") if n % 2 else (), want=frozenset({"entropy"}))
    for n in range(14)
]  # fmt: skip
PIECES = [(request, (99, 3, 4)[n % 3]) for n, request in enumerate(REQUESTS)]


def drawn(engine: EnginePool) -> list[tuple[tuple[int, ...], str]]:
    return [(answer.ids, answer.ended) for answer in in_pieces(engine, PIECES)]


@functools.cache
def plainly_drawn() -> list[tuple[tuple[int, ...], str]]:
    """By one engine, without a fleet, each in one piece."""
    engine = Driven(local())
    ids = [engine.submit(request) for request in REQUESTS]
    heard = engine.finish()
    return [(new_ids(heard[id]), heard[id][-1].ended) for id in ids]


def test_one_engine_has_the_events_of_one_without_a_fleet():
    plain, other = Driven(local()), fleet(HereCrew(1))
    for engine in (plain, other):
        for request in REQUESTS:
            engine.submit(request)
    assert other.finish() == plain.finish()


@pytest.mark.parametrize("count", [2, 3])
def test_several_engines_draw_the_same_tokens(count):
    assert drawn(pool(HereCrew(count))) == plainly_drawn()


@given(st.integers(0, 2**30), st.floats(0.02, 0.4))
@settings(max_examples=5)
def test_what_is_lost_is_drawn_again(seed, share):
    chance = random.Random(seed)
    crew = HereCrew(2, losing=lambda engine, turn: chance.random() < share)
    found = in_pieces(pool(crew), PIECES)
    assert [(answer.ids, answer.ended) for answer in found] == plainly_drawn()
    for answer, (request, every) in zip(found, PIECES, strict=True):
        assert replace(answer.request, keep=False, max_tokens=request.max_tokens) == request
        sizes, size = [], 0
        for event in answer.events:
            size += len(event.ids)
            sizes.append(size)
        ends = {min(n, size) for n in range(every, size + every, every)}
        assert ends <= set(sizes)


def test_a_request_goes_where_its_source_is_and_has_the_tokens_of_a_single_engine():
    crew = HereCrew(2)
    plain, engine = Driven(local()), fleet(crew)
    found = []
    for each in (plain, engine):
        parents = [each.submit(Request((3, n), 6, seed=n, keep=True)) for n in (4, 5)]
        first = each.finish()
        started = [(*each.answers[id].sequence[:4], 7) for id in parents]
        more = [
            each.submit(Request(ids, 5, seed=9), (id, 4))
            for id, ids in zip(parents, started, strict=True)
        ]
        heard = each.finish()
        found.append([new_ids(first[id]) for id in parents] + [new_ids(heard[id]) for id in more])
    assert found[0] == found[1]
    handed = {order[1]: number for number, order in crew.orders if order[0] == "start"}
    assert handed[0] != handed[1]
    assert [handed[2], handed[3]] == [handed[0], handed[1]]
    assert [order[3] for _, order in crew.orders if order[1] in (2, 3)] == [(0, 4), (1, 4)]


def test_what_goes_on_from_a_request_that_was_lost_is_sent_whole():
    crew = HereCrew(1, losing=lambda engine, turn: turn == 2)
    engine, plain = fleet(crew), Driven(local())
    parent = engine.submit(Request((3, 4), 4, seed=1, keep=True))
    engine.finish()
    other = engine.submit(Request((3, 4), 4, seed=2))
    engine.finish()
    request = Request((*engine.answers[parent].sequence[:4], 7), 1, seed=9)
    child, same = engine.submit(request, (parent, 4)), plain.submit(request)
    assert new_ids(engine.finish()[child]) == new_ids(plain.finish()[same])
    assert engine.lost == 1
    assert crew.orders[-1] == (0, ("start", child, request, None))
    assert engine.answers[other].ids != ()


def test_a_cancelled_request_has_what_was_drawn_of_it():
    """Running, still waiting and kept ones; all are forgotten at the engine."""
    crew = HereCrew(1, num_slots=2)
    engine = fleet(crew)
    ended, running = (engine.submit(Request((3, 4), n, seed=n, keep=n == 2)) for n in (2, 8))
    heard: list[Event] = []
    while ended not in {event.request for event in heard if event.ended}:
        heard += engine.step()
    waiting = [engine.submit(Request((3, 5), 3, seed=n)) for n in range(2)]
    found = engine.cancel(running)
    assert found.ended == "aborted"
    assert found.ids == alone(Request((3, 4), 8, seed=8))[: len(found.ids)]
    assert found.ids
    assert list(engine.known) == [ended, *waiting]
    assert engine.cancel(waiting[0]).events == ()
    assert list(engine.finish()) == [waiting[1]]
    worker = crew.engines[0]
    assert list(worker.engine.known) == [ended]
    assert engine.engine.cancel(ended) == []
    engine.forget()
    crew.exchange({}, set(), wait=1, behind=set())
    assert (worker.open, worker.engine.known, engine.known) == (set(), {}, {})


def alone(request: Request) -> tuple[int, ...]:
    """What it is answered without a fleet."""
    (answer,) = asynchronous(local()).sample([request])
    return answer.ids


def test_a_cancel_that_meets_a_loss_ends_the_request():
    engine = fleet(HereCrew(1, losing=lambda engine, turn: turn == 2))
    first, short, other = (engine.submit(Request((3, 4), size, seed=size)) for size in (6, 3, 9))
    assert [event.request for event in engine.step()] == [short]
    assert engine.cancel(first).ids == ()
    assert new_ids(engine.finish()[other]) == alone(Request((3, 4), 9, seed=9))
    assert engine.lost == 1


def test_tokens_keep_the_version_that_drew_them():
    """New weights between two turns; what is then lost goes on from what was heard."""
    crew = HereCrew(1, losing=lambda engine, turn: turn == 3)
    engine = fleet(crew)
    id, short = (engine.submit(Request((3, 4), size, seed=size)) for size in (8, 3))
    assert [event.request for event in engine.step()] == [short]
    engine.load_weights(None, 5)
    heard = engine.finish()[id]
    assert [(event.version, len(event.ids)) for event in heard] == [(0, 3), (5, 5)]
    assert new_ids(heard) == alone(Request((3, 4), 8, seed=8))
    assert engine.lost == 1


def test_weights_that_are_given_are_also_those_that_parts_score_with():
    model = copy.deepcopy(MODEL)
    state = {name: value + 1 for name, value in model.state_dict().items()}
    EnginePool(HereCrew(1), model, lambda make: make()).load_weights(state, 7)
    now = model.state_dict()
    assert all(now[name].equal(value) for name, value in state.items())


def test_an_engine_takes_new_weights_when_its_own_have_ended_whatever_others_do():
    """What goes on from an answer has its weights; what is new goes to who has the newest."""
    crew = HereCrew(2)
    engine = fleet(crew, renews_alone=True)
    short, long = (engine.submit(Request((3, n), 2, seed=n, keep=True)) for n in (4, 5))
    engine.finish()
    # both go on: one for some tokens, the other for a while, in pieces of two
    started = engine.answers[short].sequence[:3]
    more = engine.submit(Request((*started, 7), 2, seed=9), (short, 3))
    pieces = [engine.submit(engine.answers[long].more(2, keep=True), (long, 4))]
    engine.load_weights(None, 5)
    first = engine.submit(Request((3, 6), 2, seed=6))  # nobody may begin it yet
    while len(pieces) < 5:
        for event in engine.step():
            if event.request == pieces[-1]:
                done = engine.answers[pieces[-1]]
                source = pieces[-1], len(done.sequence)
                pieces.append(engine.submit(done.more(2, keep=True), source))
    engine.finish()
    later = engine.submit(Request((3, 6), 2, seed=7))
    engine.finish()
    told = {id: answer for id, answer in engine.answers.items() if id not in (short, long)}
    versions = {id: {event.version for event in answer.events} for id, answer in told.items()}
    assert versions == {more: {0}, **{piece: {0} for piece in pieces}, first: {5}, later: {5}}
    number = {order[1]: number for number, order in crew.orders}
    assert number[more] == number[short] == number[first] != number[long]
    assert {number[piece] for piece in pieces} == {number[long]}


def test_what_a_coroutine_continues_has_the_weights_of_its_beginning():
    """New ones arrive before every step, when the next turns were asked for by then."""
    engine = pool(HereCrew(2), renews_alone=True)
    book = asynchronous(engine)
    book.before_step = lambda: engine.load_weights(None, engine.version + 1)

    async def turns(first: int) -> Answer:
        answer = await book.generate(Request((first,) * 8, 2, seed=first, keep=True))
        for _ in range(4):
            answer += await book.generate(answer.more(2, keep=True))
        return answer

    answers = run(book, gather(turns(first) for first in range(3, 9)), Account())
    versions = [{event.version for event in answer.events} for answer in answers]
    assert [len(each) for each in versions] == [1] * 6
    assert [len(answer.ids) for answer in answers] == [10] * 6


def test_a_beginning_that_was_only_given_binds_nobody():
    """New requests that share a long prompt with an answer go to the idlest, with new weights."""
    crew = HereCrew(2)
    engine = fleet(crew, renews_alone=True)
    prompt = tuple(range(3, 13))
    kept = [engine.submit(Request(prompt, 3, seed=n, keep=True)) for n in range(2)]
    engine.finish()
    started = engine.answers[kept[0]].sequence
    first = engine.submit(Request((*started[:11], 7), 2, seed=5), (kept[0], 11))
    engine.load_weights(None, 5)
    others = [engine.submit(Request((*prompt, 4), 2, seed=n), (kept[0], 10)) for n in range(4)]
    heard = engine.finish()
    versions = {id: {event.version for event in heard[id]} for id in heard}
    assert versions == {first: {0}, **{id: {5} for id in others}}
    assert [order[3] for _, order in crew.orders if order[1] in others] == [None] * 4


def test_requests_of_one_prompt_stay_together_and_others_go_to_the_idlest():
    crew = HereCrew(2, num_slots=64)
    engine = fleet(crew)
    for prompt in range(4):
        for n in range(8):
            engine.submit(Request((3, 4 + prompt), 2, seed=n))
    engine.finish()
    groups = [{number for number, order in crew.orders if order[1] // 8 == p} for p in range(4)]
    assert groups == [{0}, {1}, {0}, {1}]


def test_more_than_the_engines_have_room_for_waits_here():
    """In the pool beyond two for each slot, in the book beyond ten."""
    crew = HereCrew(2, num_slots=2)
    engine = pool(crew)
    asked = [Request((3, n % 7), 3, seed=n) for n in range(50)]
    queued = []

    def exchange(*given, exchange=crew.exchange, **named):
        queued.append((len(engine.queue), len(crew.orders)))
        return exchange(*given, **named)

    crew.exchange = exchange
    assert len(asynchronous(engine).sample(asked)) == 50
    assert queued[:2] == [(32, 0), (32, 8)]


def test_a_large_group_leaves_no_engine_of_few_slots_idle():
    crew = HereCrew(2, num_slots=4)
    engine = fleet(crew)
    for n in range(16):
        engine.submit(Request((3, 4), 2, seed=n))
    engine.step()
    assert [sum(number == each for number, _ in crew.orders) for each in range(2)] == [8, 8]
    engine.finish()


ONE = SimpleNamespace(number=0, count=1, gathered=lambda own: [own], from_first=lambda make: make())


def in_processes(inner: Engine, dealing: bool) -> ParallelEngine:
    engine = ParallelEngine(inner, ONE, SimpleNamespace(whole=lambda: None))
    engine.dealing = dealing
    return engine


@pytest.mark.parametrize("engine", [
    lambda: pool(HereCrew()), lambda: SharedEngine(local, ONE),
    lambda: in_processes(local(), True), lambda: in_processes(local(), False),
])  # fmt: skip
def test_a_refused_request_ends_alone(engine):
    asked = [Request((3, 4), 5, seed=1), Request((3, 4), 5, num_top=1000)]
    made = engine()
    well, refused = asynchronous(made).sample(asked)
    assert (well.ids, well.ended) == (alone(asked[0]), "length")
    assert (refused.ids, refused.ended) == ((), "failed")
    assert "num_top is 1000" in refused.events[-1].why
    with pytest.raises(UserError, match=r"a request failed: .*num_top is 1000"):
        asynchronous(made).sample(asked[1:])


def test_the_engine_with_the_least_room_bounds_all(monkeypatch):
    facts = [Facts(frozenset(), longest, 4) for longest in (64, None, 32)]
    monkeypatch.setattr(HereCrew, "facts", lambda crew: facts)
    assert pool(HereCrew(3)).longest == 32


def test_notes_of_engines_are_handed_on(monkeypatch):
    monkeypatch.setattr(LocalEngine, "notes", ("slower",))
    assert SharedEngine(local, ONE).notes == ("slower",)
    assert pool(HereCrew(3)).notes == ("slower",)
