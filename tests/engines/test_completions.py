"""The engine over a completions server, against the local engine behind that server."""

import asyncio
import json
import math
import threading
import time
from contextlib import contextmanager

import pytest
import torch
from fakes.completions_server import Letters, complete, serve
from fakes.engine import Driven, TableEngine, by_last_token, in_pieces, joined, sample
from fakes.models import VOCAB, tiny

from strop.engines import completions
from strop.engines.asynchronous import asynchronous, gather, run
from strop.engines.base import Account, Request
from strop.engines.completions import CompletionsSettings
from strop.engines.local.engine import LocalEngine
from strop.engines.open import read
from strop.engines.rules import BanTokens, MinP, TopK, TopP
from strop.support.errors import UserError
from strop.support.http import Retries

WANT = frozenset({"logp_model"})
CUTS = (MinP(0.01), TopK(9), TopP(0.9))


# 0: a, 1: b, 2: c, 3: d. From a on: b, c, a, b, c, ... with 3 in 5, anything else sometimes.
TABLE = {i: [0.6 if j == (i + 1) % 3 else 0.4 / 3 for j in range(4)] for i in range(4)}


@pytest.fixture
def table():
    return TableEngine(by_last_token(TABLE), context_length=64)


@pytest.fixture(scope="module")
def model():
    return tiny("qwen3", dtype=torch.float32)


@pytest.fixture(autouse=True)
def no_waits(monkeypatch):
    monkeypatch.setattr(completions, "RETRIES", Retries(3, 0.01))


@contextmanager
def opened(served, **settings):
    found = read({"kind": "completions", "url": served.url, **settings})
    engine = found.open(None, Letters(served.vocab_size), num_slots=8, context_length=64)
    try:
        yield engine
    finally:
        engine.close()


def refused(served, why, **settings):
    with pytest.raises(UserError, match=why), opened(served, **settings):
        pass


def requests(number=9, **fields):
    prompts = torch.randint(0, VOCAB, (number, 5), generator=torch.Generator().manual_seed(1))
    return [
        Request(tuple(ids[: 1 + i % 5]), 6 + i % 3 * 4, **{"seed": i, "want": WANT, **fields})
        for i, ids in enumerate(prompts.tolist())
    ]


def local(model):
    return LocalEngine(model, Letters(VOCAB), num_slots=8, context_length=64)


@pytest.mark.parametrize("told", ["model", "tempered", "drawn"])
def test_greedy_answers_and_log_probabilities_are_the_local_engines(told, model):
    wanted = requests(temperature=0.0, stop_ids=(3, 5))
    expected = sample(local(model), wanted)
    with serve(local(model), VOCAB, told=told) as served, opened(served) as engine:
        found = sample(engine, wanted)
    assert {f.events[-1].ended for f in found} == {"stop", "length"}
    for ours, theirs in zip(found, expected, strict=True):
        for name in ("ids", "logp"):
            assert joined(ours, name) == joined(theirs, name)
        expected_logp = pytest.approx(joined(theirs, "logp_model"), abs=1e-5)
        assert joined(ours, "logp_model") == expected_logp
        assert ours.events[-1].ended == theirs.events[-1].ended


@pytest.mark.parametrize(
    ("told", "temperature", "rules"),
    [("model", 1.0, CUTS), ("model", 0.6, ()), ("tempered", 0.6, CUTS), ("tempered", 0.6, ()),
     ("drawn", 1.0, ()), ("drawn", 0.6, CUTS)],
)  # fmt: skip
def test_draws_are_of_the_models_distribution_and_said_to_be_so(told, temperature, rules, model):
    """The seed that is sent draws the same from the local engine, with the same numbers."""
    knows_model = told == "tempered" or (temperature == 1 if told == "model" else not rules)
    knows_drawn = told == "drawn" or (knows_model and not rules)
    want = WANT if knows_model else frozenset()
    wanted = requests(temperature=temperature, rules=rules, want=want)
    with serve(local(model), VOCAB, told=told) as served, opened(served) as engine:
        assert engine.client.logprob_kind == told
        assert "logp_model" in engine.capabilities
        found = sample(engine, wanted)
        if not knows_model:
            with pytest.raises(UserError, match=r"log-probabilities are those .*logprobs=false"):
                sample(engine, requests(1, temperature=temperature, rules=rules))
    seeds = {tuple(body["prompt"]): body["seed"] for body in served.asked}
    assert len(seeds) == len(set(seeds.values())) == len(wanted)
    again = [Request(**{**vars(r), "seed": seeds[r.ids], "want": WANT}) for r in wanted]
    for ours, theirs in zip(found, sample(local(model), again), strict=True):
        assert joined(ours, "ids") == joined(theirs, "ids")
        if knows_drawn:
            assert joined(ours, "logp") == pytest.approx(joined(theirs, "logp"), abs=1e-5)
        else:
            assert all(map(math.isnan, joined(ours, "logp")))
        if knows_model:
            expected = pytest.approx(joined(theirs, "logp_model"), abs=1e-5)
            assert joined(ours, "logp_model") == expected


def test_everything_that_a_server_has_defaults_for_is_said(table):
    with serve(table, 4) as served, opened(served) as engine:
        sample(engine, [Request((0,), 3, 0.5, (TopK(2),), stop_ids=(3,), stop_strings=("zz",))])
    (body,) = served.asked
    seed = body.pop("seed")
    assert 0 <= seed < 2**63
    assert body == {
        "model": "m", "prompt": [0], "max_tokens": 3, "temperature": 0.5, "top_k": 2,
        "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0,
        "frequency_penalty": 0.0, "stop_token_ids": [3], "stop": ["zz"], "logprobs": 0,
        "return_token_ids": True, "skip_special_tokens": False,
    }  # fmt: skip


def test_rules_are_options_or_refused(table):
    refused = {
        (BanTokens((1,)),): r"cannot apply BanTokens\(ids=\(1,\)\): it takes one TopK, one MinP",
        (TopK(2), TopK(3)): r"cannot apply TopK\(k=3\)",
        (TopP(0.9), MinP(0.1)): "cuts by top_p last, and here MinP comes after",
    }
    with serve(table, 4) as served, opened(served) as engine:
        for rules, why in refused.items():
            with pytest.raises(UserError, match=why):
                engine.start(0, Request((0,), 3, rules=rules))
        sample(engine, [Request((0,), 1, 0.0, (TopK(3),)), Request((0,), 1, 1.0, (MinP(0.2),)),
                        Request((0,), 1, 0.5, (TopP(0.7),))])  # fmt: skip
    assert {body["temperature"]: body["top_p"] for body in served.asked}[0.5] == 0.7
    asked = {body["temperature"]: (body["top_k"], body["min_p"]) for body in served.asked}
    # The likeliest token is in every cut.
    assert asked == {0.0: (-1, 0.0), 1.0: (-1, 0.2), 0.5: (-1, 0.0)}


def test_without_log_probabilities_none_is_told(table):
    with serve(table, 4) as served, opened(served, logprobs=False) as engine:
        assert engine.capabilities == {"rules"}
        (found,) = sample(engine, [Request((0,), 3, 0.5)])
        with pytest.raises(UserError, match="log-probabilities are not requested"):
            engine.start(0, Request((0,), 3, want=WANT))
    assert all(map(math.isnan, joined(found, "logp")))
    assert not any("logprobs" in body for body in served.bodies)


def test_an_answer_ends_where_the_request_says(table):
    """A server with an end of its own is asked on; what lies behind a stop is cut off."""
    with serve(table, 4, ends=(2,), knows_stops=False) as served, opened(served) as engine:
        (on,) = sample(engine, [Request((0,), 7, 0.0)])
        assert joined(on, "ids") == [1, 2, 0, 1, 2, 0, 1]
        assert [event.ended for event in on.events] == ["", "", "length"]
        assert [body["prompt"] for body in served.asked] == [[0], [0, 1, 2], [0, 1, 2, 0, 1, 2]]
        served.ends = ()
        (cut,) = sample(engine, [Request((0,), 7, 0.0, stop_ids=(2,), want=WANT)])
        assert (joined(cut, "ids"), cut.events[-1].ended) == ([1, 2], "stop")
        assert len(joined(cut, "logp_model")) == 2
        # the string lies across two pieces, where no call sees it whole
        string = Request((0,), 9, 0.0, stop_strings=("ab",))
        (said,) = in_pieces(engine, [(string, 3)])
    assert joined(said, "ids") == [1, 2, 0, 1]  # b c a | b
    assert [event.ended for event in said.events] == ["", "stop"]


def test_what_goes_on_is_asked_for_with_the_tokens_so_far(table):
    with serve(table, 4) as served, opened(served) as opening:
        engine = Driven(opening)
        id = engine.submit(Request((0,), 3, seed=5, keep=True))
        (first,) = engine.step()
        assert (len(first.ids), first.ended, engine.pending) == (3, "length", {})
        other = Request((0, *first.ids[:2], 3), 4, seed=5)
        branch, fresh = engine.submit(other, (id, 3)), engine.submit(other)
        more = engine.submit(engine.answers[id].more(4), (id, 4))
        engine.finish()
        assert engine.answers[branch].ids == engine.answers[fresh].ids
        assert len(engine.answers[branch].ids) == 4
        assert (len(engine.answers[more].ids), engine.answers[more].ended) == (4, "length")
        assert opening.cancel(id) == []  # nothing is left of it
    bodies = {tuple(body["prompt"]): body for body in served.asked}
    assert bodies[0, *first.ids]["max_tokens"] == 4
    assert bodies[0, *first.ids]["seed"] != bodies[0,]["seed"]


def test_so_many_requests_run_at_once(table):
    together = threading.Barrier(3, timeout=20)  # nobody is answered before three have come

    def instead(body):
        together.wait()

    with serve(table, 4) as served, opened(served, num_parallel=3) as engine:
        served.instead = instead
        found = sample(engine, [Request((0,), 4, seed=seed) for seed in range(9)])
        answers = {tuple(joined(each, "ids")) for each in found}
    assert len(answers) > 3
    assert max(served.at_once) == 3


def test_what_is_awaited_elsewhere_goes_on_while_the_server_takes_its_time(table):
    """It answers once an environment has, which takes some calls in another thread."""
    go_on, heard = threading.Event(), []

    def instead(body):
        heard.append(go_on.wait(10))

    async def world():
        for _ in range(3):
            await asyncio.to_thread(time.sleep, 0.001)
        go_on.set()

    with serve(table, 4) as served, opened(served) as engine:
        served.instead, book = instead, asynchronous(engine)
        asked = book.generate(Request((0,), 4))
        answer, _ = run(book, gather([asked, world()]), Account())
    assert heard == [True]
    assert len(answer.ids) == 4


def test_an_aborted_request_is_over_and_the_others_are_not(table):
    started, go_on = threading.Event(), threading.Event()

    def instead(body):
        if body["prompt"] == [3]:
            started.set()
            go_on.wait(20)

    with serve(table, 4) as served, opened(served, num_parallel=2) as opening:
        served.instead, engine = instead, Driven(opening)
        slow, other = engine.submit(Request((3,), 4)), engine.submit(Request((0,), 4))
        assert started.wait(20)
        assert engine.cancel(slow).events == ()
        assert [event.request for event in engine.step()] == [other]
        assert not engine.pending
        go_on.set()


def test_an_aborted_request_lets_the_next_one_be_asked(table):
    """One call at a time: that of the first is broken off, though the server never answers it."""
    started, go_on = threading.Event(), threading.Event()

    def instead(body):
        if body["prompt"] == [3]:
            started.set()
            go_on.wait(20)

    with serve(table, 4) as served, opened(served, num_parallel=1) as opening:
        served.instead, engine = instead, Driven(opening)
        slow, other = engine.submit(Request((3,), 4)), engine.submit(Request((0,), 4))
        assert started.wait(20)
        engine.cancel(slow)
        assert [event.request for event in engine.step()] == [other]
        assert not go_on.is_set()
        go_on.set()


def test_a_server_that_answers_nobody_ends_it_soon(table):
    with serve(table, 4) as served, opened(served, num_parallel=2) as engine:
        served.instead = lambda body: (400, "no") if body["prompt"] == [3] else None
        asked = [
            Request((0,), 2, seed=n) if n == 9 else Request((3,), 2, seed=n) for n in range(20)
        ]
        found = sample(engine, asked)  # fewer than sixteen in a row
        assert [each.failed for each in found] == [n != 9 for n in range(20)]
        before = len(served.bodies)
        with pytest.raises(UserError, match=r"failed: HTTP 400: no \(as did the 15 before\)"):
            sample(engine, [Request((3,), 2, seed=n) for n in range(200)])
        assert len(served.bodies) - before < 30


def test_far_more_requests_than_are_asked_at_once_wait(table):
    with serve(table, 4) as served, opened(served, num_parallel=2) as engine:
        most = 0

        def watched(id, request, source, start=engine.start):
            nonlocal most
            start(id, request, source)
            most = max(most, len(engine.pending))

        engine.start = watched
        assert len(sample(engine, [Request((0,), 2, seed=n) for n in range(60)])) == 60
    assert most == (8 + 1) * 2


@pytest.mark.parametrize("status", [429, 500, 503, 529])
def test_what_fails_for_the_moment_is_asked_again(status, table):
    said = iter([(status, "busy"), (status, "busy")])
    with serve(table, 4) as served, opened(served) as engine:
        served.instead = lambda body: next(said, None)
        (found,) = sample(engine, [Request((0,), 4)])
    assert len(joined(found, "ids")) == 4
    assert [body["seed"] for body in served.asked] == [served.asked[0]["seed"]] * 3


def test_a_request_that_fails_does_not_take_the_others_with_it(table):
    over = '{"error": {"message": "This model\'s context\\n is 3", "code": 400}}'

    def instead(body):
        return (400, over) if body["prompt"] == [3] else None

    with serve(table, 4) as served, opened(served) as opening:
        served.instead, engine = instead, Driven(opening)
        ids = [engine.submit(Request((first,), 4, 0.0)) for first in (0, 3, 1, 2)]
        events = [event for each in engine.finish().values() for event in each]
    failed = [event for event in events if event.ended == "failed"]
    events = [event for event in events if event.ended != "failed"]
    assert [event.request for event in failed] == [ids[1]]
    assert [event.why for event in failed] == [
        f"the server at {served.url}: a request of 1 tokens failed: HTTP 400: This model's "
        "context is 3"
    ]
    assert {event.request: len(event.ids) for event in events} == {
        ids[0]: 4, ids[2]: 4, ids[3]: 4
    }  # fmt: skip
    assert len(served.asked) == 4  # what is refused is not asked again


LOST = '{"choices": [{"token_ids": [1], "prompt_token_ids": [0, 0], "logprobs": null}]}'
VOID = '{"choices": [{"token_ids": [1, 2], "logprobs": {"token_logprobs": [-1.0, null]}}]}'
NONE = '{"choices": [{"token_ids": [], "logprobs": null, "finish_reason": "stop"}]}'


@pytest.mark.parametrize(
    ("message", "why"),
    [
        ((503, "overloaded"), "HTTP 503: overloaded"),
        ((401, '{"error": "Unauthorized"}'), "HTTP 401: Unauthorized"),
        ((422, '{"detail": "no field"}'), "HTTP 422: no field"),
        ((404, "{}"), r"HTTP 404: \{\}"),
        ((200, "<html>"), "not JSON; is it a completions server"),
        ((200, '{"choices": []}'), r"no completion: \{\"choices"),
        ((200, "[3]"), r"no completion: \[3\]"),
        ((200, LOST), "read 2 tokens that differ from the prompt's 1: switch off"),
        ((200, VOID), "not every token has a log-probability; engine.logprobs=false"),
        ((200, NONE), r"an answer without a token \(stop\)"),
    ],
)
def test_what_is_no_answer_is_said_on_one_line(message, why, table):
    with serve(table, 4) as served, opened(served) as engine:
        served.instead = lambda body: message
        with pytest.raises(UserError, match=why) as raised:
            sample(engine, [Request((0,), 4)])
        assert "\n" not in str(raised.value)
        served.instead = lambda body: None
        assert len(sample(engine, [Request((0,), 4)])) == 1  # the engine is as before


def test_a_hung_server_times_out(table):
    go_on = threading.Event()
    with serve(table, 4) as served, opened(served, timeout_seconds=2.0) as engine:
        served.instead = lambda body: go_on.wait(20) and None
        with pytest.raises(UserError, match=r"no answer in 2 s, .*engine.timeout_seconds"):
            sample(engine, [Request((0,), 4)])
        go_on.set()


def test_a_server_without_token_ids_is_refused(table):
    with serve(table, 4, returns_ids=False) as served:
        refused(served, r"returns no token ids: .*return_token_ids.*vLLM.*SGLang")


def test_a_server_whose_log_probabilities_cannot_be_understood_is_refused():
    even = TableEngine(by_last_token({i: [0.25] * 4 for i in range(4)}), context_length=64)
    with serve(even, 4) as served:
        refused(served, r"it is unclear which log-probabilities it gives; .*logprobs=false")
        with opened(served, logprobs=False) as engine:
            assert engine.client.logprob_kind == "nothing"


def test_a_server_that_does_not_report_the_likeliest_tokens_is_refused(table):
    def instead(body):
        answer = complete(served, body)
        answer["choices"][0]["logprobs"]["top_logprobs"] = None
        return 200, json.dumps(answer)

    with serve(table, 4, instead=instead) as served:
        refused(served, r"it is unclear which log-probabilities it gives; .*logprobs=false")


def test_the_server_must_be_there_and_have_the_model(table):
    with serve(table, 4, models={"a": None, "b": 32}) as served:
        refused(served, r"it has several models: give engine.model one of a, b")
        refused(served, r"it has no model 'c': give engine.model one of a, b", model="c")
        with opened(served, model="a") as engine:
            assert engine.context_length == 64  # of the model's files, for lack of the server's
        with opened(served, model="b") as engine:
            (found,) = sample(engine, [Request((0,), 99)])
            assert (len(joined(found, "ids")), found.events[-1].ended) == (31, "length")
            with pytest.raises(UserError, match="prompt has 32 tokens, the context 32"):
                engine.start(0, Request((0,) * 32, 1))
            with pytest.raises(UserError, match="takes no weights"):
                engine.load_weights(None, 1)
        served.models = {}
        refused(served, "lists no models")
    refused(served, r"127.0.0.1.*refused \(does it run, is its URL right")


def test_the_settings(table, monkeypatch):
    assert CompletionsSettings(url="https://host/path/v1/").url == "https://host/path"
    with serve(table, 4) as served:
        refused(served, "variable KEY_OF_TEST is not set", api_key_env="KEY_OF_TEST")
        monkeypatch.setenv("KEY_OF_TEST", "k-\u00e4")
        refused(served, "KEY_OF_TEST has a character that no header", api_key_env="KEY_OF_TEST")
        monkeypatch.setenv("KEY_OF_TEST", "k-1")
        with opened(served, url=served.url + "/v1", api_key_env="KEY_OF_TEST") as engine:
            sample(engine, [Request((0,), 1)])
    assert {headers["Authorization"] for headers in served.headers} == {"Bearer k-1"}
