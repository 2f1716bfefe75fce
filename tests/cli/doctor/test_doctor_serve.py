"""`strop doctor --serve`: the abilities of an endpoint, found from its answers."""

import json
from typing import Any

import pytest
from commands import Strop
from fakes.loopback import Asked, loopback
from fakes.policy import Speaker, served

import strop as package

MODELS = {"data": [{"id": "mine", "max_model_len": 100}]}
TEXT = {"choices": [{"message": {"content": "2"}, "text": "2"}]}


def looked_at(strop: Strop, answer: Any, code: int = 0) -> dict[str, Any]:
    """What it says of an endpoint: answer maps (path, body) to a status and an object."""

    def reply(asked: Asked):
        status, said = answer(asked.path, json.loads(asked.body or "null"))
        return status, said if isinstance(said, str) else json.dumps(said), {}

    with loopback(reply) as server:
        found = strop("doctor", "--serve", f"{server.url}/v1/", "--json")
    assert found.code == code, found
    return json.loads(found.out)


def by_question(told: dict[str, Any], word: str) -> dict[str, Any]:
    (found,) = [each for each in told["findings"] if word in each["question"]]
    return found


def test_our_own_server_gives_all(strop: Strop, monkeypatch: pytest.MonkeyPatch):
    with served(Speaker()) as server:
        monkeypatch.setenv("OPENAI_API_KEY", server.key)
        found = strop("doctor", "--serve", server.url, "--json")
        told = json.loads(found.out)
        assert (found.code, {each["status"] for each in told["findings"]}) == (0, {"ok"})
        assert told["endpoint"]["models"] == {"policy": 500}
        assert set(told["endpoint"]["gives"].values()) == {"tokens with log-probabilities"}
        assert len(told["endpoint"]["gives"]) == 3
        assert server.key not in found.out
        shown = strop("doctor", "--serve", server.url)
        assert "policy: context 500 tokens" in shown.out
        assert package.doctor(serve=server.url).problems == ()
        monkeypatch.setenv("OPENAI_API_KEY", "wrong")
        shown = strop("doctor", "--serve", server.url)
        assert (shown.code, "set OPENAI_API_KEY to its key" in shown.out) == (1, True)


def test_text_alone_never_trains(strop: Strop):
    def answer(path: str, body: Any):
        if path == "/v1/models":
            return 200, {"data": [{"id": "mine"}, {"id": "other"}]}
        return (404, "no") if path.startswith("/inference") else (200, TEXT)

    told = looked_at(strop, answer)
    assert by_question(told, "which model")["status"] == "note"
    assert "other" in by_question(told, "which model")["answer"]
    assert "never training" in by_question(told, "trained on")["answer"]
    assert "/inference/v1/generate (HTTP 404" in by_question(told, "routes")["answer"]
    assert by_question(told, "that it read")["status"] == "note"
    assert by_question(told, "which weights")["status"] == "note"


def test_fields_that_an_endpoint_refuses_are_left_out(strop: Strop):
    """OpenAI's own refuses return_token_ids, and is found to give text."""

    def answer(path: str, body: Any):
        if path == "/v1/models":
            return 200, MODELS
        if path.startswith("/inference") or "return_token_ids" in body:
            return 400, {"error": {"message": "Unrecognized request argument"}}
        return 200, TEXT

    told = looked_at(strop, answer)
    assert set(told["endpoint"]["gives"].values()) == {"text"}
    assert by_question(told, "seed")["status"] == "ok"


@pytest.mark.parametrize(
    ("choice", "level"),
    [
        ({"token_ids": [1, 2]}, "tokens"),
        ({"token_ids": [1], "logprobs": {"content": [{"logprob": -9999.0}]}}, "tokens"),
        ({"token_ids": [1, 2], "logprobs": {"token_logprobs": [-1.0]}}, "tokens"),
        ({"token_ids": [1], "logprobs": {"token_logprobs": [None]}}, "tokens"),
        ({"token_ids": [1], "logprobs": {"content": 3}}, "tokens"),
        ({"token_ids": 5}, "text"),
        ({"token_ids": [1], "logprobs": {"content": [{"logprob": -1.0}]}},
         "tokens with log-probabilities"),
    ],
)  # fmt: skip
def test_what_an_answer_is_good_for(strop: Strop, choice: dict[str, Any], level: str):
    def answer(path: str, body: Any):
        return 200, MODELS if path == "/v1/models" else {"choices": [choice]}

    told = looked_at(strop, answer)
    assert set(told["endpoint"]["gives"].values()) == {level}
    ok = "ok" if level.endswith("probabilities") else "note"
    assert by_question(told, "trained on")["status"] == ok


def test_an_endpoint_that_draws_anew_for_a_seed(strop: Strop):
    count = iter(range(100))

    def answer(path: str, body: Any):
        said = {"choices": [{"text": str(next(count))}]}
        return 200, MODELS if path == "/v1/models" else said

    assert by_question(looked_at(strop, answer), "seed")["status"] == "note"


@pytest.mark.parametrize(
    "message", [(500, "broken"), (200, "{"), (200, {"data": 3}), (200, {"data": []}), (200, [])]
)
def test_what_is_no_server_of_models(strop: Strop, message: Any):
    told = looked_at(strop, lambda path, body: message, code=1)
    assert [each["status"] for each in told["findings"]] == ["problem"]


def test_no_route_works(strop: Strop):
    def answer(path: str, body: Any):
        return (200, MODELS) if path == "/v1/models" else (200, {"choices": []})

    told = looked_at(strop, answer, code=1)
    assert by_question(told, "routes")["status"] == "problem"


def test_mistakes(strop: Strop):
    found = strop("doctor", "--serve", "localhost:8000")
    assert (found.code, "is not an address" in found.err) == (2, True)
    found = strop("doctor", "--serve", "http://127.0.0.1:9", "--model", "tiny")
    assert (found.code, "leave the other options out" in found.err) == (2, True)
    with pytest.raises(package.UserError, match="leave the other arguments out"):
        package.doctor(serve="http://127.0.0.1:9", model="tiny")
    found = strop("doctor", "--serve", "http://127.0.0.1:9")
    assert (found.code, "Connection refused" in found.out) == (1, True)
