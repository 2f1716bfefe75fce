"""Tools that an environment offers, and how calls of them are checked, made and shown."""

import asyncio
import inspect
import json
import os
import queue
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from strop.data.tool_calls import (
    INVALID_JSON,
    MALFORMED,
    MISSING_NAME,
    UNCLOSED_BLOCK,
    UNKNOWN_TOOL,
    WRONG_ARGUMENTS,
    ParsedCall,
)
from strop.support.errors import UserError

OK, FAILED, TIMEOUT, OVER_LIMIT = "ok", "failed", "timeout", "over_limit"
# All statuses of calls.
STATUSES = (
    OK, INVALID_JSON, UNCLOSED_BLOCK, MISSING_NAME, MALFORMED, UNKNOWN_TOOL,
    WRONG_ARGUMENTS, OVER_LIMIT, FAILED, TIMEOUT,
)  # fmt: skip
ANSWER_SECONDS = 1.0  # in which the loop of asynchronous calls answers, unless one blocks it


class ToolError(Exception):
    """A tool reports that a call has failed; the policy reads the message."""


class ToolTimeout(ToolError):
    """A call exceeded its time limit."""


class ToolsUnavailable(Exception):
    """A tool could not be called, through no fault of the call: the episode is not scored."""


@dataclass(frozen=True)
class ToolAnswer:
    """The result of a call. status: `ok`, or the kind of failure; text: what the policy reads."""

    name: str
    arguments: Any
    status: str
    text: str

    @property
    def message(self) -> dict[str, Any]:
        """The answer as a message for a chat template."""
        return {"role": "tool", "name": self.name, "content": self.text}

    @property
    def record(self) -> dict[str, Any]:
        """The answer as an entry of the table of rollouts."""
        return {
            "name": self.name, "arguments": self.arguments, "status": self.status,
            "answer": self.text,
        }  # fmt: skip


@dataclass(frozen=True)
class Tool:
    """A function that the policy may call. schema: as chat templates take it, {"type": "function",
    "function": {"name", "description", "parameters"}}. has_limit: it keeps to a time limit itself,
    in seconds, which is given before the arguments of the call and by position.
    """

    schema: Mapping[str, Any]
    call: Callable[..., Any]
    has_limit: bool = False

    @property
    def name(self) -> str:
        """The name by which the policy calls it."""
        return str(self.schema["function"]["name"])

    @property
    def parameters(self) -> Mapping[str, Any]:
        """JSON schema of its arguments."""
        return self.schema["function"].get("parameters", {})

    def problem(self, arguments: Any) -> str:
        """What is wrong with the arguments, by the schema; empty if they are valid."""
        import jsonschema

        if not isinstance(arguments, Mapping):
            return f"the arguments must be an object, they are {json.dumps(arguments)}"
        validator = jsonschema.validators.validator_for(self.parameters)(self.parameters)
        error = jsonschema.exceptions.best_match(validator.iter_errors(arguments))
        if error is None:
            return ""
        where = ".".join(map(str, error.absolute_path))
        return f"{where}: {error.message}" if where else str(error.message)


def tools_of(given: Iterable[Any]) -> tuple[Tool, ...]:
    """Convert functions to tools. Raises UserError for one without a schema and a repeated name."""
    found = tuple(each if isinstance(each, Tool) else tool_of(each) for each in given)
    names = [tool.name for tool in found]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UserError(f"two tools are called {twice[0]}: give one of them another name")
    return found


def tool_of(function: Callable[..., Any]) -> Tool:
    """Make a tool of a Python function with type hints and a docstring with `Args:`.

    Raises UserError where no schema can be read from them.
    """
    from transformers.utils.chat_template_utils import get_json_schema

    name = getattr(function, "__name__", repr(function))
    try:
        schema = get_json_schema(function)
    except Exception as error:
        raise UserError(
            f"the tool {name} has no schema: {error}. Give each parameter a type and a line under "
            "Args: in the docstring"
        ) from error
    described = dict(schema["function"])
    described.pop("return", None)  # of no use to the policy, and templates would show it
    parameters = {**described["parameters"], "additionalProperties": False}
    parameters["properties"] = {
        name: _nullable(each) for name, each in parameters["properties"].items()
    }
    return Tool({"type": "function", "function": {**described, "parameters": parameters}}, function)


def _nullable(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Translate OpenAPI's `nullable` to JSON schema."""
    plain = {key: value for key, value in schema.items() if key != "nullable"}
    if schema.get("nullable") and isinstance(plain.get("type"), str):
        plain["type"] = [plain["type"], "null"]
    return plain


def answer_call(
    call: ParsedCall, tools: Sequence[Tool], seconds: float, most_characters: int
) -> ToolAnswer:
    """Check a call, make it, and return its answer, cut to `most_characters`.

    Raises ToolsUnavailable where the tool could not be called, through no fault of the call.
    """

    def reply(status: str, text: str) -> ToolAnswer:
        if len(text) > most_characters:
            text = f"{text[:most_characters]}\n({len(text) - most_characters} more characters)"
        return ToolAnswer(call.name, call.arguments, status, text)

    if call.problem:
        return reply(call.problem, f"error: {call.problem}: {call.detail}")
    tool = next((each for each in tools if each.name == call.name), None)
    if tool is None:
        known = ", ".join(each.name for each in tools)
        return reply(UNKNOWN_TOOL, f"error: {UNKNOWN_TOOL}: {call.name!r}; the tools are {known}")
    if problem := tool.problem(call.arguments):
        return reply(WRONG_ARGUMENTS, f"error: {WRONG_ARGUMENTS}: {problem}")
    try:
        if tool.has_limit:
            return reply(OK, shown(tool.call(seconds, **call.arguments)))
        return reply(OK, shown(within(seconds, lambda: tool.call(**call.arguments))))
    except ToolsUnavailable:
        raise
    except ToolTimeout as error:
        return reply(TIMEOUT, f"error: {TIMEOUT}: {error}")
    except Exception as error:
        kind = "" if isinstance(error, ToolError) else f"{type(error).__name__}: "
        return reply(FAILED, f"error: {kind}{error}")


def shown(value: Any) -> str:
    """A tool's result as text: unchanged if it is text, otherwise as JSON."""
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        return str(value)


def within(seconds: float, call: Callable[[], Any]) -> Any:
    """Run a call in a thread of its own and return its result; an asynchronous one is awaited in
    the loop of all such calls.

    Raises ToolTimeout where it takes longer. An asynchronous call is then cancelled. Python cannot
    end a thread, so any other continues beside the episode until it returns, and its value is
    discarded.
    """
    ended: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
    awaited: list[tuple[Future[Any], asyncio.AbstractEventLoop]] = []

    def run() -> None:
        try:
            value = call()
            if inspect.isawaitable(value):
                loop = _loop()
                awaited.append((asyncio.run_coroutine_threadsafe(_awaited(value), loop), loop))
                value = awaited[0][0].result()
            ended.put((value, None))
        except BaseException as error:
            ended.put((None, error))

    threading.Thread(target=run, daemon=True, name="strop-tool").start()
    try:
        value, error = ended.get(timeout=seconds)
    except queue.Empty:
        for future, loop in awaited:
            _give_up(future, loop)
        raise ToolTimeout(f"it took over {seconds:g} s") from None
    if error is not None:
        raise error if isinstance(error, Exception) else ToolError(f"{type(error).__name__}")
    return value


_loops: dict[int, asyncio.AbstractEventLoop] = {}  # of asynchronous calls, by process
_starting = threading.Lock()


def _loop() -> asyncio.AbstractEventLoop:
    """The loop of this process's asynchronous calls, in a thread of its own. It lasts for all
    calls, since clients and locks of a tool belong to the loop in which they were first used.
    """
    process = os.getpid()
    with _starting:
        if process not in _loops:
            loop = _loops[process] = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, daemon=True, name="strop-tools").start()
        return _loops[process]


def _give_up(future: "Future[Any]", loop: asyncio.AbstractEventLoop) -> None:
    """Cancel a call. Where it blocks its loop, later calls get another one."""
    future.cancel()
    try:
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(ANSWER_SECONDS)
    except TimeoutError:
        with _starting:
            if _loops.get(os.getpid()) is loop:
                del _loops[os.getpid()]


async def _awaited(value: Any) -> Any:
    try:
        return await value
    except (SystemExit, KeyboardInterrupt) as error:  # it would end the loop
        raise ToolError(type(error).__name__) from error
