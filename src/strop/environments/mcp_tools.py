"""Tools of an MCP server that runs as a process and communicates over its standard streams.

Every episode has a server of its own, started at the first call and ended, with all processes that
it started, when the episode ends. The package `mcp` implements the protocol; process and pipes are
strop's own, so that a server which hangs is ended at once.
"""

import asyncio
import shlex
import subprocess
import tempfile
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import cache
from typing import Any

from strop.environments.tools import Tool, ToolError, ToolsUnavailable, ToolTimeout
from strop.support import processes
from strop.support.errors import UserError, needs_extra

START_SECONDS = 60.0  # for a server to start and to list its tools
END_SECONDS = 0.2  # between a failure and the end of the process that caused it
MOST_LINE = 1 << 24  # bytes of a message; a server that writes a longer one is ended
SHOWN_ERRORS = 300  # characters of what a server wrote to its error stream


class McpTools:
    """The tools of a server, for one episode after another.

    command: as in a shell. env: variables beside the few that a server inherits (PATH, HOME, ...).
    Raises UserError where the server does not start or has no tools.
    """

    def __init__(self, command: str, env: Mapping[str, str] | None = None) -> None:
        self.command = tuple(shlex.split(command))
        if not self.command:
            raise UserError("tools: mcp must be the command of a server, such as python server.py")
        self.env = tuple(sorted((env or {}).items()))
        self._server: McpServer | None = None
        self.tools = tuple(self._tool(*each) for each in listed(self.command, self.env))

    def end(self) -> None:
        """End the episode's server, if it has started."""
        if self._server is not None:
            self._server.close()
            self._server = None

    def _begin(self) -> None:
        try:
            self._server = McpServer(self.command, dict(self.env))
            self._server.wait(START_SECONDS)
        except (UserError, ToolError) as error:
            self.end()
            raise ToolsUnavailable(f"the MCP server {shlex.join(self.command)}: {error}") from error

    def _tool(self, name: str, description: str, parameters: Mapping[str, Any]) -> Tool:
        def call(seconds: float, /, **arguments: Any) -> str:
            if self._server is None:
                self._begin()
            assert self._server is not None
            return self._server.call(name, arguments, seconds)

        function = {"name": name, "description": description, "parameters": parameters}
        return Tool({"type": "function", "function": function}, call, has_limit=True)


@cache
def listed(
    command: tuple[str, ...], env: tuple[tuple[str, str], ...]
) -> tuple[tuple[str, str, Mapping[str, Any]], ...]:
    """Name, description and schema of a server's tools. Raises UserError."""
    server = McpServer(command, dict(env))
    try:
        server.wait(START_SECONDS)
        found = server.asked(_all_tools, START_SECONDS)
    except ToolError as error:
        raise UserError(f"the MCP server {shlex.join(command)}: {error}") from error
    finally:
        server.close()
    if not found:
        raise UserError(f"the MCP server {shlex.join(command)} has no tools")
    return tuple((tool.name, tool.description or "", tool.input_schema) for tool in found)


async def _all_tools(session: Any) -> list[Any]:
    from mcp.types import PaginatedRequestParams

    found: list[Any] = []
    cursor = None
    while True:
        params = PaginatedRequestParams(cursor=cursor) if cursor else None
        page = await session.list_tools(params=params)
        found += page.tools
        cursor = page.next_cursor
        if not cursor:
            return found


class McpServer:
    """A server's process, and the thread that communicates with it.

    Raises UserError where it cannot start.
    """

    def __init__(self, command: Sequence[str], env: Mapping[str, str]) -> None:
        with needs_extra("tools of an MCP server need the package mcp", "mcp"):
            from mcp.client.stdio import get_default_environment
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115
        try:
            self.process = processes.start(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors,
                env=get_default_environment() | dict(env),
            )  # fmt: skip
        except OSError as error:
            self.errors.close()
            raise UserError(f"the MCP server {shlex.join(command)}: {error}") from error
        self.began: Future[Any] = Future()  # the session, once it is initialised
        self.loop = asyncio.new_event_loop()
        self.closing = asyncio.Event()
        self.thread = threading.Thread(target=self._run, daemon=True, name="strop-mcp")
        self.thread.start()

    def wait(self, seconds: float) -> None:
        """Wait until the session has started. Raises ToolError."""
        self._result(self.began, seconds, "it did not begin")

    def call(self, name: str, arguments: Mapping[str, Any], seconds: float) -> str:
        """Call a tool and return its answer as text. Raises ToolError, ToolTimeout."""
        answer = self.asked(lambda session: session.call_tool(name, dict(arguments)), seconds)
        text = "\n".join(
            each.text if each.type == "text" else f"({each.type})" for each in answer.content
        )
        if answer.is_error:
            raise ToolError(text or "the tool says that it failed")
        return text

    def asked(self, ask: Callable[[Any], Awaitable[Any]], seconds: float) -> Any:
        """Send a request and return its result. Raises ToolError, ToolTimeout."""
        if self.process.poll() is not None or not self.thread.is_alive():
            raise ToolError(self._how_it_ended())

        async def asking() -> Any:
            return await ask(self.began.result())

        future = asyncio.run_coroutine_threadsafe(asking(), self.loop)
        try:
            return self._result(future, seconds, "the call took")
        finally:
            future.cancel()

    def close(self) -> None:
        """End the process with its descendants, and the thread."""
        processes.end(self.process)
        with suppress(RuntimeError):  # the loop is closed where the session has failed
            self.loop.call_soon_threadsafe(self.closing.set)
        self.thread.join()
        for stream in (self.process.stdin, self.process.stdout, self.errors):
            assert stream is not None
            with suppress(OSError):  # unwritten data is of no use any more
                stream.close()

    # ---- from here on: how

    def _result(self, future: "Future[Any]", seconds: float, what: str) -> Any:
        try:
            return future.result(seconds)
        except TimeoutError as error:
            if not future.done():
                raise ToolTimeout(f"{what} over {seconds:g} s") from error
            raise ToolError(f"TimeoutError: {error}") from error
        except Exception as error:
            with suppress(subprocess.TimeoutExpired):  # its streams may close before it has ended
                self.process.wait(END_SECONDS)
            ended = self.process.poll() is not None
            why = self._how_it_ended() if ended else f"{type(error).__name__}: {error}"
            raise ToolError(why) from error

    def _how_it_ended(self) -> str:
        code = self.process.poll()
        self.errors.seek(0)
        stderr = self.errors.read()[-SHOWN_ERRORS:].decode("utf-8", "replace").strip()
        ended = "its session has ended" if code is None else f"the server has ended (code {code})"
        return f"{ended}: {stderr}" if stderr else ended

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_until_complete(self._session())
        except BaseException as error:
            if not self.began.done():
                self.began.set_exception(ToolError(str(error) or type(error).__name__))
        finally:
            with suppress(Exception):
                self.loop.run_until_complete(self.loop.shutdown_default_executor())
            self.loop.close()

    async def _session(self) -> None:
        import anyio
        from mcp import ClientSession

        to_session, read = anyio.create_memory_object_stream[Any](0)
        write, to_server = anyio.create_memory_object_stream[Any](0)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._listen, to_session)
            tasks.start_soon(self._speak, to_server)
            async with ClientSession(read, write) as session:
                hello = asyncio.ensure_future(session.initialize())
                ended = asyncio.ensure_future(self.closing.wait())
                await asyncio.wait((hello, ended), return_when=asyncio.FIRST_COMPLETED)
                if hello.done() and (error := hello.exception()):
                    self.began.set_exception(error)
                elif hello.done():
                    self.began.set_result(session)
                    await ended
                for task in (hello, ended):
                    task.cancel()
            tasks.cancel_scope.cancel()

    async def _listen(self, to_session: Any) -> None:
        """Forward the lines of the server; a line that is no message is forwarded as an error."""
        from mcp.shared.message import SessionMessage
        from mcp.types.jsonrpc import jsonrpc_message_adapter

        stdout = self.process.stdout
        assert stdout is not None
        async with to_session:
            while line := await asyncio.to_thread(stdout.readline, MOST_LINE):
                if len(line) >= MOST_LINE:
                    return
                try:
                    message = SessionMessage(
                        jsonrpc_message_adapter.validate_json(line, by_name=False)
                    )
                except ValueError as error:
                    await to_session.send(error)
                else:
                    await to_session.send(message)

    async def _speak(self, to_server: Any) -> None:
        stdin = self.process.stdin
        assert stdin is not None
        async with to_server:
            async for each in to_server:
                line = each.message.model_dump_json(by_alias=True, exclude_unset=True) + "\n"
                try:
                    await asyncio.to_thread(_write, stdin, line.encode())
                except OSError:  # the server has ended, which the other task notices
                    return


def _write(stream: Any, data: bytes) -> None:
    stream.write(data)
    stream.flush()
