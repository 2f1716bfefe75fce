"""Serves a page to the browser of the user who started the command, and to nobody else."""

import secrets
import sys
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

from strop.support.errors import UserError

HOST = "127.0.0.1"  # no other machine can connect
NAMES = (HOST, "localhost")  # a foreign page would use another name (DNS rebinding)
TOKEN_BYTES = 16
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class Reply(NamedTuple):
    """A response to the browser."""

    text: str
    kind: str = "text/html"
    status: HTTPStatus = HTTPStatus.OK


class LocalServer(ThreadingHTTPServer):
    """Answers a browser on this machine that knows the token, which is part of the address.

    reply: returns the answer to a path below the token, such as "" or "data", and its query. The
    token keeps out other users of the machine.
    """

    daemon_threads = True

    def __init__(self, reply: Callable[[str, Mapping[str, str]], Reply], port: int) -> None:
        """Raises UserError for a port that is taken or not allowed; 0 takes a free one."""
        self.reply, self.token = reply, secrets.token_urlsafe(TOKEN_BYTES)
        try:
            super().__init__((HOST, port), _Handler)
        except (OSError, OverflowError) as error:
            raise UserError(
                f"port {port} cannot be used: {getattr(error, 'strerror', None) or error}; give "
                "another one, or leave it out to take any that is free"
            ) from error

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Prints the error, unless the browser has only closed the connection."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)

    @property
    def url(self) -> str:
        """The address of the page."""
        return f"http://{HOST}:{self.server_port}/{self.token}/"


class _Handler(BaseHTTPRequestHandler):
    """Handles one request of the browser."""

    server: LocalServer
    timeout = 30.0  # after which a silent connection is closed

    def do_GET(self) -> None:
        """Sends the server's reply, or one line that says why there is none."""
        reply = self._reply()
        data = reply.text.encode("utf-8", "backslashreplace")  # half a surrogate pair as an escape
        try:
            self.send_response(reply.status)
            for name, value in HEADERS.items():
                self.send_header(name, value)
            self.send_header("Content-Type", f"{reply.kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
        except OSError:
            self.close_connection = True  # the browser has closed it

    def _reply(self) -> Reply:
        try:
            asked = urlsplit(self.path)
        except ValueError:
            return Reply("this is not an address", "text/plain", HTTPStatus.BAD_REQUEST)
        _, token, path = (*asked.path.split("/", 2), "", "")[:3]
        theirs, ours = token.encode(errors="replace"), self.server.token.encode()
        if not self._names_us() or not secrets.compare_digest(theirs, ours):
            text = "open the address that the command has printed, with its token"
            return Reply(text, "text/plain", HTTPStatus.FORBIDDEN)
        return self.server.reply(path, dict(parse_qsl(asked.query)))

    def _names_us(self) -> bool:
        """Whether the request names this machine as its host."""
        port = self.server.server_port
        allowed = {f"{name}:{port}" for name in NAMES} | (set(NAMES) if port == 80 else set())
        return self.headers.get("Host", "").lower() in allowed

    def log_message(self, format: str, *args: Any) -> None:
        """Logs nothing: the terminal shows only the address."""
