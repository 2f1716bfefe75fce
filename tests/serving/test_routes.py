"""Each route has the fields that proxies and trainers read, and refuses what it cannot do."""

import json
from socket import IPPROTO_TCP, TCP_NODELAY

import httpx2
import openai
import pytest
from every import every
from fakes.policy import CONTEXT, Speaker, asking, by_bytes, message, served

from strop.data.chat import Chat
from strop.serving.protocol import Busy, Refused
from strop.support.errors import UserError
from strop.traces.records import TurnRecord

END = by_bytes().eos_token_id


def ids(text: str) -> list[int]:
    return by_bytes()(text)["input_ids"]


@pytest.fixture(scope="module")
def speaker():
    return Speaker()


@pytest.fixture(scope="module")
def server(speaker):
    with served(speaker) as server:
        yield server


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=server.key, max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def plain(server):
    with asking(server) as client:
        yield client


def test_models_tell_their_context(client):
    (model,) = client.models.list().data
    assert client.models.retrieve(model.id) == model
    with pytest.raises(openai.NotFoundError, match="there is no model 'other' here"):
        client.models.retrieve("other")
    assert (model.id, model.max_model_len) == ("policy", CONTEXT)


def test_an_answer_in_chat(client, speaker):
    raw = client.chat.completions.with_raw_response.create(
        model="policy", messages=message(), n=2, seed=5, temperature=0.5, max_tokens=9, stop="x",
        logprobs=True, top_logprobs=0, extra_body={"return_token_ids": True, "top_k": 3},
    )  # fmt: skip
    found = raw.parse()
    call = speaker.calls[-1]
    prompt = ids("user: hi\nassistant:")
    assert (call.route, call.prompt_ids, call.num, call.seed) == ("chat", tuple(prompt), 2, 5)
    assert (call.temperature, call.max_tokens, call.top_k) == (0.5, 9, 3)
    assert (call.stop_strings, call.messages) == (("x",), tuple(message()))
    assert found.prompt_token_ids == prompt
    first, second = found.choices
    assert (first.message.role, first.message.content) == ("assistant", "ab")
    assert first.token_ids == [*ids("ab"), END]
    assert [each.token for each in first.logprobs.content] == ["a", "b", "<end>"]
    assert [each.logprob for each in second.logprobs.content] == [-1.5, -1.625, -1.75]
    assert [each.top_logprobs for each in first.logprobs.content] == [[], [], []]
    assert first.finish_reason == "stop"
    assert (first.token_versions, second.token_versions) == ([3, 3, 4], [4, 4, 5])
    assert (found.weights_version, raw.headers["x-weights-version"]) == (5, "5")
    assert (found.usage.prompt_tokens, found.usage.completion_tokens) == (len(prompt), 6)
    assert found.usage.total_tokens == len(prompt) + 6


def test_a_part_of_a_character_has_no_bytes_and_a_hidden_token_no_place_in_the_text():
    with served(Speaker("aé", "a<end>b")) as server, asking(server) as client:
        asked = {"messages": message(), "logprobs": True, "return_tokens_as_token_ids": True}
        said = client.post("/v1/chat/completions", json=asked).json()
        written = [each["bytes"] for each in said["choices"][0]["logprobs"]["content"]]
        assert written == [[97], None, None, [*b"<end>"]]
        for shows, places in ((False, [0, 1, 6, 7]), (True, [0, 1, 1, 2])):
            asked = {"prompt": "x", "logprobs": 0, "skip_special_tokens": shows}
            said = client.post("/v1/completions", json=asked).json()
            text = "ab" if shows else "a<end>b<end>"
            assert said["choices"][0]["text"] == text
            assert said["choices"][0]["logprobs"]["text_offset"] == places
            client.post("/v1/completions", json={"prompt": "x"})  # which says the other text


def test_what_was_not_asked_for_is_not_told(client):
    found = client.chat.completions.create(model="policy", messages=message())
    assert not hasattr(found, "prompt_token_ids")
    assert not hasattr(found.choices[0], "token_ids")
    assert found.choices[0].logprobs is None


def test_text_and_ids_are_continued(client, speaker):
    told = {"return_token_ids": True}
    found = client.completions.create(model="policy", prompt="hé", extra_body=told)
    assert speaker.calls[-1].prompt_ids == tuple(ids("hé"))
    assert speaker.calls[-1].max_tokens is None
    assert found.choices[0].prompt_token_ids == ids("hé")
    found = client.completions.create(
        model="policy", prompt=[5, 6], logprobs=0, extra_body={**told, "stop_token_ids": [9]}
    )
    assert (speaker.calls[-1].prompt_ids, speaker.calls[-1].stop_ids) == ((5, 6), (9,))
    (choice,) = found.choices
    assert (choice.text, choice.token_ids) == ("ab", [*ids("ab"), END])
    assert choice.logprobs.tokens == ["a", "b", "<end>"]
    assert choice.logprobs.token_logprobs == [-0.5, -0.625, -0.75]
    assert (choice.logprobs.text_offset, choice.logprobs.top_logprobs) == ([0, 1, 2], None)
    (choice,) = client.completions.create(model="policy", prompt="x", logprobs=2).choices
    assert choice.logprobs.top_logprobs is None  # this policy does not report the likeliest


def test_tokens_are_generated_as_trainers_ask_for_them(plain, speaker):
    response = plain.post(
        "/inference/v1/generate",
        json={
            "model": "policy", "token_ids": [7, 8], "cache_salt": "4",
            "sampling_params": {"max_tokens": 4, "temperature": 1.0, "top_p": 1.0, "top_k": -1,
                                "min_p": 0.0, "repetition_penalty": 1.0, "logprobs": 1,
                                "stop_token_ids": [END], "skip_special_tokens": False},
        },
    )  # fmt: skip
    body = response.json()
    assert body["request_id"] == speaker.calls[-1].id
    (choice,) = body["choices"]
    assert (choice["token_ids"], choice["finish_reason"]) == ([*ids("ab"), END], "stop")
    told = [(each["token"], each["logprob"]) for each in choice["logprobs"]["content"]]
    assert told == [
        (f"token_id:{id}", p)
        for id, p in zip(choice["token_ids"], (-0.5, -0.625, -0.75), strict=True)
    ]
    assert response.headers["x-weights-version"] == "4"
    assert speaker.calls[-1].stop_ids == (END,)


def test_neutral_and_harmless_fields_are_taken(plain, speaker):
    body = {
        "messages": message(), "user": "u", "metadata": {"a": "b"}, "store": False,
        "logit_bias": {},
        "presence_penalty": 0, "frequency_penalty": 0.0, "repetition_penalty": 1, "best_of": 1,
        "response_format": {"type": "text"}, "tool_choice": "none", "ignore_eos": False,
        "max_completion_tokens": 7, "max_tokens": 8, "top_k": 0,
    }  # fmt: skip
    assert plain.post("/v1/chat/completions", json=body).status_code == 200
    assert (speaker.calls[-1].max_tokens, speaker.calls[-1].top_k) == (7, -1)


REFUSED = {
    "logit_bias": ({"logit_bias": {"5": 3}}, "logit_bias is not applied", "unsupported_parameter"),
    "presence_penalty": ({"presence_penalty": 0.1}, "presence_penalty is not applied", None),
    "ignore_eos": ({"ignore_eos": 1}, "ignore_eos is not applied", None),
    "response_format": ({"response_format": {"type": "json_object"}}, "response_format", None),
    "tool_choice": ({"tool_choice": "required"}, "tool_choice is 'required'", None),
    "a slip": ({"temprature": 1}, "did you mean temperature", "unknown_parameter"),
    "temperature": ({"temperature": -1}, "temperature is -1: give a number from 0", None),
    "temperature that is none": ({"temperature": "hot"}, "give a number", None),
    "temperature not finite": ({"temperature": float("nan")}, "give a number from 0", None),
    "top_p": ({"top_p": 0}, "a number above 0", None),
    "n": ({"n": 0}, "n is 0: give a whole number from 1 to 1024", None),
    "n that is true": ({"n": True}, "n is True", None),
    "max_tokens": ({"max_tokens": 0}, "max_tokens is 0", None),
    "stop": ({"stop": ["a", ""]}, "a text that is not empty", None),
    "seed": ({"seed": 2**63 + 1}, "seed is", None),
    "seed of 70 bits": ({"seed": 2**70}, "71 bits", None),
    "top_logprobs alone": ({"top_logprobs": 3}, "top_logprobs needs logprobs", None),
    "too many top_logprobs": ({"logprobs": True, "top_logprobs": 21}, "from 0 to 20", None),
    "no model": ({"model": "gpt"}, "it is called policy", "model_not_found"),
    "no messages": ({"messages": []}, "at least one message", None),
    "a role": ({"messages": [{"role": "boss", "content": "x"}]}, "messages[0].role", None),
    "a picture": (
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        "messages[0].content has a part of type 'image_url'", None,
    ),
    "no content": ({"messages": [{"role": "user"}]}, "messages[0].content", None),
    "half a pair": ({"messages": message("\ud800")}, "not Unicode", None),
    "too long": ({"messages": message("x" * CONTEXT)}, "500 tokens", "context_length_exceeded"),
    "no room": ({"max_tokens": CONTEXT}, "asks for 500 more", "context_length_exceeded"),
    "unread by the template": ({"chat_template_kwargs": {"thinking": True}}, "reads no", None),
    "tools beside their field": (
        {"chat_template_kwargs": {"tools": [{}]}}, "tools are a field of their own", None
    ),
    "what strop sets": (
        {"chat_template_kwargs": {"tokenize": False}}, "is set by strop itself", None
    ),
    "stop_token_ids": ({"stop_token_ids": [-1]}, "token ids", None),
    "stream_options": ({"stream_options": {"include_usages": True}}, "stream_options.inc", None),
}  # fmt: skip


@every("case", REFUSED)
def test_what_cannot_be_done_is_refused_by_name(case, plain, speaker):
    fields, words, code = REFUSED[case]
    before = len(speaker.calls)
    content = json.dumps({"model": "policy", "messages": message(), **fields})
    response = plain.post("/v1/chat/completions", content=content)
    error = response.json()["error"]
    assert response.status_code == (404 if code == "model_not_found" else 400)
    assert error["type"] == (
        "not_found_error" if response.status_code == 404 else "invalid_request_error"
    )
    assert words in error["message"]
    assert code in (None, error["code"])
    assert len(speaker.calls) == before


def test_bodies_that_are_none(plain):
    for content, words in (("{", "not JSON"), ("[" * 100_000, "not JSON"), ("3", "object")):
        response = plain.post("/v1/completions", content=content)
        assert (response.status_code, words in response.json()["error"]["message"]) == (400, True)
    for prompt in ("", [], None, [-1], [1.5], {"a": 1}, ["a", "b"], [[1], [2]]):
        response = plain.post("/v1/completions", json={"prompt": prompt})
        assert response.status_code == 400, prompt
        assert "prompt" in response.json()["error"]["message"]
    response = plain.post("/inference/v1/generate", json={"token_ids": [1], "stream": True})
    assert response.json()["error"]["param"] == "stream"
    response = plain.post("/v1/completions", json={"prompt": "x", "logit_bias": 5})
    assert response.json()["error"]["param"] == "logit_bias"


def test_a_body_may_be_too_large(plain, monkeypatch):
    monkeypatch.setattr("strop.serving.app.MOST_BYTES", 10)
    assert plain.post("/v1/completions", json={"prompt": "x" * 20}).status_code == 413


def test_keys_and_paths(server, plain):
    with httpx2.Client(base_url=server.url) as stranger:
        assert stranger.get("/health").json() == {"status": "ok"}
        for headers in ({}, {"authorization": "Bearer no"}, {"authorization": server.key},
                        {"authorization": "Bearer é".encode()}):  # fmt: skip
            for method, path in (
                ("GET", "/v1/models"), ("POST", "/v1/completions"),
                ("POST", "/v1/chat/completions"), ("POST", "/inference/v1/generate"),
            ):  # fmt: skip
                response = stranger.request(method, path, headers=headers)
                assert response.status_code == 401
                assert response.json()["error"]["code"] == "invalid_api_key"
    nowhere = plain.post("/v1/nothing").json()["error"]
    assert nowhere["type"] == "not_found_error"
    assert "there are /health, /v1/models, /v1/chat/completions, /v1/com" in nowhere["message"]
    assert plain.get("/v1/completions").status_code == 405
    wrong = openai.OpenAI(base_url=f"{server.url}/v1", api_key="wrong")
    with (
        wrong,
        pytest.raises(
            openai.AuthenticationError, match="an agent of a run finds as OPENAI_API_KEY"
        ),
    ):
        wrong.models.list()


def test_further_keys_are_known_by_a_call():
    speaker = Speaker()
    with served(speaker, key="ours", keys=lambda key: key.startswith("rollout-")) as server:
        assert server.key == "ours"
        for key, status in (("rollout-7", 200), ("ours", 200), ("other", 401)):
            with asking(server, authorization=f"Bearer {key}") as client:
                response = client.post("/v1/completions", json={"prompt": "x"})
                assert response.status_code == status
    assert [call.key for call in speaker.calls] == ["rollout-7", "ours"]
    assert "rollout-7" not in repr(speaker.calls)


def test_a_key_must_fit_into_a_header():
    with pytest.raises(UserError, match="printable ASCII"), served(Speaker(), key="a b"):
        pass


def test_errors_of_the_policy(capfd):
    speaker = Speaker()
    fails = (
        (Busy(2.2), 429, "takes new weights", "rate_limit_error"),
        (Refused(418, "no tea", "tea", "pot"), 418, "no tea", "invalid_request_error"),
        (UserError("a mistake"), 400, "a mistake", "invalid_request_error"),
        (ZeroDivisionError("secret words"), 500, "its server says why", "server_error"),
    )
    with served(speaker) as server, asking(server) as client:
        for error, status, words, kind in fails:
            for stream in (False, True):
                speaker.fails = [error]
                result = client.post("/v1/completions", json={"prompt": "x", "stream": stream})
                assert result.status_code == status
                told = result.json()["error"]
                assert words in told["message"]
                assert told["type"] == kind
                assert result.headers.get("retry-after") == ("3" if status == 429 else None)
        assert (told["param"], told["code"]) == (None, "internal_error")
    result = capfd.readouterr()
    assert result.out == ""
    assert result.err.count("ZeroDivisionError: secret words") == 2
    assert server.key not in result.err


def test_a_number_that_json_does_not_have_is_a_fault_of_the_policy(capfd):
    speaker = Speaker()
    speaker.columns = {"log_probs": (-1.0, float("nan"), -1.0)}
    with served(speaker) as server, asking(server) as client:
        response = client.post("/v1/completions", json={"prompt": "x", "logprobs": 0})
        assert (response.status_code, response.json()["error"]["code"]) == (500, "internal_error")
        body = {"prompt": "x", "logprobs": 0, "stream": True}
        response = client.post("/v1/completions", json=body)
        assert '"code":"internal_error"' in response.text
        assert "[DONE]" not in response.text
    assert capfd.readouterr().err.count("ValueError") == 2


def test_keys_that_cannot_be_looked_up_are_a_fault_of_ours(capfd):
    def broken(key):
        raise ZeroDivisionError

    with (
        served(Speaker(), keys=broken) as server,
        asking(server, authorization="Bearer x") as client,
    ):
        assert client.get("/v1/models").json()["error"]["code"] == "internal_error"
    assert "ZeroDivisionError" in capfd.readouterr().err


def test_a_template_that_fails_on_messages():
    broken = "{% for each in messages %}{{ each.content.nothing.more }}{% endfor %}"
    failing = "{% for each in messages %}{{ 1 // (each.content | length) }}{% endfor %}"
    for template in (broken, failing):
        with served(Speaker(), template=template) as server, asking(server) as client:
            response = client.post("/v1/chat/completions", json={"messages": message("")})
            assert response.status_code == 400
            assert "the chat template" in response.json()["error"]["message"]


def test_a_policy_without_log_probabilities_says_so():
    speaker = Speaker()
    speaker.columns = {"log_probs": (), "versions": ()}
    with served(speaker) as server, asking(server) as client:
        response = client.post("/v1/completions", json={"prompt": "x", "logprobs": 0})
        assert (response.status_code, "log-probabilities" in response.text) == (400, True)
        response = client.post("/v1/completions", json={"prompt": "x", "return_token_ids": True})
        assert response.json()["weights_version"] is None
        assert "x-weights-version" not in response.headers
        assert response.json()["choices"][0]["token_versions"] is None


def test_greedy_answers_tell_the_models_log_probabilities():
    speaker = Speaker()
    speaker.columns = {"log_probs": (0.0,) * 3, "model_log_probs": (-0.1, -0.2, -0.3)}
    with served(speaker) as server, asking(server) as client:
        for temperature, told in ((0, [-0.1, -0.2, -0.3]), (1, [0, 0, 0])):
            body = {"prompt": "x", "logprobs": 0, "temperature": temperature}
            said = client.post("/v1/completions", json=body).json()
            assert said["choices"][0]["logprobs"]["token_logprobs"] == told


def test_text_ends_before_the_stop_string_and_ids_do_not():
    with served(Speaker("one two")) as server, asking(server) as client:
        body = {"prompt": "x", "stop": ["zz", " t"], "return_token_ids": True}
        (choice,) = client.post("/v1/completions", json=body).json()["choices"]
        assert (choice["text"], choice["token_ids"]) == ("one", [*ids("one two"), END])


def test_special_tokens_are_in_the_text_where_they_are_wanted():
    with served(Speaker()) as server, asking(server) as client:
        for skip, text in ((False, "ab<end>"), (True, "ab")):
            body = {"prompt": "x", "skip_special_tokens": skip}
            assert client.post("/v1/completions", json=body).json()["choices"][0]["text"] == text


def test_prompts_are_those_of_the_run():
    speaker = Speaker()
    chat = Chat(system_prompt="be", template={"enable_thinking": True})
    with served(speaker, chat) as server, asking(server) as client:
        for more in ({}, {"chat_template_kwargs": {"enable_thinking": False}}):
            client.post("/v1/chat/completions", json={"messages": message(), **more})
    texts = [by_bytes().decode(call.prompt_ids) for call in speaker.calls]
    assert texts[0] == "system: be\nuser: hi\nassistant:<think>"
    assert texts[1] == "system: be\nuser: hi\nassistant:"


def test_content_in_parts_is_text():
    speaker = Speaker()
    parts = [{"type": "text", "text": "a"}, {"type": "refusal", "refusal": "b"}]
    with served(speaker) as server, asking(server) as client:
        client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": parts}]})
    assert by_bytes().decode(speaker.calls[0].prompt_ids) == "user: ab\nassistant:"


def test_models_without_a_chat_template():
    two = [*message("a"), {"role": "assistant", "content": "b"}, *message("c")]
    speaker = Speaker()
    with served(speaker, template="") as server, asking(server) as client:
        assert client.post("/v1/chat/completions", json={"messages": message()}).status_code == 200
        assert speaker.calls[-1].prompt_ids == tuple(ids("hi"))
        for body in ({"messages": two}, {"messages": message(), "tools": [{"type": "function"}]},
                     {"messages": message(), "chat_template_kwargs": {"a": 1}}):  # fmt: skip
            response = client.post("/v1/chat/completions", json=body)
            assert response.status_code == 400
            assert "model.chat_template=FILE" in response.json()["error"]["message"]
            assert "/v1/completions" in response.json()["error"]["message"]
    with served(speaker, Chat(prompt_as="text"), template="") as server, asking(server) as client:
        client.post("/v1/chat/completions", json={"messages": two})
        assert speaker.calls[-1].prompt_ids == tuple(ids("abc"))


def test_an_answer_is_a_turn_record():
    speaker = Speaker()
    with served(speaker) as server, asking(server) as client:
        client.post("/v1/completions", json={"prompt": "x"})
    (call,) = speaker.calls
    record = speaker.answer("ab", 0).record(call)
    wanted = TurnRecord(
        tuple(ids("x")), (*ids("ab"), END), (-0.5, -0.625, -0.75), versions=(3, 3, 4)
    )
    assert record == wanted


def test_a_port_that_is_taken(server):
    taken = f"port {server.port} of 127.0.0.1 cannot be used"
    with pytest.raises(UserError, match=taken), served(Speaker(), port=server.port):
        raise AssertionError("it is served twice")


def test_parts_of_an_answer_wait_for_no_acknowledgement(server, plain):
    """Else each answer on an open connection takes 40 ms longer."""
    plain.get("/health")
    connections = [*server._server.server_state.connections]
    assert connections
    for each in connections:
        assert each.transport.get_extra_info("socket").getsockopt(IPPROTO_TCP, TCP_NODELAY)
