"""Streams, clients that disconnect, and repeated requests."""

import asyncio
import json
import threading
import time

import httpx2
import openai
import pytest
from fakes.policy import Speaker, asking, message, served
from test_tool_use import CALL, TOOLS

from strop.serving.protocol import Busy
from strop.serving.replays import Attempt, Replays


def wait_for(condition) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def holding(server, speaker: Speaker) -> None:
    """From now on answers wait."""
    speaker.hold = asyncio.Event()


def let_go(server, speaker: Speaker) -> None:
    server._loop.call_soon_threadsafe(speaker.hold.set)


def client_of(server, **options) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=server.key, **options)


def test_a_stream_is_the_answer_in_events():
    with served(Speaker()) as server, client_of(server) as client:
        events = list(
            client.chat.completions.create(
                model="policy", messages=message(), stream=True, n=2, logprobs=True,
                stream_options={"include_usage": True}, extra_body={"return_token_ids": True},
            )
        )  # fmt: skip
        whole = client.chat.completions.create(
            model="policy", messages=message(), n=2, logprobs=True,
            extra_body={"return_token_ids": True},
        )  # fmt: skip
    assert events[0].choices[0].delta.role == "assistant"
    assert events[0].prompt_token_ids == whole.prompt_token_ids
    assert (events[-1].choices, events[-1].usage) == ([], whole.usage)
    for number, wanted in enumerate(whole.choices):
        mine = [e.choices[0] for e in events if e.choices and e.choices[0].index == number]
        assert "".join(e.delta.content or "" for e in mine) == wanted.message.content
        assert [e.finish_reason for e in mine] == [None, None, "stop"]
        assert mine[1].token_ids == wanted.token_ids
        assert mine[1].logprobs.model_dump() == wanted.logprobs.model_dump()
    assert len({event.id for event in events}) == 1


def test_a_stream_of_text_and_one_of_calls():
    with served(Speaker("ab", CALL)) as server, client_of(server) as client:
        pieces = list(client.completions.create(model="policy", prompt="x", stream=True))
        assert [(e.choices[0].text, e.choices[0].finish_reason) for e in pieces] == [
            ("ab", None), ("", "stop")
        ]  # fmt: skip
        events = list(
            client.chat.completions.create(
                model="policy", messages=message(), stream=True, tools=TOOLS
            )
        )
    (call,) = events[1].choices[0].delta.tool_calls
    assert (call.index, call.function.name) == (0, "add")
    assert events[-1].choices[0].finish_reason == "tool_calls"


def test_a_stream_that_waits_says_that_it_is_there(monkeypatch):
    monkeypatch.setattr("strop.serving.app.KEEP_ALIVE_SECONDS", 0.02)
    speaker = Speaker()
    with served(speaker) as server, asking(server) as client:
        holding(server, speaker)
        body = {"messages": message(), "stream": True}
        with client.stream("POST", "/v1/chat/completions", json=body) as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            lines = response.iter_lines()
            waits = [": the policy is at work", ""]
            assert [next(lines) for _ in range(4)] == [*waits, *waits]
            let_go(server, speaker)
            rest = [line for line in lines if line.startswith("data: ")]
        assert rest[-1] == "data: [DONE]"
        assert json.loads(rest[0].removeprefix("data: "))["choices"][0]["delta"]["role"]
        speaker.hold = None
        speaker.fails = [Busy()]
        response = client.post("/v1/chat/completions", json=body)
        assert response.status_code == 429  # nothing was sent yet

        async def later(call):
            await asyncio.sleep(0.1)
            raise Busy

        speaker.say = later
        with client.stream("POST", "/v1/chat/completions", json=body) as response:
            lines = [line for line in response.iter_lines() if line.startswith("data: ")]
        assert json.loads(lines[0].removeprefix("data: "))["error"]["code"] == "rate_limit_exceeded"
        assert len(lines) == 1


@pytest.mark.parametrize(("stream", "seconds"), [(False, 10), (True, 10), (True, 0.05)])
def test_a_client_that_goes_away_ends_the_draw(stream, seconds, monkeypatch, capfd):
    monkeypatch.setattr("strop.serving.app.KEEP_ALIVE_SECONDS", seconds)
    speaker = Speaker()
    with served(speaker) as server, asking(server) as client:
        holding(server, speaker)
        body = {"messages": message(), "stream": stream}
        if seconds < 1:
            with client.stream("POST", "/v1/chat/completions", json=body) as response:
                next(response.iter_lines())
        else:
            with pytest.raises(httpx2.TimeoutException):
                client.post("/v1/chat/completions", json=body, timeout=0.2)
        wait_for(lambda: speaker.cancelled == 1)
        assert not server.service.replays.running
    assert capfd.readouterr() == ("", "")


def test_a_server_that_ends_answers_those_who_wait():
    speaker = Speaker()
    said = []
    with served(speaker) as server:
        holding(server, speaker)

        def ask(stream):
            with asking(server) as client:
                body = {"prompt": "x", "stream": stream}
                said.append(client.post("/v1/completions", json=body))

        threads = [threading.Thread(target=ask, args=(n == 0,)) for n in range(3)]
        for thread in threads:
            thread.start()
        wait_for(lambda: len(speaker.calls) == 3)
        began = time.monotonic()
    assert time.monotonic() - began < 5
    for thread in threads:
        thread.join(30)
    assert [(each.status_code, "the server ends" in each.text) for each in said] == [
        (503, True)
    ] * 3
    assert speaker.cancelled == 3
    assert "strop-serving" not in {thread.name for thread in threading.enumerate()}
    server.close()  # once more does nothing


def test_a_named_request_is_drawn_once():
    speaker = Speaker("a", "b", "c")
    with served(speaker) as server, asking(server) as client:

        def ask(name: str, prompt: str = "x"):
            told = {"idempotency-key": name}
            return client.post("/v1/completions", json={"prompt": prompt}, headers=told)

        first, again = ask("one"), ask("one")
        assert first.json()["choices"] == again.json()["choices"]
        assert first.json()["id"] == again.json()["id"]
        assert "idempotent-replayed" not in first.headers
        assert again.headers["idempotent-replayed"] == "true"
        assert ask("two").json()["choices"][0]["text"] == "b"
        other = ask("one", "y")
        assert (other.status_code, other.json()["error"]["code"]) == (409, "idempotency_key_reused")
        assert len(speaker.calls) == 2
        speaker.fails = [Busy()]
        assert ask("three").status_code == 429
        assert ask("three").status_code == 200  # a refusal is no answer
        # another client's key, and another route, are other requests
        with asking(server) as stranger:
            body = {"messages": message()}
            named = {"idempotency-key": "one"}
            stranger.post("/v1/chat/completions", json=body, headers=named)
        assert len(speaker.calls) == 5


def test_a_retry_gets_the_answer_that_was_lost():
    speaker = Speaker("a", "b", "c", "d")
    with served(speaker) as server, asking(server) as client:

        def ask(again: int, prompt: str = "x") -> str:
            told = {"x-stainless-retry-count": str(again)}
            response = client.post("/v1/completions", json={"prompt": prompt}, headers=told)
            return (
                response.json()["choices"][0]["text"]
                if response.is_success
                else str(response.status_code)
            )

        assert [ask(0), ask(0)] == ["a", "b"]  # equal requests are two
        assert [ask(1), ask(2)] == ["b", "b"]
        assert ask(1, "never asked") == "c"
        # One of two equal requests was refused: its retry is drawn, and is not the other's answer.
        speaker.fails = [None, Busy()]
        assert [ask(0), ask(0), ask(1)] == ["d", "429", "b"]
        # The retry after a refusal was drawn; a further retry lost that answer, and gets it.
        speaker.fails = [Busy()]
        assert [ask(0, "y"), ask(1, "y"), ask(2, "y")] == ["429", "d", "d"]
        assert len(speaker.calls) == 8


def test_openais_client_retries_by_itself():
    speaker = Speaker()
    speaker.fails = [Busy(0.1)]
    with served(speaker) as server, client_of(server, max_retries=2) as client:
        found = client.chat.completions.create(model="policy", messages=message())
    assert found.choices[0].message.content == "ab"
    assert len(speaker.calls) == 2


def test_a_request_that_comes_again_while_it_is_drawn_waits_for_the_same_answer():
    async def main():
        drawn, replays, hold = [], Replays(), asyncio.Event()

        async def draw():
            drawn.append(1)
            await hold.wait()
            return "answer"

        attempt = Attempt("key", "chat", b"{}", "name")
        first, second = (asyncio.create_task(replays.answer(attempt, draw)) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()  # its connection broke, and the other waits on
        await asyncio.sleep(0)
        hold.set()
        assert await second == ("answer", True)
        assert (len(drawn), replays.running) == (1, set())

        hold.clear()
        alone = asyncio.create_task(replays.answer(Attempt("key", "chat", b"2", "other"), draw))
        await asyncio.sleep(0)
        alone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await alone
        assert replays.running == set()
        assert len(replays.held) == 1

    asyncio.run(main())


def test_the_store_is_bounded():
    async def main():
        replays = Replays(size=lambda answer: answer, most=3, most_tokens=10)

        async def draw():
            return 1

        for number in range(9):
            await replays.answer(Attempt("key", "chat", b"", str(number)), draw)
        assert len(replays.held) == 3
        assert (await replays.answer(Attempt("key", "chat", b"", "8"), draw))[1]
        assert not (await replays.answer(Attempt("key", "chat", b"", "0"), draw))[1]
        assert (len(replays.held), replays.tokens) == (3, 3)

        async def long():
            return 9

        await replays.answer(Attempt("key", "chat", b"", "long"), long)
        assert (len(replays.held), replays.tokens) == (2, 10)
        await replays.answer(Attempt("key", "chat", b"", "longer"), long)
        assert (len(replays.held), replays.tokens) == (1, 9)

    asyncio.run(main())
