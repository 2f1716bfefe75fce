"""Coroutines on an engine: the answers that they get, and what ends their requests."""

import asyncio
import copy
from dataclasses import replace

import pytest
from fakes.coroutines import TABLE, check_closed, go, local, model, requests, table, text, told
from fakes.engine import TableEngine, by_last_token, joined, streamed
from fakes.models import VOCAB, tiny

from strop.engines.asynchronous import AsyncEngine, asynchronous, gather
from strop.engines.base import CAPABILITIES, Account, Answer, Event, Request
from strop.engines.local.engine import LocalEngine
from strop.engines.rules import TopK
from strop.support.errors import UserError

WANT = frozenset({"entropy", "logp_model", "top"})


# ---- answers


def test_answers_are_those_of_ordinary_code(engine):
    book, asked = asynchronous(engine), requests(9)

    async def one_by_one():
        return [await book.generate(request) for request in asked]

    async def beside():
        return await gather(book.generate(request) for request in reversed(asked))

    expected = book.sample(asked)
    assert [answer.request for answer in expected] == asked
    assert told(go(engine, book.generate_all(asked))) == told(expected)
    assert told(go(engine, one_by_one())) == told(expected)
    assert told(go(engine, beside())) == told(expected[::-1])
    assert go(engine, book.generate_all([])) == []
    check_closed(engine)


def test_one_engine_has_one_book(engine):
    assert asynchronous(engine) is asynchronous(engine)
    assert asynchronous(engine) is not asynchronous(table())


def test_an_account_counts(engine):
    account, book = Account(), asynchronous(engine)
    answers = go(engine, book.generate_all(requests(5)), account)
    assert account.num_started == account.num_well == 5
    assert account.num_drawn == sum(len(answer.ids) for answer in answers)
    assert (account.open, account.kept, account.failures) == ({}, set(), [])


def test_some_are_those_that_end_in_one_step_as_they_were_begun(engine):
    book, sizes = asynchronous(engine), (5, 3, 7, 3, 5, 3)

    async def in_order():
        started = [book.begin(Request((3, 4), size, seed=n)) for n, size in enumerate(sizes)]
        left, found = started, []
        while left:
            ended = await book.some(left)
            found.append([started.index(each) for each in ended])
            left = [each for each in left if each not in ended]
        assert not any(each.waiters for each in started)
        return found

    assert go(engine, in_order()) == [[1, 3, 5], [0, 4], [2]]


def test_settled_comes_before_the_next_step(engine):
    """Others that were woken by the same step have gone on by then."""
    book, seen = asynchronous(engine), []

    async def waits():
        await book.generate(Request((3,), 2, seed=1))
        await book.settled()
        seen.append("settled")
        await book.settled(outer=True)
        seen.append("outer")

    async def does(name):
        await book.generate(Request((3,), 2, seed=1))
        await asyncio.sleep(0)
        seen.append(name)
        await book.settled()
        seen.append(f"{name} settled")
        await book.generate(Request((3,), 1))
        seen.append("a step")

    go(engine, gather([waits(), does("a"), does("b")]))
    assert seen == ["a", "b", "settled", "a settled", "b settled", "outer", "a step", "a step"]


# ---- pieces


async def pieces_of(book: AsyncEngine, request: Request, every: int) -> list[Answer]:
    return [answer async for answer in streamed(book, request, every)]


@pytest.mark.parametrize("every", [1, 3, 50])
def test_pieces_equal_an_unbroken_request(engine, every):
    book = asynchronous(engine)
    asked = requests(8, 9, want=WANT, num_top=2, stop_ids=(11,))
    asked += [replace(each, temperature=0.0) for each in asked[:2]]
    whole = book.sample(asked)
    pieces = go(engine, gather(pieces_of(book, request, every) for request in asked))
    assert {answer.ended for answer in whole} == {"length", "stop"}
    for expected, found in zip(whole, pieces, strict=True):
        last = found[-1]
        assert (last.ids, last.ended) == (expected.ids, expected.ended)
        for name in ("logp", "logp_model", "entropy"):
            assert joined(last, name) == pytest.approx(joined(expected, name), abs=1e-9)
        assert [list(each) for each in joined(last, "top")] == [
            list(each) for each in joined(expected, "top")
        ]
        assert [len(each.ids) for each in found[:-1]] == [
            every * (n + 1) for n in range(len(found) - 1)
        ]
        assert all(last.ids[: len(each.ids)] == each.ids for each in found)
    check_closed(engine)


@pytest.mark.parametrize("every", [1, 2, 5])
def test_a_stop_string_across_the_join_ends_it(engine, every):
    book, ends = asynchronous(engine), 0
    for seed in range(12):
        free = book.sample([Request((3, 4), 12, seed=seed)])[0].ids
        string = text(free[4:7])
        request = Request((3, 4), 12, seed=seed, stop_strings=(string, "no such text"))
        (whole,) = book.sample([request])
        last = go(engine, pieces_of(book, request, every))[-1]
        assert (last.ids, last.ended) == (whole.ids, whole.ended)
        assert last.ended == "stop"
        ends += len(last.ids) == 7
    assert ends > 6


def test_something_given_between_hides_what_was_before_from_stop_strings():
    book = asynchronous(table())
    request = Request((0,), 3, 0.0, stop_strings=("de",))  # greedy: b c d e f ...
    (first,) = book.sample([request])
    assert text(first.ids) == "bcd"
    assert first.more(4).drawn == 3
    assert first.more(4, given=(5,)) == replace(request, ids=(0, 1, 2, 3, 5), max_tokens=4)
    (on,), (other,) = (book.sample([first.more(4, given=given)]) for given in ((), (5,)))
    assert (text(on.ids), on.ended) == ("e", "stop")
    assert (text(other.ids), other.ended) == ("ghij", "length")
    both = first + on
    assert (text(both.ids), both.ended, both.request.max_tokens) == ("bcde", "stop", 7)
    assert [event.ended for event in both.events[:-1]] == [""] * (len(both.events) - 1)


# ---- caches


def prefilled(engine: LocalEngine) -> int:
    """Tokens that it computed so far other than one by one."""
    return int(engine.passes.as_dict()["prefill/tokens"])


def test_what_goes_on_computes_nothing_again():
    engine = local()
    book = asynchronous(engine)

    async def three_turns():
        answer = await book.generate(Request(tuple(range(3, 15)), 6, seed=1, keep=True))
        (slot,) = engine.slots.held()
        before = prefilled(engine)
        answer += await book.generate(answer.more(5, keep=True))
        assert prefilled(engine) == before == 11
        assert engine.slots.held() == [slot]  # in its slot
        turn = await book.generate(answer.more(4, given=(7, 8, 9), keep=True))
        # the newest token was not read yet, and neither were the first two given ones
        assert prefilled(engine) == before + 3
        assert len(engine.slots.held()) == 1
        return answer, turn

    answer, turn = go(engine, three_turns())
    first, last = asynchronous(local()).sample(
        [Request(tuple(range(3, 15)), 11, seed=1), Request((*answer.sequence, 7, 8, 9), 4, seed=1)]
    )
    assert told([answer, turn]) == told([first, last])
    check_closed(engine)
    assert not engine.slots.table["taken"].any()


def test_branches_share_what_they_begin_with():
    """Of siblings each begins with all tokens of one that has ended, and with other tokens then."""
    engine = local(16)
    book = asynchronous(engine)

    async def tree():
        root = await book.generate(Request(tuple(range(3, 15)), 4, seed=1, keep=True))
        before = prefilled(engine)
        children = await book.generate_all([root.more(8, seed=n, keep=True) for n in range(4)])
        assert prefilled(engine) == before
        cut = [child.first(3).more(3, seed=9) for child in children]
        await book.generate_all(cut)
        assert prefilled(engine) == before
        return children

    children = go(engine, tree())
    plain = asynchronous(local()).sample([replace(child.request, keep=False) for child in children])
    assert told(children) == told(plain)
    check_closed(engine)


def test_a_cache_is_of_the_weights_that_wrote_it():
    """What goes on after an update reads no cache of before."""
    other = tiny("qwen3", context=128, seed=7)
    engine, first = LocalEngine(copy.deepcopy(model()), decode=text, num_slots=8), []
    book = asynchronous(engine)

    async def goes_on():
        first.append(await book.generate(Request(tuple(range(3, 15)), 6, seed=1, keep=True)))
        engine.load_weights(other.state_dict(), 1)
        return await book.generate(first[0].more(9, temperature=0.0))

    found = go(engine, goes_on())
    (fresh,) = asynchronous(LocalEngine(other, decode=text)).sample([found.request])
    assert found.ids == fresh.ids
    assert [event.version for event in (*first[0].events, *found.events)] == [0, 1]
    assert found.ids != asynchronous(local()).sample([found.request])[0].ids


def test_a_dropped_answer_has_no_cache():
    engine = local()
    book = asynchronous(engine)

    async def drops():
        asked = [Request(tuple(range(3, 15)), 4, seed=n, keep=True) for n in range(2)]
        first, second = await book.generate_all(asked)
        assert len(engine.slots.held()) == 2
        book.drop(first)
        assert len(engine.slots.held()) == 1
        book.drop(first)  # once more changes nothing
        book.drop(second)
        assert not engine.slots.held()
        before = prefilled(engine)
        await book.generate(first.more(2))
        return prefilled(engine) - before

    assert go(engine, drops()) == 15


# ---- requests that engines abort


class Breaking(TableEngine):
    """Breaks off what it has under way, at every third step, in front of a token or behind it."""

    def poll(self, seconds=None):
        events = super().poll(seconds)
        if self.num_steps % 3:
            return events
        going = [event for event in events if not event.ended]
        for event in going:
            self.cancel(event.request)
        ends = [event._replace(ended="broken") for event in going]
        return [*(event for event in events if event.ended), *(
            end if end.request % 2 else end._replace(ids=(), logp=()) for end in ends)]  # fmt: skip


def test_what_is_broken_off_is_begun_again_behind_its_tokens():
    asked = requests(9, 12, stop_strings=("lm", "aa", "hj"))
    expected = asynchronous(table()).sample(asked)
    assert {answer.ended for answer in expected} == {"length", "stop"}
    engine, account = Breaking(by_last_token(TABLE), text=text), Account()
    book = asynchronous(engine)
    found = go(engine, book.generate_all(asked), account)
    assert told(found) == told(expected)
    assert [answer.request for answer in found] == asked
    assert account.num_drawn == sum(len(answer.ids) for answer in expected)
    assert (account.num_started, account.num_well) == (9, 9)
    check_closed(engine)


class Noting(Breaking):
    """Tells the passes since its last event of a request, and at first those of what it began with
    but the last token.
    """

    def __init__(self, *given, **options):
        super().__init__(*given, **options)
        self.before = {}

    def start(self, id, request, source=None):
        self.before[id] = len(request.ids) - 1
        super().start(id, request, source)

    def poll(self, seconds=None):
        return [self.noted(event) if event.ids else event for event in super().poll(seconds)]

    def noted(self, event):
        size = self.before.pop(event.request, 0) + len(event.ids)
        return event._replace(experts=(b"pass",) * size)


def test_passes_that_are_told_anew_after_a_break_count_once():
    asked = requests(6, 12)
    found = go(engine := Noting(by_last_token(TABLE)), asynchronous(engine).generate_all(asked))
    for answer in found:
        passes = sum(len(event.experts) for event in answer.events)
        assert passes == len(answer.request.ids) - 1 + len(answer.ids)


def test_passes_count_once_where_a_restarted_request_is_stopped(monkeypatch):
    book = asynchronous(engine := Noting(by_last_token(TABLE)))

    async def stops():
        started = book.begin(Request((3, 4), 9, seed=1))
        while not (started.events and started in book.queue):
            book.step()
        book.queue.remove(started)
        book._hand_on(started)
        last = engine.noted(Event(started.id, (5,), (0.0,), 0))
        monkeypatch.setattr(engine, "cancel", lambda id: [last])
        return started.stop()

    answer = go(engine, stops())
    passes = sum(len(event.experts) for event in answer.events)
    assert passes == len(answer.request.ids) - 1 + len(answer.ids)


def test_what_was_broken_off_may_be_stopped_before_it_is_begun_again():
    engine = Breaking(by_last_token(TABLE), text=text)
    book = asynchronous(engine)

    async def stops():
        book.begin(Request((3, 4), 2, seed=1))
        started = book.begin(Request((3, 4), 9, seed=2))
        while not (started.events and book.queue):
            book.step()
        assert started in book.queue
        return started.stop()

    answer = go(engine, stops())
    (whole,) = asynchronous(table()).sample([answer.request])
    assert answer.ended == "aborted"
    assert 0 < len(answer.ids) < 9
    assert answer.ids == whole.ids[: len(answer.ids)]
    check_closed(engine)


# ---- ends


def test_stop_keeps_the_tokens_and_counts_them(engine):
    book, account = asynchronous(engine), Account()
    expected = book.sample([Request((3, 4), 20, seed=5)])[0].ids

    async def stops():
        long = book.begin(Request((3, 4), 20, seed=5))
        short = book.begin(Request((3, 4), 4, seed=6))
        await short
        answer = long.stop()
        assert long.done
        assert await long == long.stop() == answer
        late = book.begin(Request((3,), 2)).stop()  # the engine has not heard of it
        assert (late.ids, late.ended) == ((), "aborted")
        return answer

    answer = go(engine, stops(), account)
    assert answer.ended == "aborted"
    assert answer.ids == expected[: len(answer.ids)]
    assert len(answer.ids) == 4
    assert account.num_drawn == 8
    assert (account.num_started, account.num_well, account.failures) == (3, 1, [])
    check_closed(engine)


@pytest.mark.parametrize("way", ["generate", "generate_all"])
def test_what_is_cancelled_is_drawn_no_further(engine, way):
    book, account = asynchronous(engine), Account()
    whole = Request((3, 4), 90, seed=5)

    async def cancels():
        work = book.generate(whole) if way == "generate" else book.generate_all([whole])
        task = asyncio.ensure_future(work)
        await book.generate(Request((3, 4), 4, seed=6))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not book.busy()
        await book.generate(Request((3, 4), 3, seed=6))

    go(engine, cancels(), account)
    assert account.num_drawn == 4 + 4 + 3
    check_closed(engine)


def test_those_who_wait_hear_of_a_stop(engine):
    book = asynchronous(engine)

    async def waits(started):
        return (await started).ended

    async def stops():
        started = book.begin(Request((3, 4), 90))
        waiting = asyncio.ensure_future(waits(started))
        await book.generate(Request((3,), 2))
        started.stop()
        return await waiting

    assert go(engine, stops()) == "aborted"


def test_a_refused_request_raises_where_it_is_awaited():
    engine = table(context_length=10)
    book, account = asynchronous(engine), Account()

    async def asks():
        good, bad, other = (book.begin(Request((3,) * size, 3, seed=size)) for size in (2, 10, 4))
        first = await good
        with pytest.raises(UserError, match="does not fit the context"):
            await bad
        return [first, await other]

    found = go(engine, asks(), account)
    assert told(found) == told(book.sample([answer.request for answer in found]))
    assert (account.num_started, account.num_well) == (3, 2)
    with pytest.raises(UserError, match="does not fit the context"):
        go(engine, book.generate_all([Request((3,), 3), Request((3,) * 10, 3)]))
    with pytest.raises(UserError, match="does not fit the context"):
        book.sample([Request((3,) * 10, 3)])
    check_closed(engine)


def failing(probability: float = float("nan")) -> TableEngine:
    """After token 9 nothing can be drawn."""
    return TableEngine(by_last_token({**TABLE, 9: [probability] * VOCAB}), text=text)


def test_a_failed_request_is_an_answer_and_all_failed_an_error():
    engine, heard = failing(), []
    book, account = asynchronous(engine), Account(heard.append)
    bad, good = Request((9,), 3), Request((3,), 2)
    found = go(engine, book.generate_all([bad, good]), account)
    assert [answer.failed for answer in found] == [True, False]
    assert found[0].events[-1].why == "no token could be drawn"
    assert heard == account.failures == ["no token could be drawn"]
    account.ends.check()
    with pytest.raises(UserError, match=r"^all 2 requests failed, the first: no token could"):
        book.sample([bad, replace(bad, seed=1)])
    with pytest.raises(UserError, match=r"^a request failed: no token could"):
        book.sample([bad])
    account = Account()
    go(engine, book.generate_all([bad]), account)
    with pytest.raises(UserError, match=r"^a request failed"):
        account.ends.check()
    check_closed(engine)


def test_what_an_engine_lacks_is_said():
    book = asynchronous(table(capabilities=CAPABILITIES - {"rules", "top", "entropy", "kept"}))
    lacking = {
        "rules": {"rules": (TopK(2),)},
        "top": {"num_top": 2},
        "entropy": {"want": frozenset({"entropy", "logp_model"})},
        "kept": {"want": frozenset({"kept"})},
    }
    assert book.capabilities == {"weights", "logp_model"}
    for name, fields in lacking.items():
        words = rf"needs an engine with '{name}'; TableEngine has \['logp_model', 'weights'\]"
        with pytest.raises(UserError, match=words):
            go(book.engine, book.generate(Request((3,), 2, **fields)))
    assert len(go(book.engine, book.generate(Request((3,), 2))).ids) == 2


def test_an_error_ends_all_that_was_begun(engine):
    book, account, ended = asynchronous(engine), Account(), []

    async def waits():
        try:
            await book.generate(Request((3,), 90, keep=True))
        finally:
            ended.append("waits")

    async def breaks():
        await book.generate(Request((3,) * 9, 2, keep=True))
        raise ValueError("as it happens")

    async def forgets():
        forgotten = asyncio.ensure_future(waits())
        await breaks()
        return forgotten

    for work in (gather([waits(), breaks()]), forgets()):
        with pytest.raises(ValueError, match="as it happens"):
            go(engine, work, account)
        check_closed(engine)
    assert ended == ["waits"] * 2
    assert not account.open
    assert account.num_drawn == 2 * (2 + 2)
