"""HTTP requests with a key: no redirect is followed, and the time limit is of the whole answer."""

import contextlib
import functools
import http.client
import io
import queue
import socket
import threading
import time
import urllib.request
from typing import Any


class Call:
    """A request on its way that another thread may break off; it then raises OSError."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self._lock = threading.Lock()
        self._socket: Any = None

    def cancel(self) -> None:
        """Break it off, whether it has begun or not."""
        with self._lock:
            self.over.set()
            if self._socket is not None:
                with contextlib.suppress(OSError):  # it is closed by now
                    self._socket.shutdown(socket.SHUT_RDWR)

    def has(self, sock: Any) -> None:
        """It is this connection from now on."""
        with self._lock:
            if self.over.is_set():
                raise ConnectionAbortedError("broken off")
            self._socket = sock


def urlopen(
    request: urllib.request.Request, timeout_seconds: float, call: Call | None = None
) -> Any:
    """The response; what reads it, too, raises TimeoutError once `timeout_seconds` are over.

    The name's lookup counts as well. Raises HTTPError for a status that is no success, a redirect
    among them (another place may not see the key), OSError, and http.client.HTTPException for what
    is not HTTP. call: what breaks it off.
    """
    request.call = call  # type: ignore[attr-defined]
    return _OPENER.open(request, timeout=timeout_seconds)


class _Timed(io.RawIOBase):
    """What arrives on a socket until a moment, however slowly it drips."""

    def __init__(self, sock: Any, deadline: float) -> None:
        self.sock, self.deadline = sock, deadline
        self.stream = sock.makefile("rb", buffering=0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self.sock.settimeout(_left(self.deadline))
        return int(self.stream.readinto(buffer))

    def close(self) -> None:
        self.stream.close()
        super().close()


class _Source:
    """A socket as a response takes it."""

    def __init__(self, sock: Any, deadline: float) -> None:
        self.raw = _Timed(sock, deadline)

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(self.raw)


class _Connection(http.client.HTTPConnection):
    """A connection for one request, with one moment at which all of it is over."""

    def __init__(self, *arguments: Any, call: Call | None = None, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.deadline = time.monotonic() + float(self.timeout or 0)
        self.call = call
        self._create_connection = self._reach

    def connect(self) -> None:
        super().connect()
        self.sock.settimeout(_left(self.deadline))
        if self.call is not None:
            self.call.has(self.sock)

    def _reach(self, address: tuple[str, int], timeout: Any, source: Any) -> socket.socket:
        """A connection to the first of a name's addresses that takes one."""
        for place in (places := _addresses(*address, self.deadline)):
            try:
                return socket.create_connection(place, _left(self.deadline), source)
            except OSError:
                if place == places[-1]:
                    raise
        raise OSError(f"{address[0]} has no address")

    def response_class(self, sock: Any, **options: Any) -> http.client.HTTPResponse:  # type: ignore[override]
        return http.client.HTTPResponse(_Source(sock, self.deadline), **options)  # type: ignore[arg-type]


class _SecureConnection(_Connection, http.client.HTTPSConnection):
    """The same, encrypted."""


class _Handler(urllib.request.HTTPHandler):
    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_for(req, _Connection), req)


class _SecureHandler(urllib.request.HTTPSHandler):
    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        secure = _for(req, _SecureConnection)
        return self.do_open(secure, req, context=self._context)  # type: ignore[attr-defined]


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


_OPENER = urllib.request.build_opener(_Handler, _SecureHandler, _NoRedirect)


def _for(request: urllib.request.Request, kind: type[_Connection]) -> Any:
    return functools.partial(kind, call=getattr(request, "call", None))


def _addresses(host: str, port: int, deadline: float) -> list[tuple[str, int]]:
    """Where a name leads. The system's lookup has no limit of time: a thread is left with it."""
    found: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def look() -> None:
        try:
            found.put(socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM))
        except (OSError, UnicodeError) as error:  # raised below
            found.put(error)

    threading.Thread(target=look, daemon=True).start()
    try:
        answer = found.get(timeout=_left(deadline))
    except queue.Empty:
        raise TimeoutError("timed out") from None
    if isinstance(answer, Exception):
        raise answer
    return [(place[0], place[1]) for *_, place in answer]


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    return left
