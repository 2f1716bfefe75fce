"""HTTP over connections that are kept, from any thread; a loop of this process makes the requests.

No redirect is followed (another place may not see the key), and a limit of time is of the whole
answer, the name's lookup and the wait for a connection included.
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

if TYPE_CHECKING:
    import httpx2
    import tenacity

T = TypeVar("T")
RETRIED = frozenset((408, 409, 425, 429, 500, 502, 503, 504))
UNREAD = frozenset((400, 413, 422))  # what was sent is not taken, whenever it comes
MAX_WAIT_SECONDS = 60.0  # between two tries
JITTER = 0.25  # share by which a wait is longer or shorter, so that many do not come back at once
# Of a connection that nothing uses. Servers close theirs after 5 s and more: never in that moment.
KEEP_SECONDS = 4.0
_RANDOM = random.SystemRandom()  # takes no number from the generator of a user's code


class Failed(OSError):
    """A request that failed. again: another try may help. after: seconds, as the server says.
    status: of its answer; 0: there was none, or it did not tell.
    """

    def __init__(self, why: str, again: bool = False, after: str = "", status: int = 0) -> None:
        super().__init__(why)
        self.again, self.after, self.status = again, after, status


class TooLong(OSError):
    """An answer of more bytes than are wanted."""


class Reply(NamedTuple):
    """What a server answered; `headers` have small letters."""

    status: int
    headers: dict[str, str]
    content: bytes


class Call:
    """A request on its way that another thread may break off; it then raises OSError."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self._lock = threading.Lock()
        self._task: concurrent.futures.Future[Any] | None = None

    def cancel(self) -> None:
        """Break it off, whether it has begun or not."""
        with self._lock:
            self.over.set()
            if self._task is not None:
                self._task.cancel()

    def has(self, task: concurrent.futures.Future[Any]) -> None:
        """It is this task from now on."""
        with self._lock:
            if self.over.is_set():
                task.cancel()
            self._task = task


@dataclass(frozen=True)
class Retries:
    """How often a request is tried, and how long it waits between two tries.

    tries: in all. first_wait_seconds: before the second; each further wait is twice as long, or as
    long as the server asks for where that is longer.
    """

    tries: int = 1
    first_wait_seconds: float = 1.0

    @property
    def longest_wait(self) -> float:
        """Seconds that all waits together may take."""
        return (self.tries - 1) * MAX_WAIT_SECONDS * (1 + JITTER)

    def __call__(self, attempt: Callable[[], T], sleep: Callable[[float], Any] = time.sleep) -> T:
        """What `attempt` gives. It is called again after a TimeoutError, and after a Failed that
        says so; the last error is raised.
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
        return min(max(asked, doubled), MAX_WAIT_SECONDS) * _RANDOM.uniform(1 - JITTER, 1 + JITTER)


ONCE = Retries()


def _another_may_help(error: BaseException) -> bool:
    return isinstance(error, TimeoutError) or (isinstance(error, Failed) and error.again)


class Http:
    """Requests whose connections are kept for the next; `close` lets them go.

    timeout_seconds: of one answer, to its last byte. most_at_once: connections, none: no limit.
    most_bytes: of an answer, 0: no limit.
    """

    def __init__(
        self,
        timeout_seconds: float,
        headers: Mapping[str, str] | None = None,
        most_at_once: int | None = None,
        most_bytes: int = 0,
    ) -> None:
        import httpx2  # a tenth of a second, which only those who ask a server have to spare

        self.timeout_seconds, self.most_bytes = timeout_seconds, most_bytes
        self._broken = (httpx2.HTTPError, httpx2.InvalidURL)
        self._loop = loop_of(os.getpid())
        self._client = httpx2.AsyncClient(
            headers=headers,
            timeout=None,  # the limit is of the whole
            limits=httpx2.Limits(
                max_connections=most_at_once,
                max_keepalive_connections=most_at_once,
                keepalive_expiry=KEEP_SECONDS,
            ),
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
        """The answer, whatever its status; `body` is sent as JSON. call: what breaks it off.

        Raises TimeoutError once the limit is over, TooLong, and ConnectionError for all else that
        is no whole answer.
        """
        if call is not None and call.over.is_set():
            raise ConnectionAbortedError("broken off")
        limit = timeout_seconds or self.timeout_seconds
        task = asyncio.run_coroutine_threadsafe(self._send(method, url, body, limit), self._loop)
        if call is not None:
            call.has(task)
        try:
            return task.result()
        except concurrent.futures.CancelledError:
            raise ConnectionAbortedError("broken off") from None
        except BaseException:
            task.cancel()  # where it goes on: Ctrl-C came here
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
        """What `read` makes of the answer to a POST of JSON; to a GET where there is no body.

        A try fails where no answer comes, where its status is no success, and where `read` raises
        Failed. Raises Failed, TimeoutError and TooLong.
        """
        return retries(lambda: read(self._success(url, body, call, timeout_seconds)))

    def close(self) -> None:
        """Let the connections go."""
        if (closing := self._let_go()) is not None:
            concurrent.futures.wait([closing], 5.0)

    def _success(self, url: str, body: Any, call: Call | None, timeout_seconds: float) -> bytes:
        """What a server answers to one try that succeeds."""
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
                body_read = await self._said(response)
                return Reply(response.status_code, dict(response.headers), body_read)
        except TimeoutError:
            raise TimeoutError("timed out") from None
        except self._broken as error:
            raise ConnectionError(_words(error)) from error

    async def _said(self, response: httpx2.Response) -> bytes:
        content = bytearray()
        try:
            async for piece in response.aiter_bytes():
                content += piece
                if self.most_bytes and len(content) > self.most_bytes:
                    raise TooLong(f"an answer of more than {self.most_bytes} bytes")
        except self._broken as error:
            if response.is_success:
                raise
            content += f"({_words(error)})".encode()  # the status says that it failed
        return bytes(content)


def _message(content: bytes) -> str:
    """What the body of an error says, on one line."""
    found: Any = content.decode("utf-8", "replace")
    with suppress(ValueError, RecursionError):  # no JSON: the text stands for itself
        found = json.loads(found)
    while isinstance(found, dict):
        found = found.get("error") or found.get("message") or found.get("detail") or str(found)
    return " ".join(str(found).split())[:500]


def _words(error: BaseException) -> str:
    """The system's own words for what broke, where it has some, else the library's."""
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
    """The loop of a process, by its number, in which all that waits for servers runs."""
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
