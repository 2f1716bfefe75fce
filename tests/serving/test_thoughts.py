"""Thoughts stand beside the text where a client asks for that, and return into the prompt."""

from importlib.resources import files
from typing import Any

import pytest
from fakes.policy import TEMPLATE, Speaker, asking, by_bytes, message, served
from test_responses_and_messages import CUSTOM, FLAT, anthropic_of, openai_of
from test_tool_use import TOOLS

from strop.data.tool_calls import split_thought

CALL = "<tool_call>\n<function=add>\n<parameter=x>\n4\n</parameter>\n</function>\n</tool_call>"
QWEN = (files("trl") / "chat_templates" / "qwen3_5_think.jinja").read_text("utf-8")
THINKS = f"I must add.\n</think>\n\nI add.\n\n{CALL}"


def in_chat(server: Any, stream: bool) -> None:
    with openai_of(server) as client:
        ask: Any = {"model": "policy", "tools": TOOLS, "extra_body": {"separate_reasoning": True}}
        if stream:
            events = client.chat.completions.create(messages=message(), stream=True, **ask)
            deltas = [each.choices[0].delta for each in events]
            assert "".join(getattr(d, "reasoning_content", "") for d in deltas) == "I must add."
            assert "".join(each.content or "" for each in deltas) == "I add."
            return
        answer: Any = client.chat.completions.create(messages=message(), **ask).choices[0].message
        assert (answer.reasoning_content, answer.content) == ("I must add.", "I add.")
        result = {"role": "tool", "tool_call_id": answer.tool_calls[0].id, "content": "7"}
        told = [*message(), answer.model_dump(exclude_none=True), result]
        client.chat.completions.create(messages=told, **ask)


def in_responses(server: Any, stream: bool) -> None:
    with openai_of(server) as client:
        ask: Any = {"model": "policy", "tools": FLAT, "reasoning": {"summary": "auto"}}
        if stream:
            with client.responses.stream(input="hi", **ask) as events:
                answer: Any = [*events] and events.get_final_response()
        else:
            answer = client.responses.create(input="hi", **ask)
        thought, said, call = answer.output
        assert (thought.content[0].text, said.content[0].text) == ("I must add.", "I add.")
        if not stream:
            told: Any = [*message(), *(e.model_dump(exclude_none=True) for e in answer.output)]
            told.append({"type": "function_call_output", "call_id": call.call_id, "output": "7"})
            client.responses.create(input=told, **ask)


def in_messages(server: Any, stream: bool) -> None:
    with anthropic_of(server) as client:
        ask: Any = {"model": "policy", "max_tokens": 99, "tools": CUSTOM,
                    "thinking": {"type": "enabled", "budget_tokens": 50},
                    "extra_body": {"context_management": {"edits": [{"keep": "all"}]}}}  # fmt: skip
        if stream:
            with client.messages.stream(messages=message(), **ask) as events:
                answer: Any = events.get_final_message()
        else:
            answer = client.messages.create(messages=message(), **ask)
        thought, said, call = answer.content
        assert (thought.thinking, said.text) == ("I must add.", "I add.")
        assert thought.signature  # without one, clients keep the thought for themselves
        if not stream:
            result = {"type": "tool_result", "tool_use_id": call.id, "content": "7"}
            told: Any = [*message(), {"role": "assistant", "content": answer.content}]
            told.append({"role": "user", "content": [result]})
            client.messages.create(messages=told, **ask)


@pytest.mark.parametrize("talk", [in_chat, in_responses, in_messages])
def test_a_thought_apart_returns_to_where_it_was_drawn(talk: Any) -> None:
    """The second call continues the tokens of the first one, with its answer."""
    speaker = Speaker(THINKS, "So.</think>7")
    with served(speaker, template=QWEN, max_model_len=9000) as server:
        talk(server, False)
        talk(server, True)
    first, second = (by_bytes().decode(call.prompt_ids) for call in speaker.calls[:2])
    assert first.endswith("<think>\n")
    assert second.startswith(first + THINKS)


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("chat/completions", {"separate_reasoning": True, "messages": message()}),
        ("responses", {"reasoning": {}, "input": "hi"}),
        ("messages", {"thinking": {"type": "adaptive"}, "max_tokens": 9, "messages": message()}),
    ],
)  # fmt: skip
def test_an_answer_that_ends_in_its_thought_has_no_text(path: str, asked: Any) -> None:
    thinker = served(Speaker("Hm"), template=QWEN, max_model_len=9000)
    with thinker as server, asking(server) as client:
        whole = client.post(f"/v1/{path}", json={"model": "policy", **asked}).json()
    if path == "chat/completions":
        said = whole["choices"][0]["message"]
        assert (said["content"], said["reasoning_content"]) == ("", "Hm")
    else:
        (item,) = whole["output"] if path == "responses" else whole["content"]
        assert item.get("thinking") == "Hm" or item["content"][0]["text"] == "Hm"


def test_a_template_that_reads_no_thoughts_shows_them_in_the_content() -> None:
    speaker = Speaker("<think>\nHm\n</think>\n\nYes.")
    with served(speaker, template=TEMPLATE) as server, openai_of(server) as client:
        for name in ("reasoning_content", "reasoning", "thinking"):
            said = {"role": "assistant", "content": "Yes.", name: "Hm"}
            told: Any = [*message(), said, *message("So?")]
            client.chat.completions.create(model="policy", messages=told)
            shown = by_bytes().decode(speaker.calls[-1].prompt_ids)
            assert "assistant: <think>\nHm\n</think>\n\nYes.\nuser: So?" in shown
        answer: Any = client.chat.completions.create(model="policy", messages=message())
    assert answer.choices[0].message.content == "<think>\nHm\n</think>\n\nYes."


@pytest.mark.parametrize(
    ("text", "begun", "found"),
    [
        ("<think>\na\n</think>\n\nb", False, ("a", "b")),
        ("a</think>b<think>c</think>", True, ("a", "b<think>c</think>")),
        ("\n<think>a", False, ("a", "")),
        ("a <b", True, ("a <b", "")),
        ("So <think>a</think>", False, ("", "So <think>a</think>")),
        ("", True, ("", "")),
    ],
)
def test_parts_of_an_answer(text: str, begun: bool, found: tuple[str, str]) -> None:
    assert split_thought(text, begun) == found


def test_a_reasoning_item_without_text_is_no_message() -> None:
    speaker = Speaker()
    told = [{"type": "reasoning", "summary": []}, {"role": "user", "content": "hi"}]
    with served(speaker) as server, asking(server) as client:
        body = {"model": "policy", "input": told}
        assert client.post("/v1/responses", json=body).status_code == 200
    assert by_bytes().decode(speaker.calls[-1].prompt_ids) == "user: hi\nassistant:"


def test_reasoning_items_in_a_row_are_thoughts_of_one_answer() -> None:
    speaker = Speaker()
    thoughts = [{"type": "reasoning", "content": [{"type": "reasoning_text", "text": each}]}
                for each in ("Hm", "So")]  # fmt: skip
    told = [*message(), *thoughts, {"role": "assistant", "content": "Yes."}, *message("Why?")]
    with served(speaker) as server, asking(server) as client:
        body = {"model": "policy", "input": told}
        assert client.post("/v1/responses", json=body).status_code == 200
    shown = by_bytes().decode(speaker.calls[-1].prompt_ids)
    assert shown.count("assistant:") == 2
    assert "assistant: <think>\nHm\nSo\n</think>\n\nYes.\nuser: Why?" in shown


def test_thoughts_that_are_no_text_are_refused() -> None:
    with served(Speaker()) as server, asking(server) as client:
        told = [*message(), {"role": "assistant", "content": "a", "reasoning": {"a": 1}}]
        response = client.post("/v1/chat/completions", json={"messages": told})
        assert "messages[1] has thoughts that are no text" in response.text
