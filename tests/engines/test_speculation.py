"""Drafts from the tokens of other rows: the same draws, fewer passes."""

import functools
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from fakes.engine import Driven, in_pieces, joined, sample
from fakes.models import FAMILIES, VOCAB, from_table, tiny

from strop.engines.base import Request
from strop.engines.local.continuations import Continuations
from strop.engines.local.engine import LocalEngine
from strop.engines.local.slots import RECENT
from strop.engines.rules import BanTokens, MinP, TopK, TopP
from strop.support.errors import UserError

# 0 ends; what follows a token is one of two at most times
WEIGHTS = [[40 if j in (i % 4, (2 * i + 1) % 4) else 1 + (i + j) % 3 for j in range(4)]
           for i in range(5)]  # fmt: skip
TABLE = [[0.1, *(0.9 * weight / sum(row) for weight in row)] for row in WEIGHTS]
MODEL = from_table(TABLE, context=512)
CHAIN = from_table([[0.0, *(0.99 if j == (i + 1) % 4 else 0.01 / 3 for j in range(4))]
                    for i in range(5)], context=512)  # fmt: skip
WANT = frozenset({"logp_model", "entropy"})


def drafting(model, most=3, eager=True, **options):
    """An engine that drafts; eager: whatever it costs."""
    engine = LocalEngine(
        model, decode=lambda ids: "".join(chr(97 + id) for id in ids), speculate=most, **options
    )
    if eager:
        engine.speculation.step_cost = 1e9
    return engine


def plain(model, **options):
    return LocalEngine(model, decode=lambda ids: "".join(chr(97 + i) for i in ids), **options)


def told(found):
    return [(joined(each), each.events[-1].ended, each.events[-1].why) for each in found]


def group(number, max_tokens, seed=0, **fields):
    return [Request((1, 2), max_tokens, seed=seed + i, **fields) for i in range(number)]


def of_sequences(request, length):
    """Every sequence of a request with its probability, by enumeration."""

    def following(last):
        logits = torch.tensor([TABLE[last]], dtype=torch.float64).log() / request.temperature
        for rule in request.rules:
            logits = rule(logits)
        return logits.softmax(-1)[0].tolist()

    found = {(): 1.0}
    for _ in range(length):
        longer = {}
        for path, p in found.items():
            if path and path[-1] in request.stop_ids:
                longer[path] = p
                continue
            for token, q in enumerate(following(path[-1] if path else 2)):
                if q > 0:
                    longer[(*path, token)] = p * q
        found = longer
    return found


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"temperature": 0.6},
        {"temperature": 1.4, "stop_ids": (0,)},
        {"rules": (TopK(3),)},
        {"rules": (TopP(0.85),), "temperature": 0.8},
        {"rules": (BanTokens((4,)), MinP(0.2))},
    ],
)
def test_sequences_have_exactly_their_probabilities(fields):
    number, length = 3000, 4
    requests = group(number, length, seed=5, **fields)
    engine = drafting(MODEL, num_slots=200)
    counts = Counter(tuple(joined(found)) for found in sample(engine, requests))
    drafted, accepted = engine.drafts
    assert drafted > number / 2  # as a test of drafts, right and wrong ones
    assert 0.2 < accepted / drafted < 0.9
    expected = of_sequences(requests[0], length)
    assert set(counts) <= set(expected)
    assert sum(expected.values()) == pytest.approx(1.0)
    often = {path: number * p for path, p in expected.items() if number * p >= 5}
    rest = number - sum(often.values())
    square = sum((counts[path] - n) ** 2 / n for path, n in often.items())
    square += (number - sum(counts[path] for path in often) - rest) ** 2 / max(rest, 1.0)
    freedom = len(often)
    # the 0.1% point of chi-square, after Wilson and Hilferty
    assert square < freedom * (1 - 2 / (9 * freedom) + 3.09 * (2 / (9 * freedom)) ** 0.5) ** 3


def test_tokens_and_records_are_those_without_drafts():
    """Bit for bit of a model whose logits do not depend on the batch, whatever rows ask for."""
    rules = [(), (TopK(3),), (TopP(0.8),), (MinP(0.3), BanTokens((4,)))]
    asked = [{}, {"want": WANT}, {"num_top": 2, "want": frozenset({"top"})}]
    wanted = [
        Request(
            (1, 2, 3)[: 1 + i % 3],
            3 + i % 40,
            temperature=(1.0, 0.0, 0.7, 1.3)[i % 4],
            rules=rules[i // 3 % 4],
            stop_ids=((0,), (), (0, 2))[i % 3],
            stop_strings=("bc",) if i % 7 == 5 else (),
            seed=i,
            **asked[i // 2 % 3],
        )
        for i in range(60)
    ]
    for options in (
        {"num_slots": 64},
        {"num_slots": 7},
        {"num_slots": 30, "max_cached_tokens": 90},
    ):
        engine = drafting(MODEL, **options)
        for found, own in zip(sample(engine, wanted), sample(plain(MODEL), wanted), strict=True):
            assert found.events[-1].ended == own.events[-1].ended
            for name in ("ids", "logp", "logp_model", "entropy", "top"):
                assert joined(found, name) == joined(own, name)
        assert engine.drafts[1] > 0
        assert not engine.slots.table["taken"].any()


@pytest.mark.parametrize("family", FAMILIES)
def test_log_probabilities_are_those_of_a_plain_forward_pass(family):
    """Columns of rejected drafts leave nothing in the cache; greedy is greedy token for token."""
    model = tiny(family, dtype=torch.float32)
    requests = [
        Request((3 + i % 3, 4), 12, temperature=(1.0, 0.0, 0.6)[i % 3], seed=i, want=WANT)
        for i in range(18)
    ]
    engine = drafting(model, num_slots=5)
    engine.speculation.known.learn = lambda *drawn: None
    engine.speculation.known.foretell = guessing(5)
    compare = sample(plain(model, num_slots=5), requests)
    for found, own in zip(sample(engine, requests), compare, strict=True):
        request, new = found.request, joined(found)
        assert new == joined(own)
        with torch.no_grad():
            logits = model(torch.tensor([[*request.ids, *new]])).logits[0].double()
        logits = logits[len(request.ids) - 1 : -1]
        logq = (logits / (request.temperature or 1.0)).log_softmax(-1)
        chosen = logq.gather(-1, torch.tensor(new)[:, None])[:, 0]
        entropy = -(logq.exp() * logq).sum(-1)
        assert joined(found, "logp_model") == pytest.approx(chosen.tolist(), abs=1e-5)
        assert joined(found, "entropy") == pytest.approx(entropy.tolist(), abs=1e-5)
        if request.temperature:
            assert joined(found, "logp") == pytest.approx(chosen.tolist(), abs=1e-5)
        else:
            assert set(joined(found, "logp")) == {0.0}
            assert logits.argmax(-1).tolist() == new
    assert 0 < engine.drafts[1] < engine.drafts[0]


def guessing(seed):
    """Drafts that are any tokens, and sometimes none."""
    drawn = np.random.default_rng(seed)

    def foretell(recent, group, most, least):
        number = np.minimum(drawn.integers(0, 4, len(most)), most)
        wide = int(number.max(initial=0))
        there = np.arange(wide) < number[:, None]
        return drawn.integers(0, VOCAB, (len(most), wide)), there * 0.5

    return foretell


def test_the_same_drafts_every_time():
    """Also by an engine that has drawn something else before, as one that goes on with a run."""
    requests = group(40, 20, stop_ids=(0,))
    first = drafting(MODEL, num_slots=16)
    found = told(sample(first, requests))
    once = first.drafts
    assert told(sample(first, requests)) == found
    assert first.drafts == tuple(2 * each for each in once)
    other = drafting(MODEL, num_slots=16)
    sample(other, group(30, 9, seed=99))
    before = other.drafts
    assert told(sample(other, requests)) == found
    assert tuple(now - old for now, old in zip(other.drafts, before, strict=True)) == once


def test_likely_drafts_save_passes():
    def passes(engine, asked):
        driven, number = Driven(engine), 0
        for each in asked:
            driven.submit(each)
        while driven.open:
            driven.step()
            number += 1
        return number

    asked = group(8, 60)
    engine = drafting(CHAIN, most=4, eager=False, num_slots=8)
    assert passes(plain(CHAIN, num_slots=8), asked) == 60
    assert passes(engine, asked) < 30
    drafted, accepted = engine.drafts
    assert accepted > 0.85 * drafted


def test_drafts_that_cost_more_than_they_save_are_not_made():
    even = from_table([[0.125] * 8] * 8)
    engine = drafting(even, eager=False, num_slots=64)
    sample(engine, [Request((1,), 20, seed=i) for i in range(64)])
    assert engine.drafts == (0, 0)


def test_steps_without_drafts_are_plain_passes(monkeypatch):
    engine = drafting(MODEL, num_slots=4)
    monkeypatch.setattr(engine.model, "decode_several", None)
    wanted = group(6, 30, stop_strings=("zz",))  # no row with stop strings has a draft
    assert told(sample(engine, wanted)) == told(sample(plain(MODEL), wanted))
    assert engine.drafts == (0, 0)


@pytest.mark.parametrize("every", [1, 5])
def test_pieces_are_as_long_as_they_were(every):
    def run(engine):
        found = in_pieces(engine, [(each, every) for each in group(9, 17)])
        return [[(event.ids, event.ended) for event in each.events] for each in found]

    engine = drafting(CHAIN, num_slots=6)
    assert run(engine) == run(plain(CHAIN, num_slots=6))
    assert (engine.drafts[1] > 0) == (every > 1)


def test_what_goes_on_drafts_from_the_group_that_it_comes_from():
    engine, other = Driven(drafting(CHAIN, num_slots=4)), Driven(plain(CHAIN, num_slots=4))
    found = []
    for each in (engine, other):
        id = each.submit(Request((1, 2), 30, seed=3, keep=True))
        each.finish()
        tokens = each.answers[id].sequence
        branches = [
            each.submit(Request((*tokens[:at], *given), 32 - at - len(given), seed=8), (id, at))
            for at, given in ((6, ()), (12, (4,)))
        ]
        assert len({each.known[own].group for own in (id, *branches)}) == 1
        before = each.drafts[1]
        each.finish()
        found.append([each.answers[branch].sequence for branch in branches])
        assert (each.drafts[1] > before + 10) == (each is engine)
    assert found[0] == found[1]


def test_aborted_and_failed_rows_keep_what_they_drew():
    """A row that is aborted after some steps has a beginning of its tokens without drafts."""
    engine = Driven(drafting(CHAIN, num_slots=3))
    whole = told(sample(plain(CHAIN, num_slots=3), group(3, 40)))
    ids = [engine.submit(each) for each in group(3, 40)]
    for _ in range(6):
        engine.step()
    for id, (tokens, _, _) in zip(ids, whole, strict=True):
        kept = joined(engine.cancel(id))
        assert len(kept) > 6
        assert kept == tokens[: len(kept)]
    assert not engine.slots.table["taken"].any()


def test_a_draft_after_which_the_model_is_not_finite_spoils_nothing():
    """A row that draws token 3 fails at the next; what others drafted from it does not count."""
    broken = from_table([[0.1, 0.6, 0.26, 0.04], [0.1, 0.2, 0.66, 0.04], [0.1, 0.5, 0.36, 0.04],
                         [0.25] * 4], context=512)  # fmt: skip
    with torch.no_grad():
        broken.model.embed_tokens.weight[3] = torch.nan
    requests = group(90, 12, stop_ids=(0,))
    engine = drafting(broken, num_slots=20)
    found = told(sample(engine, requests))
    assert found == told(sample(plain(broken, num_slots=20), requests))
    ends = Counter(ended for _, ended, _ in found)
    assert ends["failed"] > 10
    assert ends["stop"] + ends["length"] > 30
    assert engine.drafts[1] > 30


def test_new_weights_in_the_middle():
    """Drafts of the old weights' text are drawn by the new ones."""
    other = from_table([[0.05, 0.05, 0.1, 0.2, 0.6]] * 5, context=512)
    engine = Driven(drafting(from_table(TABLE, context=512), num_slots=20))
    requests = group(200, 8)
    for each in requests:
        engine.submit(replace(each, max_tokens=20))
    for _ in range(3):
        engine.step()
    engine.load_weights(other.state_dict(), 1)
    drawn = Counter()
    for events in engine.finish().values():
        for event in events:
            if event.version == 1:
                drawn.update(event.ids)
    shares = [drawn[token] / drawn.total() for token in range(5)]
    assert shares == pytest.approx([0.05, 0.05, 0.1, 0.2, 0.6], abs=0.02)


def test_eager_attention_is_refused():
    with pytest.raises(UserError, match=r"can't draft tokens for .* eager.*leave engine.speculate"):
        drafting(tiny("qwen3", "eager"))


def test_a_model_that_does_not_hand_drafts_to_its_attention_is_refused(monkeypatch):
    model = tiny("qwen3")
    inner, forward = model.model, model.model.forward
    without = functools.wraps(forward)(lambda *a, strop_ragged=None, **more: forward(*a, **more))
    monkeypatch.setattr(inner, "forward", without)
    with pytest.raises(UserError, match="can't draft tokens for a 'qwen3' model"):
        drafting(model)
    assert model.config._attn_implementation == "sdpa"


def recent(*tokens):
    return np.array([(*(-1,) * (RECENT - len(tokens)), *tokens)[-RECENT:]])


def learnt(known, text, group=0, chance=0.9):
    for place in range(1, len(text)):
        known.learn(recent(*text[:place]), np.array([group]), np.array([text[place]]),
                    np.array([chance]))  # fmt: skip


def foretold(known, text, most=4, least=0.3, group=0):
    token, chance = known.foretell(recent(*text), np.array([group]), np.array([most]), least)
    return token[0].tolist(), chance[0].tolist()


def test_continuations_are_of_the_longest_known_end():
    known = Continuations()
    learnt(known, (9, 1, 2, 3, 4, 5, 6))
    assert foretold(known, (7, 7, 1, 2, 3, 4)) == ([5, 6], pytest.approx([0.9, 0.81]))
    assert foretold(known, (7, 7, 1, 2, 3, 4), most=1)[0] == [5]
    assert foretold(known, (7, 7, 1, 2, 3, 4), least=0.85)[0] == [5]
    assert foretold(known, (7, 1, 2, 4)) == ([], [])
    # of another group an end of five is asked for
    assert foretold(known, (7, 7, 1, 2, 3, 4), group=1) == ([], [])
    assert foretold(known, (9, 1, 2, 3, 4), group=1)[0] == [5, 6]
    long = (8, 8, 8, 8, 1, 2, 3, 4)
    learnt(known, (*long, 7), chance=0.8)  # which ends of four now say, too: 7 is not likelier
    assert foretold(known, long)[0][0] == 7
    assert foretold(known, (1, 2, 3, 4))[0][0] == 5
    known.clear()
    assert foretold(known, (1, 2, 3, 4)) == ([], [])


def test_chances_follow_what_was_drawn():
    known = Continuations()
    end, here = recent(1, 2, 3, 4), np.array([0])
    for token, chance, expected in (
        (5, 0.9, (5, 0.9)),
        (5, 0.5, (5, 0.7)),  # the mean of both
        (6, 0.2, (5, 0.7)),  # 5 stays: (.7 + min(.7, 1 - .2)) / 2
        (6, 0.6, (5, 0.55)),  # (.7 + .4) / 2
        (6, 0.8, (6, 0.8)),  # the likelier one
    ):
        known.learn(end, here, np.array([token]), np.array([chance]))
        (found,), (now,) = foretold(known, (1, 2, 3, 4), least=0.1)
        assert (found, now) == (expected[0], pytest.approx(expected[1]))


def test_trust_falls_with_drafts_that_were_wrong():
    known = Continuations()
    learnt(known, (1, 2, 3, 4, 5), chance=0.8)
    known.judge(8.0, 0)  # (0 + 8) / (8 + 8)
    assert foretold(known, (1, 2, 3, 4)) == ([5], pytest.approx([0.4]))
    for _ in range(60):
        known.judge(0.0, 0)
    assert foretold(known, (1, 2, 3, 4))[1] == pytest.approx([0.8], abs=0.01)
    known.judge(1.0, 5)  # never more than what was drawn says
    assert foretold(known, (1, 2, 3, 4))[1] == pytest.approx([0.8])
