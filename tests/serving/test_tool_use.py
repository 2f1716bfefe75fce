"""Tools reach the chat template, and an answer's calls are returned in OpenAI's format."""

import json

import openai
import pytest
from fakes.policy import TEMPLATE, Speaker, asking, by_bytes, message, served

TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
CALL = '<tool_call>{"name": "add", "arguments": {"x": "é"}}</tool_call>'


def said_to(speaker: Speaker, place: int = -1) -> str:
    return by_bytes().decode(speaker.calls[place].prompt_ids)


def test_calls_are_read_and_given_back():
    speaker = Speaker(f"I add.\n{CALL}\n{CALL}")
    with (
        served(speaker) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key=server.key) as client,
    ):
        asked = {"model": "policy", "tools": TOOLS}
        (choice,) = client.chat.completions.create(messages=message(), **asked).choices
        assert (choice.finish_reason, choice.message.content) == ("tool_calls", "I add.")
        first, second = choice.message.tool_calls
        assert (first.type, first.function.name) == ("function", "add")
        assert json.loads(first.function.arguments) == {"x": "é"}
        assert first.id != second.id
        answer = choice.message.model_dump(exclude_none=True)
        result = {"role": "tool", "tool_call_id": first.id, "content": "7"}
        client.chat.completions.create(messages=[*message(), answer, result], **asked)
    tools = json.dumps(TOOLS, separators=(", ", ": "))
    assert said_to(speaker, 0) == f"{tools}\nuser: hi\nassistant:"
    assert said_to(speaker).endswith(
        "user: hi\nassistant: I add.<add é><add é>\ntool: 7\nassistant:"
    )
    assert speaker.calls[-1].tools == tuple(TOOLS)


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>{</tool_call>",
        '<tool_call>{"arguments": {}}</tool_call>',
        '<tool_call>{"name": "", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "add", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "add"',
    ],
)
def test_what_cannot_be_read_stays_text(text):
    with served(Speaker(text, text + CALL)) as server, asking(server) as client:
        body = {"messages": message(), "tools": TOOLS}
        (choice,) = client.post("/v1/chat/completions", json=body).json()["choices"]
        assert choice["finish_reason"] == "stop"
        assert choice["message"] == {"role": "assistant", "content": text}
        (choice,) = client.post("/v1/chat/completions", json=body).json()["choices"]
        if text.endswith("</tool_call>"):
            assert choice["message"]["content"] == text
            assert len(choice["message"]["tool_calls"]) == 1


@pytest.mark.parametrize("thought", [f"<think>I may {CALL}</think>", f"I may {CALL}</think>"])
def test_a_call_that_is_only_thought_of_is_text(thought):
    said = (f"{thought}Yes.", f"{thought}Yes.{CALL}")
    with served(Speaker(*said)) as server, asking(server) as client:
        body = {"messages": message(), "tools": TOOLS}
        for calls in (0, 1):
            (choice,) = client.post("/v1/chat/completions", json=body).json()["choices"]
            assert choice["message"]["content"] == f"{thought}Yes."
            assert len(choice["message"].get("tool_calls", ())) == calls


def test_the_closing_tag_in_an_argument_ends_no_call():
    call = CALL.replace("é", "</tool_call>")
    with served(Speaker(f"So {call}.")) as server, asking(server) as client:
        body = {"messages": message(), "tools": TOOLS}
        (choice,) = client.post("/v1/chat/completions", json=body).json()["choices"]
    assert choice["message"]["content"] == "So ."
    (made,) = choice["message"]["tool_calls"]
    assert json.loads(made["function"]["arguments"]) == {"x": "</tool_call>"}


FORMS = {
    "<tool_call> <function=": (
        "<tool_call>\n<function=add>\n<parameter=x>\n1\n</parameter>\n</function>\n</tool_call>",
        "<tool_call>\n<function=add>\n<parameter=x>\n1\n</function>\n</tool_call>",
    ),
    "<tool_call> <arg_key>": (
        "<tool_call>add\n<arg_key>x</arg_key>\n<arg_value>1</arg_value>\n</tool_call>",
        "<tool_call>add\n<arg_key>x</arg_key>\n</tool_call>",
    ),
    "<|python_tag|>": (
        '{"name": "add", "parameters": {"x": 1}}',
        '{"name": "Ada", "born": 1815}',
    ),
}


@pytest.mark.parametrize("marks", FORMS)
def test_calls_have_the_form_of_the_chat_template(marks):
    call, broken = FORMS[marks]
    parameters = {"type": "object", "properties": {"x": {"type": "integer"}}}
    tools = [{"type": "function", "function": {"name": "add", "parameters": parameters}}]
    speaker = Speaker(f"<think>{call}</think>{call}", broken, CALL)
    template = f"{TEMPLATE}{{# {marks} #}}"
    with served(speaker, template=template) as server, asking(server) as client:
        body = {"messages": message(), "tools": tools}
        (choice,) = client.post("/v1/chat/completions", json=body).json()["choices"]
        assert choice["message"]["content"] == f"<think>{call}</think>"
        (found,) = choice["message"]["tool_calls"]
        assert found["function"] == {"name": "add", "arguments": '{"x": 1}'}
        for text in (broken, CALL):
            (choice,) = client.post("/v1/chat/completions", json=body).json()["choices"]
            assert choice["message"] == {"role": "assistant", "content": text}


def test_without_tools_a_call_is_text():
    speaker = Speaker(CALL)
    with served(speaker) as server, asking(server) as client:
        for more in ({}, {"tools": TOOLS, "tool_choice": "none"}):
            response = client.post("/v1/chat/completions", json={"messages": message(), **more})
            (choice,) = response.json()["choices"]
            assert (choice["finish_reason"], choice["message"]["content"]) == ("stop", CALL)
            assert said_to(speaker) == "user: hi\nassistant:"


def test_a_call_without_arguments_has_none():
    with (
        served(Speaker('<tool_call>{"name": "now"}</tool_call>')) as server,
        asking(server) as client,
    ):
        response = client.post("/v1/chat/completions", json={"messages": message(), "tools": TOOLS})
        (choice,) = response.json()["choices"]
        assert choice["message"]["content"] is None
        assert choice["message"]["tool_calls"][0]["function"] == {"name": "now", "arguments": "{}"}


def test_a_template_that_reads_no_tools():
    plain = "{% for each in messages %}{{ each.content }}{% endfor %}"
    with served(Speaker(), template=plain) as server, asking(server) as client:
        response = client.post("/v1/chat/completions", json={"messages": message(), "tools": TOOLS})
        assert (response.status_code, "reads no 'tools'" in response.text) == (400, True)


def test_calls_that_no_template_can_write():
    calls = [[{"function": {}}], [{"id": "1"}], "x", [5]]
    with served(Speaker()) as server, asking(server) as client:
        for each in calls:
            told = [*message(), {"role": "assistant", "content": None, "tool_calls": each}]
            response = client.post("/v1/chat/completions", json={"messages": told, "tools": TOOLS})
            assert response.status_code == 400, each
            assert "tool_calls" in response.json()["error"]["message"]
