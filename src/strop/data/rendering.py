"""Applies a chat template to messages, and checks that it shows all that they say."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from jinja2 import TemplateError

Message = Mapping[str, Any]


def applied(
    tokenizer: Any, messages: Sequence[Message], template: Mapping[str, Any], **options: Any
) -> Any:
    """What the tokenizer's chat template makes of the messages; one without content has none.

    It gets the arguments of calls as objects, because most templates write text as JSON once more;
    one that fails on objects gets them as they are given.
    """
    given = [{**each, "content": ""} if each.get("content") is None else each for each in messages]
    read = [_with_objects(each) for each in given]
    try:
        return tokenizer.apply_chat_template(read, **options, **template)
    except (TemplateError, TypeError):  # such as text + object, where a template wants text
        if read == given:
            raise
    return tokenizer.apply_chat_template(given, **options, **template)


def left_out(tokenizer: Any, messages: Sequence[Message], template: Mapping[str, Any]) -> list[str]:
    """The parts of the messages that the chat template does not show, in words; mostly none.

    Thoughts, and what an assistant says beside its calls, do not count: templates leave them out
    on purpose.
    """
    marked, parts = [], dict[str, str]()
    for place, message in enumerate(messages):
        own, where = dict(message), f"message {place + 1} (role {message['role']!r})"
        calls = _calls(own)
        if own.get("content") and not calls:
            own["content"] = f"strop-{place}-message"
            parts[own["content"]] = where
        if calls:
            name = f"strop_{place}_call"
            own["tool_calls"] = [_changed(call, name=name) for call in calls]
            parts[name] = f"the tool calls of {where}"
        marked.append(own)
    text = applied(tokenizer, marked, template, tokenize=False, add_generation_prompt=True)
    return [part for mark, part in parts.items() if mark not in text]


def _with_objects(message: Message) -> Message:
    """The message with the arguments of its calls as objects, where they are text."""
    calls = _calls(message)
    return {**message, "tool_calls": [_parsed(call) for call in calls]} if calls else message


def _parsed(call: Message) -> Message:
    arguments = _function(call).get("arguments")
    found = None
    if isinstance(arguments, str):
        with suppress(ValueError, RecursionError):
            found = json.loads(arguments or "{}")
    return _changed(call, arguments=found) if isinstance(found, dict) else call


def _changed(call: Message, **fields: Any) -> Message:
    """The call with other fields of its function."""
    if "function" in call:
        return {**call, "function": {**_function(call), **fields}}
    return {**call, **fields}


def _function(call: Message) -> Message:
    found = call.get("function", call)
    return found if isinstance(found, Mapping) else {}


def _calls(message: Message) -> list[Message]:
    """The calls of a message; none where they are no list of objects."""
    found = message.get("tool_calls")
    if not isinstance(found, list | tuple):
        return []
    return list(found) if all(isinstance(each, Mapping) for each in found) else []
