"""Sharing a batch, a slot or the cache with other requests changes none of a request's tokens."""

import functools
import itertools
import math
import re
from dataclasses import replace

import pytest
import torch
from fakes.engine import Driven, in_pieces, joined, sample
from fakes.models import from_table, tiny
from hypothesis import given, settings
from hypothesis import strategies as st

from strop.engines.asynchronous import asynchronous
from strop.engines.base import Request
from strop.engines.local.cache import BLOCK, SlotCache
from strop.engines.local.engine import LocalEngine
from strop.engines.rules import BanTokens, MinP, TopK, TopP
from strop.support.errors import UserError

# 0 ends; from any token it is 1 in 20, so that lengths have a long tail
WEIGHTS = [[1 + (i * j + i) % 5 for j in range(1, 7)] for i in range(7)]
TABLE = [[0.05, *(0.95 * weight / sum(row) for weight in row)] for row in WEIGHTS]
MODEL = from_table(TABLE, context=512)
REAL = tiny("qwen3", context=512)


class Watched(LocalEngine):
    """Holds at every step that the cache has no more memory than the bound."""

    def poll(self, seconds=None):
        events = super().poll(seconds)
        cache, bound = self.slots.cache, self.slots.cache.max_tokens
        for layer in cache.live_layers():
            for store in (layer.keys, layer.values):
                assert store.shape[0] * store.shape[2] == cache.lines * cache.places
        assert bound is None or cache.lines * cache.places <= bound
        self.most = max(getattr(self, "most", 0), cache.lines * cache.places)
        running = int(self.slots.table["running"].sum())
        self.widest = max(getattr(self, "widest", 0), running)
        self.idle = getattr(self, "idle", 0) + (not running and not events)
        return events


def engine(model=MODEL, **options):
    return Watched(model, decode=lambda ids: "".join(chr(97 + id) for id in ids), **options)


@functools.cache
def alone(model, request):
    return sample(engine(model, num_slots=1), [request])[0]


def mixed(number, salt=0, longest=80):
    """Requests of which no two draw alike: temperature, rules, ends, statistics."""
    rules = [(), (TopK(3),), (TopP(0.8),), (MinP(0.3), BanTokens((4,))), (TopK(5), TopP(0.9))]
    wants = [{}, {"want": frozenset({"entropy"})}, {"num_top": 2, "want": frozenset({"top"})}]
    return [
        Request(
            tuple(1 + (salt + i * k) % 6 for k in range(1 + 7 * i % 19)),
            1 + (salt + 31 * i) % longest,
            temperature=(1.0, 0.0, 0.7, 1.3)[i % 4],
            rules=rules[i % 5],
            stop_ids=((0,), (), (0, 2))[i % 3],
            stop_strings=("bc",) if i % 7 == 5 else (),
            seed=salt * 1000 + i,
            **wants[i % 3],
        )
        for i in range(number)
    ]


def test_a_table_is_a_model():
    logits = MODEL(torch.tensor([[3, 5, 1]])).logits[0].softmax(-1)
    assert torch.allclose(logits, torch.tensor(TABLE, dtype=torch.float64)[[3, 5, 1]], atol=1e-7)
    (found,) = sample(engine(), [Request((2,), 40, seed=3)])
    path = [2, *joined(found)]
    expected = [math.log(TABLE[a][b]) for a, b in itertools.pairwise(path)]
    assert joined(found, "logp") == pytest.approx(expected, abs=1e-7)  # the norm is float32


@settings(max_examples=4)
@given(st.integers(1, 9), st.sampled_from([None, 110, 260, 900]), st.integers(0, 1), st.randoms())
def test_a_requests_tokens_are_its_own(num_slots, bound, salt, random):
    """Bit for bit, with requests of other parameters, in any order, in any number of slots."""
    wanted = mixed(12, salt)
    expected = {request: alone(MODEL, request) for request in wanted}
    random.shuffle(wanted)
    e = engine(num_slots=num_slots, max_cached_tokens=bound)
    for found in sample(e, wanted):
        own = expected[found.request]
        for name in ("ids", "logp", "entropy", "top"):
            assert joined(found, name) == joined(own, name)
        assert found.events[-1].ended == own.events[-1].ended
    assert not e.slots.table["taken"].any()


@pytest.mark.parametrize("bound", [240, 1000])
def test_rows_that_made_room_go_on_where_they_were(bound):
    """Of a model whose logits rest on the whole cache."""
    wanted = [
        Request(tuple(1 + (17 + k) % 9 for k in range(1 + 5 * i)), 40 + 23 * i, seed=17 + i)
        for i in range(7)
    ]
    e = engine(REAL, num_slots=16, max_cached_tokens=bound)
    for found in sample(e, wanted):
        own = alone(REAL, found.request)
        assert joined(found) == joined(own)
        assert joined(found, "logp") == pytest.approx(joined(own, "logp"), abs=1e-9)
    assert e.idle == 0


def test_rows_leave_only_where_the_longest_needs_their_room():
    """Two rows of 150 tokens and one that ends after 10 have 320 places: all three begin."""
    e = Driven(engine(REAL, num_slots=8, max_cached_tokens=320))
    ids = [e.submit(Request((3, 4), size, seed=size)) for size in (148, 148, 10)]
    heard = e.finish()
    assert e.widest == 3
    assert e.most > 2 * 148
    assert [[event.ended for event in heard[id]] for id in ids] == [["length"]] * 3  # all stayed
    ids = [e.submit(Request((3, 4), size, seed=size)) for size in (250, 250)]
    heard = e.finish()
    told = [[event.ended for event in heard[id]] for id in ids]
    assert told == [["length"], ["", "length"]]  # the younger one left, once
    e = Driven(engine(REAL, num_slots=8, max_cached_tokens=400))
    ids = [e.submit(Request((3, 4), size, seed=size)) for size in (300, 300)]
    assert 170 < len(e.finish()[ids[1]][0].ids) < 200  # when there was no room for two of them


def test_of_kept_rows_the_longest_says_how_many_have_room():
    """Kept rows of 142 and 12 tokens: beside two more there is no room for so long a one."""
    e = Driven(engine(REAL, num_slots=8, max_cached_tokens=320))
    for size in (140, 10):
        e.submit(Request((3, 4), size, seed=size, keep=True))
    e.finish()
    assert len(e.slots.held()) == 2
    asked = [Request((5, 6), 40, seed=seed) for seed in (1, 2)]
    ids = [e.submit(request) for request in asked]
    heard = e.finish()
    assert [heard[id][-1].ids for id in ids] == [alone(REAL, each).ids for each in asked]
    assert len(e.slots.held()) == 1


def test_a_bound_is_kept_with_branches_kept_rows_and_pieces():
    e = engine(REAL, num_slots=12, max_cached_tokens=150)
    asked = [Request((9, 4 + i), 70, seed=i) for i in range(4)]
    pieces = [(request, 9 + i) for i, request in enumerate(asked)]

    async def tree(book):
        roots = [Request((3, 4 + i), 60, seed=i, keep=True) for i in range(4)]
        parents = await book.generate_all(roots)
        return await book.generate_all([
            parent.first(at - 2).more(30, given=(5,), seed=at + i)
            for i, parent in enumerate(parents) for at in (10, 40)
        ])  # fmt: skip

    found = in_pieces(e, pieces, tree(asynchronous(e)))
    for answer, request in zip(found, asked, strict=False):
        assert answer.ids == alone(REAL, request).ids
    assert len(found) == 4 + 8
    for branch in found[4:]:
        assert branch.ids == alone(REAL, replace(branch.request, keep=False)).ids


def test_a_request_that_could_not_fit_is_refused():
    e = engine(num_slots=4, max_cached_tokens=100)
    with pytest.raises(UserError, match=r"have 101 tokens, and engine.cache_tokens .* for 100"):
        e.start(0, Request((1, 2), 99))
    (found,) = sample(e, [Request((1, 2), 98, rules=(BanTokens((0,)),))])
    assert len(joined(found)) == 98
    assert e.most <= 100


def test_new_weights_come_to_rows_that_wait_for_room():
    e = Driven(engine(tiny("qwen3", context=512, seed=1), num_slots=8, max_cached_tokens=200))
    ids = [e.submit(Request((3, 4), 120, seed=seed)) for seed in range(3)]
    for _ in range(90):
        e.step()
    e.load_weights(tiny("qwen3", context=512, seed=2).state_dict(), 5)
    e.finish()
    new = tiny("qwen3", context=512, seed=2)
    for seed, id in enumerate(ids):
        own = e.answers[id].events
        before = [x for event in own if event.version == 0 for x in event.ids]
        after = [x for event in own if event.version == 5 for x in event.ids]
        expected = Request((3, 4, *before), 120 - len(before), seed=seed)
        assert after == joined(alone(new, expected))
        assert [event.version for event in own] == sorted(event.version for event in own)


@pytest.mark.parametrize("keeps", [False, True])
def test_an_aborted_request_frees_its_slot_for_the_next_step(keeps):
    e = Driven(engine(REAL, num_slots=2, max_cached_tokens=260))
    first, second, waiting = (
        e.submit(Request((3, 4), 120, seed=seed, keep=keeps)) for seed in range(3)
    )
    for _ in range(5):
        e.step()
    assert e.known[waiting].slot == -1
    assert len(e.cancel(first).ids) == 5
    assert e.slots.table["taken"].sum() == 1  # at once
    e.step()
    assert len(e._tokens(e.known[waiting])) == 2 + 1  # its first token is of this very step
    assert len(e._tokens(e.known[second])) == 2 + 6


def test_the_cache_grows_by_blocks_and_gives_lines_back():
    """What it has beyond the longest row is an eighth and a block; the tail has few lines."""
    e = Driven(engine(REAL, num_slots=64))
    for i in range(24):
        e.submit(Request((3, 4), 300 if i == 0 else 20 + i, seed=i))
    while e.open:
        longest = e.slots.extent()[1]
        e.step()
        assert e.slots.cache.places <= longest + longest // 8 + 1 + BLOCK
    assert e.most == 24 * 64  # 24 rows of up to 45 tokens, and then one row of 302
    assert e.slots.cache.lines == 1


def test_growing_keeps_what_there_is():
    cache = SlotCache(1, 8, torch.device("cpu"), max_tokens=600)
    layer = cache.layers[0]
    cache.reserve(10, 3)
    layer.lazy_initialization(*[torch.zeros(1, 1, 1, 2)] * 2)
    layer.keys += torch.arange(3)[:, None, None, None] + 1
    for length, lines, shape in ((10, 4, (4, 64)), (70, 4, (4, 128)), (199, 3, (3, 200))):
        cache.reserve(length, lines)
        assert (cache.lines, cache.places) == shape == (layer.keys.shape[0], layer.keys.shape[2])
        assert layer.keys[:3, 0, :10, 0].tolist() == [[1] * 10, [2] * 10, [3] * 10]
    with pytest.raises(AssertionError, match="no room"):
        cache.reserve(301, 2)


def test_slots_are_added_by_a_quarter_so_that_few_moves_are_needed():
    cache = SlotCache(1, 32, torch.device("cpu"))
    cache.reserve(10, 16)
    found = []
    for lines in (17, 18, 21, 32):
        cache.reserve(10, lines)
        found.append(cache.lines)
    assert found == [20, 20, 25, 32]  # 16 and 4, the same, 20 and 5, all there are
    for most, shape in ((20 * 64, (20, 64)), (18 * 64, (17, 64))):  # no room for a quarter more
        cache = SlotCache(1, 32, torch.device("cpu"), max_tokens=most)
        cache.reserve(10, 16)
        cache.reserve(10, 17)
        assert (cache.lines, cache.places) == shape


def test_stores_that_move_into_each_others_memory_keep_what_they_have():
    """Smaller, larger within the memory there is, and beyond it; what is new is zero."""
    cache = SlotCache(3, 8, torch.device("cpu"))
    cache.reserve(100, 2)
    for n, layer in enumerate(cache.layers):
        layer.lazy_initialization(*[torch.zeros(1, 2, 1, 3)] * 2)
        layer.keys[:, :, :20] = 10 + n
        layer.values[:, :, :20] = 20 + n
    before = cache.num_bytes()
    for length, lines, grows in ((20, 4, False), (70, 2, False), (70, 5, True), (200, 6, True)):
        cache.reserve(length, lines)
        assert (cache.num_bytes() > before) == grows
        assert {layer.keys.shape[2] for layer in cache.layers} == {cache.places}
        for n, layer in enumerate(cache.layers):
            for store, value in ((layer.keys, 10 + n), (layer.values, 20 + n)):
                assert store[:2, :, :20].unique().tolist() == [value]
                assert not store[:2, :, 20:].any()
                assert not store[2:].any()
    memory = {m.data_ptr() for layer in cache.layers for m in layer.memory.values()}
    assert len(memory) == 6
    cache.shrink(0)
    assert cache.num_bytes() == 0


@given(
    st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=12, unique_by=lambda p: p[1])
)
def test_slots_are_copied_as_they_were(pairs):
    """To a group's slots beside each other, to others, and where a slot is read and written."""
    cache = SlotCache(2, 8, torch.device("cpu"))
    cache.reserve(10, 8)
    for n, layer in enumerate(cache.layers):
        layer.lazy_initialization(*[torch.zeros(1, 1, 1, 2)] * 2)
        layer.keys += 10 * n + torch.arange(8)[:, None, None, None]
        layer.values -= 10 * n + torch.arange(8)[:, None, None, None]
    cache.copy([one for one, _ in pairs], [other for _, other in pairs], 4)
    wanted = list(range(8))
    for one, other in pairs:
        wanted[other] = one
    for n, layer in enumerate(cache.layers):
        for sign, store in ((1, layer.keys), (-1, layer.values)):
            found = (sign * store[:, 0, :, 0]).tolist()
            assert [row[3] for row in found] == [10 * n + slot for slot in wanted]
            assert [row[4] for row in found] == [10 * n + slot for slot in range(8)]


def test_after_long_rows_short_ones_take_no_more_than_they_need():
    e = engine(REAL, num_slots=64)
    sample(e, [Request((3, 4), 300, seed=1)])
    e.most = 0
    sample(e, [Request((3, 4), 40, seed=n) for n in range(24)])
    assert e.most == 24 * 64


def failing(model, token):
    """The model, whose hidden states are void once this token has been read."""
    with torch.no_grad():
        model.get_input_embeddings().weight[token] = math.nan
    return model


def test_a_request_that_fails_leaves_no_trace():
    """Its neighbours draw what they draw alone; so does the next row in its slot."""
    e = engine(failing(tiny("qwen3", context=512), 7), num_slots=3)
    wanted = [Request((3, 9 + i), 40, seed=i, rules=(BanTokens((7,)),)) for i in range(7)]
    poisoned = [Request((3, 7, 4), 9, seed=9), Request((5, 6, 7, 8), 9, seed=9)]
    asked = [*wanted[:2], *poisoned, *wanted[2:]]
    found = {each.request: each for each in sample(e, asked)}
    for request in wanted:
        assert joined(found[request]) == joined(alone(REAL, request))
        assert not found[request].failed
    for request in poisoned:
        (event,) = found[request].events
        assert (event.ids, event.ended) == ((), "failed")
        assert "logits are not finite" in event.why
    # half way: what was drawn before is told
    late = Request((3, 4), 60, seed=1)
    free = joined(alone(REAL, late))
    place = free.index(7)
    (found,) = sample(e, [late, wanted[0]])[:1]
    assert joined(found) == free[: place + 1]
    assert found.failed
    assert not e.slots.table["taken"].any()


def test_rules_that_cannot_be_applied_fail_their_own_requests():
    rules = {
        (BanTokens(tuple(range(7))),): r"rules \(BanTokens.*leave none",
        (BanTokens((99,)),): "BanTokens.ids has 99; the vocabulary has 7 tokens",
    }
    asked = [Request((1,), 5, seed=i, rules=each) for i, each in enumerate([(), *rules, ()])]
    found = sample(engine(), asked)
    assert [each.failed for each in found] == [False, True, True, False]
    for each, why in zip(found[1:3], rules.values(), strict=True):
        assert re.search(why, each.events[-1].why)
    for each, request in ((found[0], asked[0]), (found[3], asked[3])):
        assert joined(each) == joined(alone(MODEL, request))
    with pytest.raises(UserError, match="all 2 requests failed, the first: no token"):
        sample(engine(), [replace(asked[1], seed=seed) for seed in (1, 2)])


def test_far_more_requests_than_fit_wait():
    """Eight for each slot, beside the one that is in it; the tokens are as ever."""
    wanted = [Request((1 + n % 6,), 1 + n % 9, seed=n) for n in range(60)]
    e, most = engine(num_slots=2), []

    def watched(id, request, source, start=e.start):
        start(id, request, source)
        most.append(len(e.known))

    e.start = watched
    for found in sample(e, wanted):
        assert joined(found) == joined(alone(MODEL, found.request))
    assert max(most) == (8 + 1) * 2
    assert len(most) == 60
