"""A server on the loopback that answers HTTP requests with a function."""

import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

# Status, body, headers besides the body's length.
Reply = tuple[int, str | bytes, Mapping[str, str]]


@dataclass(frozen=True)
class Asked:
    """One call."""

    method: str
    path: str
    body: bytes
    headers: Any  # by their names in any case


@dataclass
class Loopback(ThreadingHTTPServer):
    """Where it listens, and from where connections came."""

    answer: Callable[[Asked], Reply]
    keeps: bool  # connections, behind an answer
    connections: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, *arguments: Any) -> None:
        """Tell of it, unless who asked has gone."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(*arguments)

    __hash__ = object.__hash__


class _Handler(BaseHTTPRequestHandler):
    server: Loopback

    def setup(self) -> None:
        self.protocol_version = "HTTP/1.1" if self.server.keeps else "HTTP/1.0"
        super().setup()
        self.server.connections.append(self.client_address)

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        asked = Asked(self.command, self.path, body, self.headers)
        status, said, headers = self.server.answer(asked)
        said = said.encode() if isinstance(said, str) else said
        self.send_response(status)
        for name, value in {"Content-Length": str(len(said)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(said)

    do_POST = do_GET

    def log_message(self, *arguments: Any) -> None:
        """Nothing to print."""


@contextmanager
def loopback(answer: Callable[[Asked], Reply], keeps: bool = True) -> Iterator[Loopback]:
    """The server, until the end of the block. keeps: connections stay open behind an answer."""
    with Loopback(answer, keeps) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
