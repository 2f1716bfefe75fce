"""HTTP over persistent connections, from any thread; a loop of this process makes the requests.

No redirect is followed (another server must not see the key), and a time limit covers the whole
answer, including the name's lookup and the wait for a connection.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import json
import os
import random
import ssl
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

from strop.support.errors import UserError

if TYPE_CHECKING:
    import httpx2
    import tenacity

T = TypeVar("T")
RETRIED = frozenset((408, 409, 425, 429, *range(500, 600)))
UNREAD = frozenset((400, 413, 422))  # the server does not accept this content at any time
MAX_WAIT_SECONDS = 60.0  # between two tries
JITTER = 0.25  # share by which a wait is longer or shorter, so that clients do not retry at once
# How long an idle connection is kept: servers close theirs after 5 s or more, so never before.
KEEP_SECONDS = 4.0
LOCAL = ("all://127.0.0.1", "all://localhost")  # a proxy's own machine would be another one
_RANDOM = random.SystemRandom()  # leaves the generator of a user's code alone


class Failed(OSError):
    """A request that failed. again: another try may help. after: the server's Retry-After, in
    seconds. status: of the answer; 0: there was none, or it is unknown.
    """

    def __init__(self, why: str, again: bool = False, after: str = "", status: int = 0) -> None:
        super().__init__(why)
        self.again, self.after, self.status = again, after, status


class TooLong(OSError):
    """An answer with more bytes than allowed."""


class Reply(NamedTuple):
    """A server's answer; the names of `headers` are in lower case."""

    status: int
    headers: dict[str, str]
    content: bytes


class Call:
    """A running request that another thread may cancel; it then raises OSError."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self._lock = threading.Lock()
        self._task: concurrent.futures.Future[Any] | None = None

    def cancel(self) -> None:
        """Cancel the request, whether it has started or not."""
        with self._lock:
            self.over.set()
            if self._task is not None:
                self._task.cancel()

    def has(self, task: concurrent.futures.Future[Any]) -> None:
        """Set the task of the request."""
        with self._lock:
            if self.over.is_set():
                task.cancel()
            self._task = task


@dataclass(frozen=True)
class Retries:
    """How often a request is tried, and how long it waits between two tries.

    tries: in all. first_wait_seconds: before the second; each further wait is twice as long, or as
    long as the server requests where that is longer; at most about a minute.
    """

    tries: int = 1
    first_wait_seconds: float = 1.0

    @property
    def longest_wait(self) -> float:
        """The largest sum of all waits, in seconds."""
        return (self.tries - 1) * MAX_WAIT_SECONDS * (1 + JITTER)

    def __call__(self, attempt: Callable[[], T], sleep: Callable[[float], Any] = time.sleep) -> T:
        """Return the result of `attempt`. It is retried after a TimeoutError, and after a Failed
        with `again`; the last error is raised.
        """
        import tenacity

        return tenacity.Retrying(
            stop=tenacity.stop_after_attempt(self.tries),
            wait=self._wait,
            retry=tenacity.retry_if_exception(_another_may_help),
            sleep=sleep,
            reraise=True,
        )(attempt)

    def _wait(self, state: tenacity.RetryCallState) -> float:
        failed = state.outcome.exception() if state.outcome is not None else None
        after = failed.after if isinstance(failed, Failed) else ""
        asked = float(after) if after.isascii() and after.isdigit() else 0.0
        doubled = self.first_wait_seconds * 2.0 ** min(state.attempt_number - 1, 30)
        least = 1.0 if asked >= doubled else 1 - JITTER  # never before the server's own time
        return min(max(asked, doubled), MAX_WAIT_SECONDS) * _RANDOM.uniform(least, 1 + JITTER)


ONCE = Retries()


def _another_may_help(error: BaseException) -> bool:
    return isinstance(error, TimeoutError) or (isinstance(error, Failed) and error.again)


class Http:
    """A client that keeps its connections for further requests; `close` closes them.

    timeout_seconds: of one answer, to its last byte. most_at_once: connections, None: no limit.
    most_bytes: of an answer, 0: no limit. socket: path of the Unix socket at which the servers of
    this machine answer, empty: at their ports.
    """

    def __init__(
        self,
        timeout_seconds: float,
        headers: Mapping[str, str] | None = None,
        most_at_once: int | None = None,
        most_bytes: int = 0,
        socket: str = "",
    ) -> None:
        import httpx2  # takes a tenth of a second, so it is imported only where it is needed

        self.timeout_seconds, self.most_bytes = timeout_seconds, most_bytes
        self._broken = (httpx2.HTTPError, httpx2.InvalidURL)
        self._loop = loop_of(os.getpid())
        limits = httpx2.Limits(
            max_connections=most_at_once,
            max_keepalive_connections=most_at_once,
            keepalive_expiry=KEEP_SECONDS,
        )
        here = httpx2.AsyncHTTPTransport(uds=socket, limits=limits) if socket else None
        self._client = httpx2.AsyncClient(
            headers=headers,
            timeout=None,  # the limit covers the whole answer
            mounts=dict.fromkeys(LOCAL, here),  # None: without the proxy of the environment
            limits=limits,
        )
        self._let_go = weakref.finalize(self, _close, self._client, self._loop)
        self._let_go.atexit = False

    def send(
        self,
        method: str,
        url: str,
        body: Any = None,
        call: Call | None = None,
        timeout_seconds: float = 0.0,
    ) -> Reply:
        """Send a request and return the answer with any status; `body` is sent as JSON. call: can
        cancel the request.

        Raises TimeoutError after the time limit, TooLong, and ConnectionError in all other cases
        without a complete answer.
        """
        if call is not None and call.over.is_set():
            raise ConnectionAbortedError("broken off")
        if why := why_no_place(url):
            raise ConnectionError(f"InvalidURL: {why}")
        limit = timeout_seconds or self.timeout_seconds
        task = asyncio.run_coroutine_threadsafe(self._send(method, url, body, limit), self._loop)
        if call is not None:
            call.has(task)
        try:
            return task.result()
        except concurrent.futures.CancelledError:
            raise ConnectionAbortedError("broken off") from None
        except BaseException:
            task.cancel()  # it still runs: Ctrl-C arrived in this thread
            raise

    def ask(
        self,
        url: str,
        body: Any = None,
        *,
        read: Callable[[bytes], T],
        retries: Retries = ONCE,
        call: Call | None = None,
        timeout_seconds: float = 0.0,
    ) -> T:
        """POST JSON, or GET where there is no body, and return `read` of the answer's content.

        A try fails without an answer, with a status that is no success, and where `read` raises
        Failed. Raises Failed, TimeoutError and TooLong.
        """
        return retries(lambda: read(self._success(url, body, call, timeout_seconds)))

    def close(self) -> None:
        """Close the connections."""
        if (closing := self._let_go()) is not None:
            concurrent.futures.wait([closing], 5.0)

    def _success(self, url: str, body: Any, call: Call | None, timeout_seconds: float) -> bytes:
        """The content of the answer to one successful try."""
        try:
            reply = self.send("GET" if body is None else "POST", url, body, call, timeout_seconds)
        except (TimeoutError, TooLong):
            raise
        except OSError as error:
            raise Failed(str(error), again=True) from error
        if 200 <= reply.status < 300:
            return reply.content
        why = _message(reply.content)
        if 300 <= reply.status < 400:
            place = reply.headers.get("location", "nowhere")[:200]
            why = f"a redirect to {place}, which the key does not follow: mend the url"
        after = reply.headers.get("retry-after", "")
        again = reply.status in RETRIED
        raise Failed(f"HTTP {reply.status}: {why}", again, after, reply.status)

    async def _send(self, method: str, url: str, body: Any, limit: float) -> Reply:
        content = None if body is None else json.dumps(body).encode()
        headers = {} if body is None else {"Content-Type": "application/json"}
        try:
            async with (
                asyncio.timeout(limit),
                self._client.stream(method, url, content=content, headers=headers) as response,
            ):
                body_read = await self._body(response)
                return Reply(response.status_code, dict(response.headers), body_read)
        except TimeoutError:
            raise TimeoutError("timed out") from None
        except self._broken as error:
            raise ConnectionError(_words(error)) from error

    async def _body(self, response: httpx2.Response) -> bytes:
        content = bytearray()
        try:
            async for piece in response.aiter_bytes():
                content += piece
                if self.most_bytes and len(content) > self.most_bytes:
                    raise TooLong(f"an answer of more than {self.most_bytes} bytes")
        except self._broken as error:
            if response.is_success:
                raise
            content += f"({_words(error)})".encode()  # the status marks it as failed
        return bytes(content)


def why_no_place(url: object) -> str:
    """Why this is not the address of a server; empty where it is one."""
    try:
        place = urlsplit(str(url))
        _ = place.port  # raises ValueError for what is no port
    except ValueError as error:
        return str(error)
    fits = place.scheme in ("http", "https") and place.hostname
    return "" if fits else "it must begin with http:// or https:// and a host"


def key_of(variable: str, option: str, whose: str = "the server's", where: str = "") -> str:
    """The key in the environment variable that an option names, empty where it names none. Raises
    UserError, beginning with `where`, for one that is not set or that no header takes.
    """
    key = os.environ.get(variable, "") if variable else ""
    if variable and not key:
        raise UserError(
            f"{where}the environment variable {variable} is not set: set it to {whose} key, or "
            f"leave {option} out"
        )
    if not key.isprintable() or not key.isascii() or key.endswith(" "):
        raise UserError(  # an error of the request itself would show the key
            f"{where}the key in {variable} has a character that no header takes, such as a line's "
            "end or a blank behind it: set it without"
        )
    return key


def _message(content: bytes) -> str:
    """The message in the body of an error, on one line."""
    found: Any = content.decode("utf-8", "replace")
    with suppress(ValueError, RecursionError):  # not JSON: the text is the message
        found = json.loads(found)
    while isinstance(found, dict):
        found = found.get("error") or found.get("message") or found.get("detail") or str(found)
    return " ".join(str(found).split())[:500]


def _words(error: BaseException) -> str:
    """The system's message for an error, where it has one, else the library's."""
    cause, deepest = error, error
    while (below := cause.__cause__ or cause.__context__) is not None:
        cause = below
        deepest = cause if isinstance(cause, OSError) and cause.errno else deepest
    if isinstance(deepest, OSError):
        lookup_or_tls = (deepest.errno or 0) < 0 or isinstance(deepest, ssl.SSLError)
        own = deepest.strerror if lookup_or_tls else os.strerror(deepest.errno or 0)
        return f"{type(deepest).__name__}: {own}"
    return f"{type(error).__name__}: {error}"


_starting = threading.Lock()


def loop_of(process: int) -> asyncio.AbstractEventLoop:
    """The loop of a process, by its number, in which all requests to servers run."""
    with _starting:
        return _started(process)


@functools.cache
def _started(process: int) -> asyncio.AbstractEventLoop:
    """The loop of a process, in a thread of its own that ends with it."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="strop-http", daemon=True).start()
    return loop


def _close(
    client: httpx2.AsyncClient, loop: asyncio.AbstractEventLoop
) -> concurrent.futures.Future[None]:
    return asyncio.run_coroutine_threadsafe(client.aclose(), loop)
