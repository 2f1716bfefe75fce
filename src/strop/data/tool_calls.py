"""Reads tool calls in the forms in which models write them, and describes tools in words.

`hermes` (Qwen, Hermes): `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, any number.
`llama3`: JSON with "parameters" alone or after `<|python_tag|>`, several separated by `;`.
`json`: JSON objects or a list of them, as the whole answer or in a fence.
`text`: a line `call NAME {JSON}`, for a model without a chat template that shows tools.

A call that cannot be read has a problem in place of a name and arguments. Thoughts of the model
(`<think>...</think>`) make no calls.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from strop.support.files import well_formed

# What can be wrong with a call before any tool runs.
INVALID_JSON, UNCLOSED_BLOCK, MISSING_NAME = "invalid_json", "unclosed_block", "missing_name"
UNKNOWN_TOOL, WRONG_ARGUMENTS = "unknown_tool", "wrong_arguments"
OPENING, CLOSING = "<tool_call>", "</tool_call>"
PYTHON_TAG = "<|python_tag|>"
TAGGED = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
# A thought; the first may lack its beginning, where the template has opened it before the text.
THOUGHT = re.compile(r"\A(?:(?!<think>).)*?</think>|<think>.*?(?:</think>|\Z)", re.DOTALL)
FENCE = re.compile(r"\A\s*```(?:json|tool_call)?[ \t]*\n(.*?)(?:\n```\s*\Z|\Z)", re.DOTALL)
LINE = re.compile(r"^call\b[ \t]*([\w.-]*)[ \t]*", re.MULTILINE)
DECODER = json.JSONDecoder()


class Call(NamedTuple):
    """A tool's name, empty where it could not be read, and its arguments by name."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class ParsedCall:
    """A call of an action. problem: why it cannot be made, empty where it can be."""

    name: str = ""
    arguments: Any = None
    problem: str = ""
    detail: str = ""  # of the problem, for the policy to read


class Action(str):
    """An action with parsed calls; content: its text without calls and thoughts."""

    calls: tuple[ParsedCall, ...] = ()
    content: str = ""

    @classmethod
    def of(cls, text: str, content: str, calls: tuple[ParsedCall, ...]) -> "Action":
        """Make an action with its content and calls."""
        action = cls(text)
        action.content, action.calls = content, calls
        return action

    @property
    def readable_calls(self) -> list[Call]:
        """The calls in the form that rewards and recipes compare, including ones without a name."""
        return [
            Call(each.name, each.arguments if isinstance(each.arguments, Mapping) else {})
            for each in self.calls
        ]


Read: TypeAlias = tuple[str, list[ParsedCall]]  # the text beside the calls, and the calls


def read_action(text: str, form: str) -> Action:
    """Read the calls of an action that are written in this form."""
    content, calls = FORMS[form](spoken(text))
    return Action.of(text, content.strip(), tuple(calls))


def spoken(text: str) -> str:
    """The text without the model's thoughts."""
    return THOUGHT.sub("", text)


def thought_of(text: str) -> str:
    """The model's last finished thought; empty where it finished none."""
    thought, ended, _ = text.rpartition("</think>")
    return thought.rpartition("<think>")[2].strip() if ended else ""


def form_of(template: str) -> str:
    """The form of calls that a chat template asks for; empty where strop cannot read it."""
    if OPENING in template:
        # <function=NAME><parameter=...> and <arg_key> use the same tags and are no JSON
        return "" if "<function=" in template or "<arg_key>" in template else "hermes"
    return "llama3" if PYTHON_TAG in template or '"parameters": dictionary' in template else ""


def call_of(found: Any) -> ParsedCall:
    """A call from a parsed JSON object."""
    name = found.get("name") if isinstance(found, Mapping) else None
    if not isinstance(name, str) or not name:
        return ParsedCall(
            problem=MISSING_NAME, detail='a call is {"name": ..., "arguments": {...}}'
        )
    arguments: Any = found.get("arguments", found.get("parameters", {}))
    if isinstance(arguments, str):  # some models write the arguments as a text of JSON
        with suppress(ValueError, RecursionError):
            arguments = _value(arguments)
    return ParsedCall(name, {} if arguments is None else arguments)


def _hermes(text: str) -> Read:
    before, *blocks = text.split(OPENING)
    calls, content = [], before
    for block in blocks:
        inside, closed, after = block.partition(CLOSING)
        if closed:
            calls.append(_one(inside))
            content += after
        else:
            calls.append(ParsedCall(problem=UNCLOSED_BLOCK, detail=f"{CLOSING} is missing"))
    return content, calls


def _one(text: str) -> ParsedCall:
    """The call in one JSON text."""
    try:
        return call_of(_value(text))
    except (ValueError, RecursionError) as error:
        return ParsedCall(problem=INVALID_JSON, detail=str(error))


def _several(text: str, separators: str = "; \t\r\n") -> list[ParsedCall]:
    """The calls in JSON objects one after another, or in a list of them."""
    calls: list[ParsedCall] = []
    rest = text.strip()
    while rest:
        try:
            found, end = _first_value(rest)
        except json.JSONDecodeError as error:
            cut = error.pos >= len(rest) or error.msg.startswith("Unterminated")
            problem = UNCLOSED_BLOCK if cut else INVALID_JSON
            return [*calls, ParsedCall(problem=problem, detail=str(error))]
        except (ValueError, RecursionError) as error:  # a number of thousands of digits, or depth
            return [*calls, ParsedCall(problem=INVALID_JSON, detail=str(error))]
        calls += [call_of(each) for each in (found if isinstance(found, list) else [found])]
        rest = rest[end:].lstrip(separators)
    return calls


def _llama3(text: str) -> Read:
    before, tagged, after = text.partition(PYTHON_TAG)
    if tagged:
        return before, _several(after)
    return _json(text)


def _json(text: str) -> Read:
    fenced = FENCE.match(text)
    inside = fenced[1] if fenced else text
    if inside.lstrip()[:1] == "{" or re.match(r"\s*\[\s*\{", inside):
        return "", _several(inside)
    return text, []


def _text(text: str) -> Read:
    calls, content, at = [], "", 0
    while found := LINE.search(text, at):
        content += text[at : found.start()]
        at = found.end()
        arguments: Any = {}
        problem = detail = ""
        if text[at : at + 1] not in ("", "\n", "\r"):
            try:
                arguments, at = _first_value(text, at)
            except (ValueError, RecursionError) as error:
                line_end = text.find("\n", at)
                is_cut = isinstance(error, json.JSONDecodeError) and error.pos >= len(text.rstrip())
                problem = UNCLOSED_BLOCK if is_cut else INVALID_JSON
                detail, at = str(error), len(text) if line_end < 0 else line_end
        if not found[1] and not problem:
            problem, detail = MISSING_NAME, "a call is: call NAME {JSON}"
        calls.append(ParsedCall(found[1], arguments, problem, detail))
    return content + text[at:], calls


FORMS: Mapping[str, Callable[[str], Read]] = {
    "hermes": _hermes, "llama3": _llama3, "json": _json, "text": _text,
}  # fmt: skip


def tagged_calls(action: str) -> list[Call]:
    """The calls `<tool_call>{"name": ..., "arguments": {...}}</tool_call>` of an action, in order.

    Any other text between the tags is a call without a name.
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
    """A call whose name and arguments can be read, or None."""
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
        return _value(given)
    except (ValueError, RecursionError):
        return None


def _value(text: str) -> Any:
    """The value of a JSON text, without lone surrogates. Raises ValueError, RecursionError."""
    found = json.loads(text)
    return well_formed(found) if "\\u" in text else found


def _first_value(text: str, at: int = 0) -> tuple[Any, int]:
    """The JSON value that begins at a place, and the place after it. Raises as `_value` does."""
    found, end = DECODER.raw_decode(text, at)
    return (well_formed(found) if "\\u" in text[at:end] else found), end


def described(schemas: Sequence[Mapping[str, Any]]) -> str:
    """Describe the tools in words, for a model whose chat template shows none."""
    functions = [schema["function"] for schema in schemas]
    lines = [
        f"- {tool['name']}: {tool.get('description', '')} Arguments: "
        + json.dumps(tool.get("parameters", {}).get("properties", {}), ensure_ascii=False)
        for tool in functions
    ]
    return "You have these tools:\n" + "\n".join(lines) + "\n"


WRITTEN = {
    "hermes": 'Call one with <tool_call>{"name": NAME, "arguments": {...}}</tool_call>.\n',
    "llama3": 'Call one with {"name": NAME, "parameters": {...}} as the whole answer.\n',
    "json": 'Call one with {"name": NAME, "arguments": {...}} as the whole answer.\n',
    "text": "Call one with a line: call NAME {ARGUMENTS AS JSON}\n",
}
