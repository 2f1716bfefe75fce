"""OpenAI's Responses: a body becomes that of a chat call, and its answer a Response.

Nothing is kept between calls, so every call brings its whole input.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from strop.serving.answers import CallResponse
from strop.serving.fields import Fields, refuse, texts_of, tool_of

LOGPROBS = "message.output_text.logprobs"
SAME = ("model", "temperature", "top_p", "seed", "stream", "tool_choice")


def chat_body(given: Any) -> dict[str, Any]:
    """The body of a chat call that asks for the same. Raises Refused."""
    fields = Fields(given)
    form, thought = (Fields(fields.take(n) or {}, f"{n}.") for n in ("text", "reasoning"))
    if form.take("format") not in (None, {"type": "text"}):
        raise form.wrong("format", '{"type": "text"}: no other form is forced here')
    effort = thought.take("effort")
    if LOGPROBS in fields.texts("include"):
        raise refuse(f"{LOGPROBS} is not written here: call /v1/chat/completions", "include")
    system = fields.take("instructions")
    head = [] if system in (None, "") else [{"role": "system", "content": system}]
    body = {
        "messages": [*head, *_messages(fields)],
        "tools": [tool_of(each, "function", "parameters") for each in fields.objects("tools")],
        "max_tokens": fields.whole("max_output_tokens", 1),
        "reasoning_effort": effort,
        "separate_reasoning": fields.given.get("reasoning") is not None,
        **{name: fields.take(name) for name in SAME},
    }
    form.end()
    thought.end(ignored=("summary", "generate_summary", "context"))
    Fields(fields.take("stream_options") or {}, "stream_options.").end(("include_obfuscation",))
    fields.end()
    return {name: value for name, value in body.items() if value is not None}


def _messages(fields: Fields) -> list[dict[str, Any]]:
    """Chat messages of the input: calls of tools become part of the answer that made them."""
    if isinstance(text := fields.take("input"), str):
        return [{"role": "user", "content": text}]
    found: list[dict[str, Any]] = []
    for place, item in enumerate(fields.objects("input")):
        where, kind = f"input[{place}]", item.get("type", "message")
        if kind == "message":
            content = texts_of(item.get("content"), f"{where}.content")
            message = {"role": item.get("role"), "content": content}
            if _only_thinks(found) and message["role"] == "assistant":
                message = {**found.pop(), **message}
            found.append(message)
        elif kind == "reasoning":
            if text := _thoughts(item, where):
                before = [found.pop()["reasoning_content"]] if _only_thinks(found) else []
                text = "\n".join([*before, text])
                found.append({"role": "assistant", "content": None, "reasoning_content": text})
        elif kind == "function_call":
            if not found or found[-1]["role"] != "assistant":
                found.append({"role": "assistant", "content": None})
            function = {name: item.get(name) for name in ("name", "arguments")}
            call = {"id": item.get("call_id"), "type": "function", "function": function}
            found[-1].setdefault("tool_calls", []).append(call)
        elif kind == "function_call_output":
            said = texts_of(item.get("output"), f"{where}.output")
            found.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": said})
        else:
            raise refuse(
                f"{where}.type is {kind!r}: give message, reasoning, function_call or "
                "function_call_output",
                where,
            )
    return found


def _only_thinks(found: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the last message is the thoughts of an answer that goes on."""
    return bool(found) and found[-1]["content"] is None and "tool_calls" not in found[-1]


def _thoughts(item: Mapping[str, Any], where: str) -> str:
    """The text of a reasoning item, or its summary where it has none."""
    parts = item.get("content") or item.get("summary")
    if not parts and item.get("encrypted_content"):
        raise refuse(f"{where} has encrypted thoughts, which only their server reads", where)
    return texts_of(parts or [], where)


def body(response: CallResponse) -> dict[str, Any]:
    """The answer as one object."""
    call, (generated,) = response.wanted.call, response.generated
    cut = generated.finish_reason == "length"
    usage = response.usage
    return {
        "id": f"resp_{call.id}",
        "object": "response",
        "created_at": response.created,
        "status": "incomplete" if cut else "completed",
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "instructions": None,  # a client has sent them, also to this answer
        "max_output_tokens": call.max_tokens,
        "metadata": {},
        "model": response.model,
        "output": list(_items(response)),
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "temperature": call.temperature,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto" if response.wanted.tools else "none",
        "tools": [{"type": "function", **each["function"]} for each in call.tools],
        "top_p": call.top_p,
        "truncation": "disabled",
        "usage": {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage["total_tokens"],
        },
        "weights_version": response.version,
    }


def _items(response: CallResponse) -> Iterator[dict[str, Any]]:
    """The answer's thoughts and text, if any, and its calls of tools."""
    (generated,) = response.generated
    if generated.thoughts:
        yield {
            "id": f"rs_{response.wanted.call.id}",
            "type": "reasoning",
            "status": "completed" if generated.speaks or generated.tool_calls else "incomplete",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": generated.thoughts}],
        }
    if generated.speaks:
        part = {"type": "output_text", "text": generated.text, "annotations": [], "logprobs": []}
        yield {
            "id": f"msg_{response.wanted.call.id}",
            "type": "message",
            "role": "assistant",
            "status": "incomplete" if generated.finish_reason == "length" else "completed",
            "content": [part],
        }
    for each in generated.tool_calls:
        yield {
            "id": f"fc_{each['id']}",
            "type": "function_call",
            "call_id": each["id"],
            "status": "completed",
            **each["function"],
        }


def events(response: CallResponse) -> Iterator[dict[str, Any]]:
    """The events of a stream, each numbered."""
    for number, (name, event) in enumerate(_events(body(response))):
        yield {"type": f"response.{name}", **event, "sequence_number": number}


def _events(whole: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    begun = dict.fromkeys(("usage", "incomplete_details"))
    for name in ("created", "in_progress"):
        yield name, {"response": {**whole, **begun, "status": "in_progress", "output": []}}
    for index, item in enumerate(whole["output"]):
        at = {"item_id": item["id"], "output_index": index}
        called = item["type"] == "function_call"
        added = {**item, "status": "in_progress"}
        added["arguments" if called else "content"] = "" if called else []
        yield "output_item.added", {"output_index": index, "item": added}
        if called:
            named = {"name": item["name"], "arguments": item["arguments"]}
            yield "function_call_arguments.delta", {**at, "delta": item["arguments"]}
            yield "function_call_arguments.done", {**at, **named}
        else:
            (part,) = item["content"]
            at |= {"content_index": 0}
            more = {name: part[name] for name in ("logprobs",) if name in part}
            yield "content_part.added", {**at, "part": {**part, "text": ""}}
            yield f"{part['type']}.delta", {**at, "delta": part["text"], **more}
            yield f"{part['type']}.done", {**at, "text": part["text"], **more}
            yield "content_part.done", {**at, "part": part}
        yield "output_item.done", {"output_index": index, "item": item}
    yield whole["status"], {"response": whole}
