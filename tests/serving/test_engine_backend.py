"""An engine behind the server: its tokens are the engine's own, whatever other clients request."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import openai
import pytest
import torch
from fakes.completions_server import Letters, serve
from fakes.coroutines import check_closed, local, model, text
from fakes.models import VOCAB, tiny
from fakes.policy import asking, by_bytes
from test_streams_and_retries import wait_for

from strop.data.chat import Chat
from strop.engines.asynchronous import asynchronous
from strop.engines.base import Request
from strop.engines.local.engine import LocalEngine
from strop.engines.open import read
from strop.engines.rules import MinP, TopK, TopP
from strop.serving.engine_backend import COUNTED, NEXT, EngineBackend
from strop.serving.protocol import Busy, ModelCall, Refused
from strop.serving.server import PolicyServer

CONTEXT = 128
PROMPT = (3, 4, 5)
IDS = {"return_token_ids": True}


@contextmanager
def serving(engine, **options):
    """The engine behind a server, and at the end with nothing left in it."""
    backend = EngineBackend(asynchronous(engine), max_model_len=CONTEXT, **options)
    with (
        backend,
        PolicyServer(by_bytes(), Chat(), backend, model="tiny", max_model_len=CONTEXT) as server,
    ):
        threads = backend._thread, server._thread
        yield backend, server
    assert not any(thread.is_alive() for thread in threads)
    check_closed(engine)


@pytest.fixture(scope="module")
def server():
    with serving(local(), stop_ids=(1,)) as (_, server):
        yield server


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=server.key, max_retries=0) as client:
        yield client


def own(request: Request):
    """What a fresh engine draws."""
    (answer,) = asynchronous(local()).sample([request])
    return answer


def logp(answer, name="logp"):
    return [value for event in answer.events for value in getattr(event, name)]


def ask(client, **fields):
    fields = {"prompt": list(PROMPT), "max_tokens": 12, "logprobs": 0, "extra_body": IDS} | fields
    return client.completions.create(model="tiny", **fields)


def test_greedy_answers_are_the_engines(client):
    wanted = own(Request(PROMPT, 12, 0.0, stop_ids=(1,), want=frozenset({"logp_model"})))
    (choice,) = ask(client, temperature=0).choices
    assert choice.token_ids == list(wanted.ids)
    assert choice.logprobs.token_logprobs == pytest.approx(logp(wanted, "logp_model"), abs=1e-9)
    assert choice.finish_reason == wanted.ended


@pytest.mark.parametrize(
    ("fields", "request_"),
    [
        ({}, {}),
        ({"temperature": 0.7}, {"temperature": 0.7}),
        (
            {"top_p": 0.9, "extra_body": {**IDS, "top_k": 9, "min_p": 0.01}},
            {"rules": (TopK(9), TopP(0.9), MinP(0.01))},
        ),
        ({"extra_body": {**IDS, "stop_token_ids": [7, 8]}}, {"stop_ids": (1, 7, 8)}),
    ],
)
def test_a_seed_gives_the_tokens_of_a_request_with_it(client, fields, request_):
    for seed in (0, 3, 12345):
        wanted = own(Request(PROMPT, 12, seed=seed, **{"stop_ids": (1,), **request_}))
        (choice,) = ask(client, seed=seed, **fields).choices
        assert (choice.token_ids, choice.finish_reason) == (list(wanted.ids), wanted.ended)
        assert choice.logprobs.token_logprobs == pytest.approx(logp(wanted), abs=1e-9)
        assert choice.token_versions == [0] * len(wanted.ids)


def test_answers_of_a_call_differ_and_come_again(client):
    first, again = (ask(client, seed=4, n=5).choices for _ in range(2))
    tokens = [tuple(choice.token_ids) for choice in first]
    assert tokens == [tuple(choice.token_ids) for choice in again]
    assert tokens[0] == own(Request(PROMPT, 12, seed=4, stop_ids=(1,))).ids
    assert tokens[2] == own(Request(PROMPT, 12, seed=4 + 2 * NEXT, stop_ids=(1,))).ids
    assert len(set(tokens)) == 5
    assert [choice.index for choice in first] == list(range(5))


def test_the_answers_of_one_seed_are_not_those_of_the_next_seeds(client):
    answers = {tuple(choice.token_ids) for choice in ask(client, seed=0, n=3).choices}
    assert not answers & {tuple(ask(client, seed=seed).choices[0].token_ids) for seed in (1, 2)}


def test_calls_without_a_seed_differ(client):
    assert len({tuple(ask(client).choices[0].token_ids) for _ in range(6)}) > 3


def test_seeds_of_calls_without_one_begin_with_that_of_the_server():
    with serving(local(), seed=2) as (_, server), asking(server) as client:
        for number in range(3):
            body = {"prompt": list(PROMPT), "max_tokens": 6, "return_token_ids": True}
            (choice,) = client.post("/v1/completions", json=body).json()["choices"]
            wanted = own(Request(PROMPT, 6, seed=COUNTED + 2 * NEXT + number))
            assert choice["token_ids"] == list(wanted.ids)


def test_32_calls_at_once_have_the_tokens_of_each_alone(client):
    seeds = range(32)
    with ThreadPoolExecutor(32) as pool:
        found = list(pool.map(lambda seed: ask(client, seed=seed).choices[0].token_ids, seeds))
    assert found == [list(own(Request(PROMPT, 12, seed=s, stop_ids=(1,))).ids) for s in seeds]


@pytest.mark.parametrize("told", ["model", "tempered", "drawn"])
def test_calls_go_to_a_server_that_does_not_know_all_log_probabilities(told):
    inner = LocalEngine(tiny(dtype=torch.float32), num_slots=4, context_length=64)
    with serve(inner, VOCAB, told=told) as served:
        settings = read({"kind": "completions", "url": served.url})
        engine = settings.open(None, Letters(VOCAB), num_slots=4, context_length=64)
        with EngineBackend(asynchronous(engine), max_model_len=64) as backend:
            for fields in ({"temperature": 0.7}, {"top_p": 0.9}, {"temperature": 0.0}):
                (answer,) = asyncio.run(backend.say(ModelCall("completions", PROMPT, 4, **fields)))
                assert len(answer.ids) == 4
                assert len(answer.model_log_probs) == (4 if fields == {"temperature": 0.0} else 0)
        engine.close()


def test_the_likeliest_tokens(client):
    request = Request(PROMPT, 3, seed=1, stop_ids=(1,), num_top=2, want=frozenset({"top"}))
    wanted = own(request)
    (choice,) = ask(client, seed=1, max_tokens=3, logprobs=2).choices
    decode = by_bytes().decode
    best = [
        {decode([id]): value for id, value in each.items()}
        for event in wanted.events
        for each in event.top
    ]
    assert choice.logprobs.top_logprobs == [pytest.approx(each) for each in best]
    (least,) = ask(client, seed=1, max_tokens=3, top_p=1e-300).choices  # 0 in float32
    assert least.text == ask(client, seed=1, max_tokens=3, temperature=0).choices[0].text
    for fields in ({"temperature": 0.5}, {"top_p": 0.5}):
        with pytest.raises(openai.BadRequestError, match="set logprobs to 0"):
            ask(client, logprobs=2, **fields)


def test_an_answer_is_as_long_as_the_context_where_nothing_is_said():
    with serving(local()) as (_, server), asking(server) as client:
        response = client.post(
            "/v1/completions", json={"prompt": [3] * 100, "return_token_ids": True}
        )
        (choice,) = response.json()["choices"]
        assert (len(choice["token_ids"]), choice["finish_reason"]) == (28, "length")
    backend = EngineBackend(asynchronous(local()), max_model_len=10)  # less than the model has
    with backend:
        (answer,) = asyncio.run(backend.say(ModelCall("completions", PROMPT)))
    assert len(answer.ids) == 7
    with serving(local(), max_tokens=4) as (_, server), asking(server) as client:
        for body, size in (({}, 4), ({"max_tokens": 6}, 6)):
            body = {"prompt": [3] * 100, "return_token_ids": True, **body}
            (choice,) = client.post("/v1/completions", json=body).json()["choices"]
            assert len(choice["token_ids"]) == size


def test_a_token_that_the_model_does_not_know(client):
    with pytest.raises(openai.BadRequestError, match=r"outside \[0, 24\)"):
        ask(client, prompt=[200])


def slowly(engine):
    """The engine, whose steps take a while."""
    poll = engine.poll

    def slow(seconds):
        time.sleep(0.05)
        return poll(seconds)

    engine.poll = slow
    return engine


def test_the_request_of_a_client_that_goes_away_ends():
    engine = slowly(local())
    with serving(engine) as (backend, server), asking(server) as client:
        with pytest.raises(Exception, match="timed out"):
            client.post("/v1/completions", json={"prompt": [3], "n": 3}, timeout=0.5)
        wait_for(lambda: not backend.engine.running)
        assert not engine.known
        body = {"prompt": [3], "max_tokens": 2}
        assert client.post("/v1/completions", json=body).status_code == 200


def test_a_pause_and_new_weights():
    engine = slowly(local())
    with serving(engine) as (backend, server), asking(server) as client:
        body = {"prompt": [3], "max_tokens": 12, "seed": 2, "return_token_ids": True}
        backend.pause(7)
        response = client.post("/v1/completions", json=body)
        assert (response.status_code, response.headers["retry-after"]) == (429, "7")
        backend.resume()
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(client.post, "/v1/completions", json=body)
            wait_for(lambda: backend.engine.running)
            time.sleep(0.2)
            backend.load_weights(model().state_dict(), 5)
            (choice,) = running.result().json()["choices"]
        assert set(choice["token_versions"]) == {0, 5}
        assert choice["token_versions"] == sorted(choice["token_versions"])
        assert choice["token_ids"] == list(own(Request((3,), 12, seed=2)).ids)  # equal weights
        response = client.post("/v1/completions", json=body)
        assert response.headers["x-weights-version"] == "5"


def test_an_engine_that_breaks_ends_all(capfd):
    engine = local()
    backend = EngineBackend(asynchronous(engine), max_model_len=CONTEXT)

    def broken(seconds):
        raise ZeroDivisionError("the engine")

    engine.poll = broken
    with (
        backend,
        PolicyServer(by_bytes(), Chat(), backend, model="tiny", max_model_len=CONTEXT) as server,
        asking(server) as client,
    ):
        for _ in range(2):
            response = client.post("/v1/completions", json={"prompt": [3]})
            assert (response.status_code, "engine has failed" in response.text) == (500, True)
        assert backend.ended.wait(30)
    assert "ZeroDivisionError: the engine" in capfd.readouterr().err


def test_an_engine_that_breaks_before_new_weights_is_their_error_too():
    engine, polled, breaks = local(), threading.Event(), threading.Event()

    def broken(seconds):
        polled.set()
        breaks.wait(30)
        raise ZeroDivisionError("the engine")

    engine.poll = broken
    with (
        EngineBackend(asynchronous(engine), max_model_len=CONTEXT) as backend,
        ThreadPoolExecutor(1) as pool,
    ):
        call = pool.submit(asyncio.run, backend.say(ModelCall("completions", PROMPT)))
        polled.wait(30)
        threading.Timer(0.3, breaks.set).start()  # while the weights wait for the step's end
        with pytest.raises(Refused, match="engine has failed") as failed:
            backend.load_weights(None, 5)
        with pytest.raises(Refused, match="engine has failed"):
            call.result()
    assert isinstance(failed.value.__cause__, ZeroDivisionError)


def test_a_request_that_fails_says_so():
    mine = tiny("qwen3", context=CONTEXT)
    engine = LocalEngine(mine, decode=text, num_slots=8)
    with torch.no_grad():
        mine.get_output_embeddings().weight.fill_(torch.nan)
    engine.load_weights(None, 1)
    with serving(engine) as (_, server), asking(server) as client:
        response = client.post("/v1/completions", json={"prompt": [3], "max_tokens": 3})
    assert response.status_code == 500
    assert "no token could be drawn" in response.json()["error"]["message"]


def test_what_is_over_is_refused():
    backend = EngineBackend(asynchronous(local()), max_model_len=CONTEXT)
    call = ModelCall("completions", PROMPT)
    with pytest.raises(Refused, match="served no more"):
        asyncio.run(backend.say(call))
    with backend:
        (answer,) = asyncio.run(backend.say(call))
        assert answer.record(call).output_ids == answer.ids
        backend.pause()
        with pytest.raises(Busy):
            asyncio.run(backend.say(call))
        backend.resume()
    with pytest.raises(Refused, match="served no more"):
        asyncio.run(backend.say(call))
    backend.close()
