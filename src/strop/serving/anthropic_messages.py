"""Anthropic's Messages: a body becomes that of a chat call, and its answer a Message."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from strop.serving.answers import CallResponse
from strop.serving.fields import Fields, refuse, texts_of, tool_of

SAME = ("model", "temperature", "top_p", "top_k", "seed", "stream")
SIGNATURE = "strop"  # clients send a thought back only with one
NO_THREAD = "thread_unsupported_request"


def chat_body(given: Any) -> dict[str, Any]:
    """The body of a chat call that asks for the same. Raises Refused."""
    fields = Fields(given)
    system = fields.take("system")
    told = "" if system is None else texts_of(system, "system")
    head = [{"role": "system", "content": told}] if told else []
    messages = [
        message for place, each in enumerate(fields.objects("messages"))
        for message in _messages(each, f"messages[{place}]")
    ]  # fmt: skip
    if messages and messages[-1]["role"] == "assistant":
        raise refuse(
            "the last message is the assistant's, and an answer is not continued here: end with "
            "the user's",
            "messages",
        )
    if fields.take("thread") is not None:  # the client then goes on without one
        raise refuse("this server keeps no conversation: leave thread out", "thread", NO_THREAD)
    choice = Fields(fields.take("tool_choice") or {"type": "auto"}, "tool_choice.")
    if (kind := choice.take("type")) not in ("auto", "none"):
        raise choice.wrong("type", "auto or none: no call of a tool is forced here")
    choice.end(ignored=("disable_parallel_tool_use",))
    form = Fields(fields.take("output_config") or {}, "output_config.")
    form.end(ignored=("effort",))  # templates have other words for it
    thoughts = Fields(fields.take("thinking") or {"type": "disabled"}, "thinking.")
    if (thinks := thoughts.take("type")) not in ("enabled", "adaptive", "disabled"):
        raise thoughts.wrong("type", "enabled, adaptive or disabled")
    thoughts.end(ignored=("budget_tokens", "display"))
    context = Fields(fields.take("context_management") or {}, "context_management.")
    if any(each.get("keep") != "all" for each in context.objects("edits")):
        raise context.wrong("edits", 'only one with "keep": "all": nothing is cleared here')
    context.end()
    body = {
        "messages": [*head, *messages],
        "tools": [tool_of(each, "custom", "input_schema") for each in fields.objects("tools")],
        "tool_choice": kind,
        "separate_reasoning": thinks != "disabled",
        "max_tokens": fields.whole("max_tokens", 1),
        "stop": list(fields.texts("stop_sequences")),
        **{name: fields.take(name) for name in SAME},
    }
    fields.end()
    return {name: value for name, value in body.items() if value is not None}


def _messages(given: Mapping[str, Any], where: str) -> Iterator[dict[str, Any]]:
    """Chat messages of one: each result of a tool is a message of its own."""
    role, content = given.get("role"), given.get("content")
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not isinstance(blocks, list) or not all(isinstance(each, dict) for each in blocks):
        raise refuse(f"{where}.content must be text or a list of objects", where)
    said: list[Mapping[str, Any]] = []
    calls, thoughts = [], list[str]()
    for block in blocks:
        if block.get("type") == "tool_result" and role == "user":
            if said:
                yield {"role": role, "content": texts_of(said, where)}
                said = []
            result = texts_of(block.get("content") or "", f"{where}.content")
            if block.get("is_error") is True:  # templates have no field for it
                result = f"error: {result}"
            yield {"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": result}
        elif block.get("type") == "tool_use" and role == "assistant":
            function = {
                "name": block.get("name"),
                "arguments": _arguments(block.get("input"), where),
            }
            calls.append({"id": block.get("id"), "type": "function", "function": function})
        elif block.get("type") == "thinking" and role == "assistant":
            thoughts.append(texts_of(block.get("thinking"), f"{where}.thinking"))
        else:
            said.append(block)
    more = {"tool_calls": calls, "reasoning_content": "\n".join(thoughts)}
    more = {name: value for name, value in more.items() if value}
    if said or more or not blocks:
        yield {"role": role, "content": texts_of(said, where), **more}


def _arguments(given: Any, where: str) -> str:
    """The input of a call as text, as in chat: a number in it may then have any size."""
    if not isinstance(given, Mapping):
        raise refuse(f"{where} has a tool_use whose input is no object", where)
    try:
        return json.dumps(given, ensure_ascii=False)
    except RecursionError as error:
        raise refuse(f"{where} has a tool_use whose input is nested too deep", where) from error


def body(response: CallResponse) -> dict[str, Any]:
    """The answer as one object."""
    call, (generated,) = response.wanted.call, response.generated
    reasons = {"length": "max_tokens", "tool_calls": "tool_use", "stop": "end_turn"}
    reason, stopped = reasons[generated.finish_reason], None
    if reason == "end_turn" and call.stop_strings:
        whole = response.tokenizer.decode(list(generated.answer.ids), skip_special_tokens=True)
        rest = whole[len(generated.text) :]
        stopped = next((each for each in call.stop_strings if rest.startswith(each)), None)
    return {
        "id": f"msg_{call.id}",
        "type": "message",
        "role": "assistant",
        "model": response.model,
        "content": list(_blocks(response)),
        "stop_reason": reason if stopped is None else "stop_sequence",
        "stop_sequence": stopped,
        "usage": {
            "input_tokens": response.usage["prompt_tokens"],
            "output_tokens": response.usage["completion_tokens"],
        },
        "weights_version": response.version,
    }


def _blocks(response: CallResponse) -> Iterator[dict[str, Any]]:
    """The answer's thoughts and text, if any, and its calls of tools."""
    (generated,) = response.generated
    if generated.thoughts:
        yield {"type": "thinking", "thinking": generated.thoughts, "signature": SIGNATURE}
    if generated.speaks:
        yield {"type": "text", "text": generated.text}
    for each in generated.tool_calls:
        function = each["function"]
        given = json.loads(function["arguments"])
        yield {"type": "tool_use", "id": each["id"], "name": function["name"], "input": given}


def events(response: CallResponse) -> Iterator[dict[str, Any]]:
    """The events of a stream."""
    whole = body(response)
    end = {name: whole[name] for name in ("stop_reason", "stop_sequence")}
    usage = {**whole["usage"], "output_tokens": 0}
    begun = {**whole, **dict.fromkeys(end), "content": [], "usage": usage}
    yield {"type": "message_start", "message": begun}
    for index, block in enumerate(whole["content"]):
        if block["type"] == "text":
            empty = {**block, "text": ""}
            deltas = [{"type": "text_delta", "text": block["text"]}]
        elif block["type"] == "thinking":
            empty = {**block, "thinking": "", "signature": ""}
            deltas = [{"type": f"{name}_delta", name: block[name]}
                      for name in ("thinking", "signature")]  # fmt: skip
        else:
            empty = {**block, "input": {}}
            given = json.dumps(block["input"], ensure_ascii=False)
            deltas = [{"type": "input_json_delta", "partial_json": given}]
        yield {"type": "content_block_start", "index": index, "content_block": empty}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    yield {"type": "message_delta", "delta": end, "usage": whole["usage"]}
    yield {"type": "message_stop"}
