"""Tool calls as they are written in an action: JSON objects between tags."""

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

TAGGED = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)


class Call(NamedTuple):
    """A tool's name, empty where it could not be read, and its arguments by name."""

    name: str
    arguments: Mapping[str, Any]


def tagged_calls(action: str) -> list[Call]:
    """The calls `<tool_call>{"name": ..., "arguments": {...}}</tool_call>` of an action, in order.

    What stands between the tags without being such an object is a call without a name.
    """
    return [read_call(text) for text in TAGGED.findall(action)]


def read_call(given: object) -> Call:
    """A call from a JSON object or its text; arguments that are no object count as none."""
    found = _parsed(given)
    if not isinstance(found, Mapping) or not isinstance(found.get("name"), str):
        return Call("", {})
    arguments = _parsed(found.get("arguments"))
    return Call(found["name"], arguments if isinstance(arguments, Mapping) else {})


def whole_call(given: object) -> Call | None:
    """A call of which name and arguments can be read; None: there is none."""
    found = _parsed(given)
    if not isinstance(found, Mapping) or not isinstance(found.get("name"), str):
        return None
    arguments = _parsed(found.get("arguments", {}))
    if not found["name"] or not isinstance(arguments, Mapping):
        return None
    return Call(found["name"], arguments)


def _parsed(given: Any) -> Any:
    if not isinstance(given, str):
        return given
    try:
        return json.loads(given)
    except (ValueError, RecursionError):
        return None
