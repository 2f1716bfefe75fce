"""Reads tool calls in the forms in which models write them, and describes tools in words.

`hermes` (Qwen, Hermes): `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, any number.
`llama3`: JSON with "parameters" alone or after `<|python_tag|>`, several separated by `;`.
`json`: JSON objects or a list of them, as the whole answer or in a fence.
`qwen3_coder` (Qwen3-Coder, Qwen 3.5 and later, Nemotron 3) and `glm45` (GLM 4.5 to 4.7): in the
tags of `hermes`, arguments between tags of their own, as texts that the tool's schema gives a type.
`text`: a line `call NAME {JSON}`, for a model without a chat template that shows tools.

A call that cannot be read has a problem in place of a name and arguments. Thoughts of the model
(`<think>...</think>`) make no calls.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from strop.support.files import well_formed

# What can be wrong with a call before any tool runs.
INVALID_JSON, UNCLOSED_BLOCK, MISSING_NAME = "invalid_json", "unclosed_block", "missing_name"
MALFORMED = "malformed_structure"
UNKNOWN_TOOL, WRONG_ARGUMENTS = "unknown_tool", "wrong_arguments"
OPENING, CLOSING = "<tool_call>", "</tool_call>"
PYTHON_TAG = "<|python_tag|>"
OPEN_THOUGHT, CLOSE_THOUGHT = "<think>", "</think>"
BEGINS = re.compile(r"\s*(?=[-{\[\"\dtfnNI])")  # a value of JSON
CLOSES = re.compile(rf"\s*{CLOSING}")
# A thought; the first may lack its beginning, where the template has opened it before the text.
THOUGHT = re.compile(
    rf"\A(?:(?!{OPEN_THOUGHT}).)*?{CLOSE_THOUGHT}|{OPEN_THOUGHT}.*?(?:{CLOSE_THOUGHT}|\Z)",
    re.DOTALL,
)
THOUGHT_OR_CALL = re.compile(f"{THOUGHT.pattern}|{OPENING}", re.DOTALL)
FENCE = re.compile(r"\A\s*```(?:json|tool_call)?[ \t]*\n(.*?)(?:\n```\s*\Z|\Z)", re.DOTALL)
LINE = re.compile(r"^call\b[ \t]*([\w.-]*)[ \t]*", re.MULTILINE)
FUNCTION = re.compile(r"\s*<function=([^>\n]*)>(.*)</function>\s*", re.DOTALL)
# The value of an argument may contain the closing tag, except where the next one begins.
PARAMETER = re.compile(
    r"\s*<parameter=([^>\n]*)>\n?(.*?)\n?</parameter>(?=\s*(?:<parameter=|\Z))", re.DOTALL
)
PAIR = re.compile(  # of a key without "<": keys that reach over others take quadratic time
    r"\s*<arg_key>([^<]*)</arg_key>\s*<arg_value>(.*?)</arg_value>(?=\s*(?:<arg_key>|\Z))",
    re.DOTALL,
)
KINDS = {
    str: {"string"}, bool: {"boolean"}, int: {"integer", "number"}, float: {"number"},
    list: {"array"}, type(None): {"null"},
}  # fmt: skip
WORDS = {"true": True, "false": False, "null": None, "none": None}  # also as Python writes them
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
Schemas: TypeAlias = Sequence[Mapping[str, Any]]  # of tools, as chat templates take them


def read_action(text: str, form: str, tools: Schemas = ()) -> Action:
    """Read the calls of an action that are written in this form. tools: give arguments between tags
    their types; those of other tools stay texts.
    """
    content, calls = FORMS[form](text if form in IN_TAGS else spoken(text), tools)
    return Action.of(text, content.strip(), tuple(calls))


def spoken(text: str) -> str:
    """The text without the model's thoughts; a thought inside a call belongs to the call."""
    return without(text, lambda piece: not piece.is_call)


class Piece(NamedTuple):
    """A thought, or a call in tags. inside: of a call that is closed, the text in its tags."""

    begin: int
    end: int
    is_call: bool
    inside: str | None = None


def without(text: str, drops: Callable[[Piece], bool]) -> str:
    """The text without those of its thoughts and calls in tags that are dropped; each is asked
    about once, in their order.
    """
    kept, at = "", 0
    for piece in _pieces(text):
        kept += text[at : piece.begin if drops(piece) else piece.end]
        at = piece.end
    return kept + text[at:]


def _pieces(text: str) -> Iterator[Piece]:
    """The thoughts and the calls in tags; neither is searched for others."""
    end = 0
    while found := THOUGHT_OR_CALL.search(text, end):
        inside, end = None, found.end()
        if is_call := found[0] == OPENING:
            inside, end = _block_at(text, end)
        yield Piece(found.start(), end, is_call, inside)


def split_thought(text: str, begun: bool = False) -> tuple[str, str]:
    """The thought with which an answer begins, and the rest. begun: its prompt opens the thought,
    which then ends with the answer where nothing closes it.
    """
    text = text.lstrip()
    found = THOUGHT.match(text)
    if found is None:
        return (text.rstrip(), "") if begun else ("", text)
    thought = found[0].removeprefix(OPEN_THOUGHT).removesuffix(CLOSE_THOUGHT)
    return thought.strip(), text[found.end() :].lstrip()


def thought_of(text: str) -> str:
    """The model's last finished thought; empty where it finished none."""
    thought, ended, _ = text.rpartition(CLOSE_THOUGHT)
    return thought.rpartition(OPEN_THOUGHT)[2].strip() if ended else ""


def form_of(template: str) -> str:
    """The form of calls that a chat template asks for; empty where strop cannot read it."""
    if OPENING in template:
        if "<function=" in template:
            return "qwen3_coder"
        return "glm45" if "<arg_key>" in template else "hermes"
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


def _blocks(one: "ReadsOne", text: str, tools: Schemas) -> Read:
    """The calls in tags, each of which `one` reads."""
    calls: list[ParsedCall] = []

    def take(piece: Piece) -> bool:
        if piece.inside is not None:
            calls.append(one(piece.inside, tools))
        elif piece.is_call:
            calls.append(ParsedCall(problem=UNCLOSED_BLOCK, detail=f"{CLOSING} is missing"))
        return True

    return without(text, take), calls


def _block_at(text: str, at: int) -> tuple[str | None, int]:
    """What the block holds whose opening tag ends here, None where nothing closes it, and where it
    ends. A tag inside its JSON text belongs to that text.
    """
    with suppress(ValueError, RecursionError):
        if begins := BEGINS.match(text, at):
            place = begins.end()  # a slice, since an error of JSON counts the lines before it
            end = place + _first_value(text[place:])[1]
            if closing := CLOSES.match(text, end):
                return text[at:end], closing.end()
    begin = text.find(OPENING, at)
    begin = len(text) if begin < 0 else begin
    end = text.find(CLOSING, at, begin)  # not beyond it, for a policy may write thousands of blocks
    return (None, begin) if end < 0 else (text[at:end], end + len(CLOSING))


def _hermes(text: str, tools: Schemas) -> ParsedCall:
    """The call in one JSON text."""
    try:
        return call_of(_value(text))
    except (ValueError, RecursionError) as error:
        return ParsedCall(problem=INVALID_JSON, detail=str(error))


def _qwen3_coder(inside: str, tools: Schemas) -> ParsedCall:
    found = FUNCTION.fullmatch(inside)
    name, texts = found.groups() if found else ("", inside)
    return _between_tags(name.strip(), texts, PARAMETER, "qwen3_coder", tools)


def _glm45(inside: str, tools: Schemas) -> ParsedCall:
    name, tag, rest = inside.partition("<arg_key>")
    return _between_tags(name.strip(), tag + rest, PAIR, "glm45", tools)


def _between_tags(
    name: str, texts: str, argument: re.Pattern[str], form: str, tools: Schemas
) -> ParsedCall:
    """The call of this name with its arguments from texts, which hold nothing else."""
    schemas, arguments, at = _properties(name, tools), dict[str, Any](), 0
    while found := argument.match(texts, at):
        key, at = found[1].strip(), found.end()
        arguments[key] = _valued(found[2], schemas.get(key))
    if texts[at:].strip() or re.search(r'[\s<>{}"]', name):
        return ParsedCall(problem=MALFORMED, detail=WRITTEN[form].strip())
    if not name:
        return ParsedCall(problem=MISSING_NAME, detail=WRITTEN[form].strip())
    return ParsedCall(name, arguments)


def _properties(name: str, tools: Schemas) -> Mapping[str, Any]:
    """The schemas of a tool's arguments; empty where it is unknown, or a client gave none."""
    for function in functions_of(tools):
        if function.get("name") == name:
            parameters = function.get("parameters")
            found = parameters.get("properties") if isinstance(parameters, Mapping) else None
            return found if isinstance(found, Mapping) else {}
    return {}


def functions_of(tools: Schemas) -> list[Mapping[str, Any]]:
    """The functions of the tools that have one or are one; a client may write anything."""
    found = [tool.get("function", tool) for tool in tools]
    return [each for each in found if isinstance(each, Mapping)]


def _valued(text: str, schema: Any) -> Any:
    """The value that a text stands for: JSON of a type that the schema allows, else the text, which
    is also that of a schema without types.
    """
    types, value = _types(schema) or {"string"}, WORDS.get(text.strip().lower(), text)
    if value is text:
        with suppress(ValueError, RecursionError):
            value = _value(text)
    untold = isinstance(value, str) or ("string" in types and not types & _kinds(value))
    return text if untold else value


def _types(schema: Any) -> set[str]:
    """The types that a schema allows; empty where it names none."""
    if not isinstance(schema, Mapping):
        return set()
    named = [schema.get("type"), *_listed(schema, "type")]
    types = {each for each in named if isinstance(each, str)}
    types |= {"null"} if schema.get("nullable") else set()
    branches = [each for key in ("anyOf", "oneOf", "allOf") for each in _listed(schema, key)]
    return types.union(*map(_kinds, _listed(schema, "enum")), *map(_types, branches))


def _kinds(value: Any) -> set[str]:
    """The types of JSON schemas that a value has."""
    return KINDS.get(type(value), {"object"})


def _listed(schema: Mapping[str, Any], key: str) -> list[Any]:
    """The list at a key; empty where a client wrote something else there."""
    found = schema.get(key)
    return found if isinstance(found, list) else []


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


def _llama3(text: str, tools: Schemas) -> Read:
    before, tagged, after = text.partition(PYTHON_TAG)
    if tagged:
        return before, _several(after)
    return _json(text, tools)


def _json(text: str, tools: Schemas) -> Read:
    fenced = FENCE.match(text)
    inside = fenced[1] if fenced else text
    if inside.lstrip()[:1] == "{" or re.match(r"\s*\[\s*\{", inside):
        return "", _several(inside)
    return text, []


def _text(text: str, tools: Schemas) -> Read:
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


ReadsOne: TypeAlias = Callable[[str, Schemas], ParsedCall]
IN_TAGS: Mapping[str, ReadsOne] = {
    "hermes": _hermes, "qwen3_coder": _qwen3_coder, "glm45": _glm45,
}  # fmt: skip
FORMS: Mapping[str, Callable[[str, Schemas], Read]] = {
    **{form: partial(_blocks, one) for form, one in IN_TAGS.items()},
    "llama3": _llama3, "json": _json, "text": _text,
}  # fmt: skip


def tagged_calls(action: str) -> list[Call]:
    """The calls `<tool_call>{"name": ..., "arguments": {...}}</tool_call>` of an action, in order,
    but for those in thoughts. Any other text between the tags is a call without a name.
    """
    return [read_call(each.inside) for each in _pieces(action) if each.inside is not None]


def read_call(given: object) -> Call:
    """A call from a JSON object or its text; arguments that are no object count as none."""
    found = _parsed(given)
    if not isinstance(found, Mapping) or not isinstance(found.get("name"), str):
        return Call("", {})
    arguments = _parsed(found.get("arguments"))
    return Call(found["name"], arguments if isinstance(arguments, Mapping) else {})


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
    "qwen3_coder": "Call one with <tool_call><function=NAME><parameter=KEY>VALUE</parameter>"
    "</function></tool_call>, a parameter for each argument.\n",
    "glm45": "Call one with <tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value>"
    "</tool_call>, a key and a value for each argument.\n",
    "llama3": 'Call one with {"name": NAME, "parameters": {...}} as the whole answer.\n',
    "json": 'Call one with {"name": NAME, "arguments": {...}} as the whole answer.\n',
    "text": "Call one with a line: call NAME {ARGUMENTS AS JSON}\n",
}
