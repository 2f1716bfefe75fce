"""OpenAI's Responses and Anthropic's Messages are other forms of the same chat call."""

import json
from typing import Any

import anthropic
import httpx2
import openai
import pytest
from fakes.policy import Speaker, asking, by_bytes, message, served
from test_tool_use import CALL, TOOLS, said_to

from strop.serving.protocol import Busy

SCHEMA = {"type": "object"}
FLAT = [{"type": "function", "name": "add", "parameters": SCHEMA}]
CUSTOM = [{"name": "add", "input_schema": SCHEMA}]
RESPONSE = {"model": "policy", "input": "hi"}
MESSAGE = {"model": "policy", "max_tokens": 9, "messages": message()}


def openai_of(server: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=server.key, max_retries=0)


def anthropic_of(server: Any, **more: Any) -> anthropic.Anthropic:
    given = {"api_key": server.key, **more}
    return anthropic.Anthropic(base_url=server.url, max_retries=0, **given)


def in_chat(server: Any) -> None:
    """A conversation with two calls of a tool."""
    with openai_of(server) as client:
        asked: Any = {"model": "policy", "tools": TOOLS}
        told: Any = [{"role": "system", "content": "Be brief."}, *message()]
        answer = client.chat.completions.create(messages=told, **asked).choices[0].message
        told.append(answer.model_dump(exclude_none=True))
        for each, result in zip(answer.tool_calls or [], "78", strict=True):
            told.append({"role": "tool", "tool_call_id": each.id, "content": result})
        told.append({"role": "user", "content": "So?"})
        client.chat.completions.create(messages=told, **asked)


def in_responses(server: Any) -> None:
    """The same."""
    with openai_of(server) as client:
        asked: Any = {"model": "policy", "tools": FLAT, "instructions": "Be brief."}
        told: Any = [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}]
        answer = client.responses.create(input=told, **asked)
        assert (answer.status, answer.output_text) == ("completed", "I add.")
        calls = [each for each in answer.output if each.type == "function_call"]
        assert [(c.name, json.loads(c.arguments)) for c in calls] == [("add", {"x": "é"})] * 2
        told += [each.model_dump(exclude_none=True) for each in answer.output]
        for each, result in zip(calls, "78", strict=True):
            told.append({"type": "function_call_output", "call_id": each.call_id, "output": result})
        told.append({"role": "user", "content": "So?"})
        client.responses.create(input=told, **asked)


def in_messages(server: Any) -> None:
    """The same."""
    with anthropic_of(server) as client:
        asked: Any = {"model": "policy", "max_tokens": 99, "tools": CUSTOM,
                      "system": [{"type": "text", "text": "Be brief."}]}  # fmt: skip
        told: Any = message()
        answer = client.messages.create(messages=told, **asked)
        said, *calls = answer.content
        assert (answer.stop_reason, said.text) == ("tool_use", "I add.")
        assert [(each.name, each.input) for each in calls] == [("add", {"x": "é"})] * 2
        told.append({"role": "assistant", "content": answer.content})
        results: Any = [
            {"type": "tool_result", "tool_use_id": each.id, "content": result}
            for each, result in zip(calls, "78", strict=True)
        ]
        told.append({"role": "user", "content": [*results, {"type": "text", "text": "So?"}]})
        last = client.messages.create(messages=told, **asked)
        del asked["max_tokens"]
        counted = client.messages.count_tokens(messages=told, **asked)
        assert counted.input_tokens == last.usage.input_tokens


def test_a_conversation_with_tools_is_the_same_in_every_form() -> None:
    prompts = []
    for talk in (in_chat, in_responses, in_messages):
        speaker = Speaker(f"I add.\n{CALL}\n{CALL}", "15")
        with served(speaker) as server:
            talk(server)
        prompts.append([said_to(speaker, place) for place in (0, 1)])
    assert prompts[0] == prompts[1] == prompts[2]
    assert prompts[0][1].endswith("I add.<add é><add é>\ntool: 7\ntool: 8\nuser: So?\nassistant:")


def test_the_fields_of_a_call() -> None:
    speaker = Speaker()
    with served(speaker) as server, openai_of(server) as one, anthropic_of(server) as other:
        more: Any = {"temperature": 0.5, "top_p": 0.25, "extra_body": {"seed": 3}}
        answer = one.responses.create(model="policy", input="hi", max_output_tokens=9, **more)
        assert (answer.output_text, answer.status, answer.usage.total_tokens) == (
            "ab", "completed", len(speaker.calls[-1].prompt_ids) + 3
        )  # fmt: skip
        sampling = {"temperature": 0.5, "top_p": 0.25, "top_k": 4, "seed": 3}  # unknown to it
        other.messages.create(
            model="policy", messages=[{"role": "user", "content": "hi"}], max_tokens=9,
            stop_sequences=["x"], extra_body=sampling,
        )  # fmt: skip
    for call in speaker.calls:
        assert (call.route, call.temperature, call.top_p, call.seed, call.max_tokens) == (
            "chat", 0.5, 0.25, 3, 9
        )  # fmt: skip
    assert (call.top_k, call.stop_strings) == (4, ("x",))


@pytest.mark.parametrize("text", ["Well.", CALL, f"Well.\n{CALL}"])
def test_a_stream_adds_up_to_the_answer(text: str) -> None:
    with served(Speaker(text)) as server, openai_of(server) as one, anthropic_of(server) as other:
        ask: Any = {"model": "policy", "input": "hi", "tools": FLAT}
        with one.responses.stream(**ask) as stream:
            events = list(stream)
            found: Any = stream.get_final_response()
        whole: Any = one.responses.create(**ask)
        assert [event.sequence_number for event in events] == [*range(len(events))]
        for got, wanted in zip(found.output, whole.output, strict=True):
            got, wanted = got.model_dump(), wanted.model_dump()
            assert got.get("arguments") == wanted.get("arguments")
            assert [c["text"] for c in got.get("content") or []] == [
                c["text"] for c in wanted.get("content") or []
            ]
        assert (found.status, found.usage) == (whole.status, whole.usage)
        asked: Any = {"model": "policy", "max_tokens": 99, "messages": message(), "tools": CUSTOM}
        with other.messages.stream(**asked) as streamed:
            final = streamed.get_final_message()
        answer = other.messages.create(**asked)
        names = ("type", "text", "name", "input")
        assert [[getattr(b, n, None) for n in names] for b in final.content] == [
            [getattr(b, n, None) for n in names] for b in answer.content
        ]
        assert (final.stop_reason, final.usage.output_tokens) == (
            answer.stop_reason, answer.usage.output_tokens
        )  # fmt: skip


def test_why_an_answer_ended() -> None:
    class Cut(Speaker):
        def answer(self, text: str, number: int) -> Any:
            answer = super().answer(text, number)
            return type(answer)(answer.ids[:-1], ended="length")

    with served(Cut()) as server, openai_of(server) as one, anthropic_of(server) as other:
        answer = one.responses.create(model="policy", input="hi")
        assert (answer.status, answer.incomplete_details.reason) == (
            "incomplete", "max_output_tokens"
        )  # fmt: skip
        with one.responses.stream(model="policy", input="hi") as stream:
            assert [event.type for event in stream][-1] == "response.incomplete"
        cut = other.messages.create(model="policy", max_tokens=2, messages=message())
        assert cut.stop_reason == "max_tokens"
    with served(Speaker("a.b")) as server, anthropic_of(server) as other:
        ask: Any = {"model": "policy", "max_tokens": 9, "messages": message()}
        stopped = other.messages.create(stop_sequences=["z", "."], **ask)
        assert (stopped.content[0].text, stopped.stop_reason) == ("a", "stop_sequence")
        assert stopped.stop_sequence == "."
        ended = other.messages.create(stop_sequences=["z"], **ask)
        assert (ended.stop_reason, ended.stop_sequence) == ("end_turn", None)


def test_the_policy_reads_the_same_tool_in_every_form() -> None:
    """Their fields in one order, and a call's input whatever number the policy has written."""
    flat: Any = {"strict": True, "parameters": SCHEMA, "description": "Adds.", "name": "add"}
    call = {
        "type": "function_call",
        "call_id": "1",
        "name": "add",
        "arguments": f'{{"x": {2**70}}}',
    }
    told = [*message(), call, {"type": "function_call_output", "call_id": "1", "output": ""}]
    use = {"type": "tool_use", "id": "1", "name": "add", "input": {"x": 2**70}}
    result = {"type": "tool_result", "tool_use_id": "1"}
    turns = [*message(), {"role": "assistant", "content": [use]},
             {"role": "user", "content": [result]}]  # fmt: skip
    del flat["parameters"]
    custom = {"input_schema": SCHEMA, **flat, "cache_control": {"type": "ephemeral"}}
    asked = [
        ("responses", {"tools": [{**flat, "parameters": SCHEMA, "type": "function"}],
                       "input": told, "instructions": ""}),
        ("messages", {"tools": [custom], "messages": turns, "system": []}),
    ]  # fmt: skip
    tool = {"name": "add", "description": "Adds.", "parameters": SCHEMA, "strict": True}
    shown = json.dumps([{"type": "function", "function": tool}])
    speaker = Speaker()
    with served(speaker) as server, asking(server) as client:
        for path, body in asked:
            assert client.post(f"/v1/{path}", json=body).status_code == 200
            assert said_to(speaker) == (
                f"{shown}\nuser: hi\nassistant: <add {2**70}>\ntool: \nassistant:"
            )


ROLES = (
    "{% for each in messages if each.role in ('system', 'user') %}{{ each.role }}: "
    "{{ each.content }}\n{% endfor %}"
)


def test_instructions_reach_a_template_that_would_leave_them_out() -> None:
    """Codex sends two developer's messages, Claude Code the system's after the user's."""
    told, more = ({"role": "developer", "content": text} for text in ("Be brief.", "Be kind."))
    later = {"role": "system", "content": "No tools."}
    both = "system: Be brief.\nsystem: Be kind.\nuser: hi\n"
    speaker = Speaker()
    with served(speaker, template=ROLES) as server, asking(server) as client:
        for path, body, shown in (
            ("responses", {"input": [told, more, *message()]}, both),
            ("chat/completions", {"messages": [told, more, *message()]}, both),
            ("messages", {"messages": [*message(), later], "max_tokens": 9},
             "user: hi\nsystem: No tools.\n"),
        ):  # fmt: skip
            assert client.post(f"/v1/{path}", json=body).status_code == 200
            assert said_to(speaker) == shown


def test_the_runner_of_tools_goes_on_without_a_thread() -> None:
    """It asks the server to hold the conversation until the server says that it cannot."""

    @anthropic.beta_tool
    def add(x: str) -> str:
        """Adds."""
        return x * 2

    speaker = Speaker(CALL, "15")
    with served(speaker) as server, anthropic_of(server) as client:
        runner = client.beta.messages.tool_runner(
            model="policy", max_tokens=99, messages=message(), tools=[add]
        )
        block: Any = runner.until_done().content[0]
        assert block.text == "15"
    assert said_to(speaker).endswith("user: hi\nassistant: <add é>\ntool: éé\nassistant:")


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999"])
def test_a_call_that_no_json_can_hold_is_text(number: str) -> None:
    said = CALL.replace('"é"', number)
    with served(Speaker(said)) as server, anthropic_of(server) as client:
        ask: Any = {"model": "policy", "max_tokens": 99, "messages": message(), "tools": CUSTOM}
        assert client.messages.create(**ask).content[0].text == said


def test_tokens_of_a_prompt_without_room_are_counted() -> None:
    with served(Speaker()) as server, anthropic_of(server) as client:
        asked: Any = {"model": "policy", "messages": message("x" * 600)}
        assert client.messages.count_tokens(**asked).input_tokens > 600


IMAGE = [{"type": "input_image", "image_url": "x"}]
BLOCK = [{"role": "user", "content": [{"type": "image", "source": {}}]}]


@pytest.mark.parametrize(
    ("path", "more", "told"),
    [
        ("responses", {"input": [{"role": "user", "content": IMAGE}]}, "type 'input_image'"),
        ("responses", {"input": [{"type": "image"}]}, "input[0].type is 'image'"),
        ("responses", {"input": [{"type": "reasoning", "encrypted_content": "x"}]}, "encrypted"),
        ("responses", {"input": [{"content": "x"}]}, "role is None"),
        ("responses", {"input": []}, "messages is empty"),
        ("responses", {"input": 5}, "input is 5"),
        ("responses", {"tools": [{"type": "web_search"}]}, "only a client's own functions"),
        ("responses", {"tools": [{**FLAT[0], "defer_loading": True}]}, "tools.defer_loading"),
        ("responses", {"tool_choice": "required"}, "tool_choice is 'required'"),
        ("responses", {"text": {"format": {"type": "json_schema"}}}, "text.format"),
        ("responses", {"previous_response_id": "resp_1"}, "previous_response_id is not applied"),
        ("responses", {"max_output_tokens": 0}, "max_output_tokens is 0"),
        ("responses", {"include": ["message.output_text.logprobs"]}, "/v1/chat/completions"),
        ("responses", {"temprature": 1}, "did you mean temperature"),
        ("messages", {"messages": BLOCK}, "part of type 'image'"),
        ("messages", {"messages": [{"role": "user", "content": 5}]}, "must be text or a list"),
        ("messages", {"messages": [*message(), {"role": "assistant", "content": "So"}]},
         "an answer is not continued"),
        ("messages", {"messages": [{"role": "judge", "content": "x"}]}, "role is 'judge'"),
        ("messages", {"tools": [{"type": "bash_20250124", "name": "bash"}]}, "bash_20250124"),
        ("messages", {"tools": [{"name": "a", "inputschema": {}}]}, "did you mean input_schema"),
        ("messages", {"tools": [{**CUSTOM[0], "input_examples": [{}]}]}, "tools.input_examples"),
        ("messages", {"tool_choice": {"type": "any"}}, "tool_choice.type is 'any'"),
        ("messages", {"tool_choice": {"name": "add"}}, "tool_choice.type is None"),
        ("messages", {"thinking": {"type": "on"}}, "thinking.type is 'on'"),
        ("messages", {"context_management": {"edits": [{"type": "clear_thinking_20251015"}]}},
         "context_management.edits is"),
        ("messages", {"system": 5}, "system must be text"),
        ("messages", {"model": "other"}, "there is no model 'other'"),
    ],
)  # fmt: skip
def test_what_is_refused(path: str, more: dict[str, Any], told: str) -> None:
    given = {**(RESPONSE if path == "responses" else MESSAGE), **more}
    with served(Speaker()) as server, asking(server) as client:
        response = client.post(f"/v1/{path}", json=given)
        assert response.status_code in (400, 404)
        assert told in response.json()["error"]["message"]


def test_errors_in_the_form_of_anthropic(monkeypatch: pytest.MonkeyPatch) -> None:
    speaker = Speaker()
    ask: Any = {"model": "policy", "max_tokens": 9, "messages": message()}
    with served(speaker) as server:
        with (
            anthropic_of(server, api_key="wrong") as client,
            pytest.raises(anthropic.AuthenticationError, match="a wrong key"),
        ):
            client.messages.create(**ask)
        with anthropic_of(server, api_key=None, auth_token=server.key) as client:
            assert client.messages.create(**ask).content[0].text == "ab"
        with anthropic_of(server) as client:
            with pytest.raises(anthropic.BadRequestError, match="500 tokens") as refused:
                client.messages.create(**{**ask, "max_tokens": 600})
            assert refused.value.body["type"] == "error"
            speaker.fails = [Busy(), RuntimeError("a secret")]
            with pytest.raises(anthropic.RateLimitError):
                client.messages.create(**ask)
            monkeypatch.setattr("strop.serving.app.KEEP_ALIVE_SECONDS", 0.0)
            with (
                pytest.raises(anthropic.APIStatusError, match="the policy failed"),
                client.messages.stream(**ask) as stream,
            ):
                stream.get_final_message()


def test_the_result_of_a_tool_that_failed_says_so() -> None:
    use = {"type": "tool_use", "id": "1", "name": "add", "input": {}}
    speaker = Speaker()
    with served(speaker) as server, asking(server) as client:
        for failed in (False, True):
            result = {"type": "tool_result", "tool_use_id": "1", "content": "no x",
                      "is_error": failed}  # fmt: skip
            turns = [*message(), {"role": "assistant", "content": [use]},
                     {"role": "user", "content": [result]}]  # fmt: skip
            body = {**MESSAGE, "messages": turns}
            assert client.post("/v1/messages", json=body).status_code == 200
    one, other = (by_bytes().decode(call.prompt_ids) for call in speaker.calls)
    assert "error: no x" not in one
    assert other == one.replace("no x", "error: no x")


def test_a_body_of_any_kind_is_answered() -> None:
    """No value of a field is an error of the server."""
    wrong: list[Any] = [None, [], {}, "x", 5, [5], [{}], {"type": 5}, {"a": 5}, [{"type": []}],
                        [{"role": "user", "content": [{"type": "tool_result", "content": 5}]}],
                        [{"role": "assistant", "content": [{"type": "tool_use"}]}]]  # fmt: skip
    names = ("input", "messages", "system", "instructions", "tools", "tool_choice", "text",
             "reasoning", "include", "stop_sequences", "stream_options")  # fmt: skip
    with served(Speaker()) as server, asking(server) as client:
        for path, usual in (("responses", RESPONSE), ("messages", MESSAGE)):
            for body in [*wrong, *({**usual, name: each} for name in names for each in wrong)]:
                response: httpx2.Response = client.post(f"/v1/{path}", json=body)
                assert response.status_code in (200, 400), (path, body, response.text)
