"""The page on this machine alone, at an address that the browser opens."""

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from strop.inspection.data import recorded_steps
from strop.inspection.page import page_of
from strop.support.errors import UserError

HOST = "127.0.0.1"
NAMES = (HOST, "localhost")


def open_server(run: Path, number: int | None, port: int = 0) -> ThreadingHTTPServer:
    """A server of the run's steps; `number` is the one shown first, by default the last.

    port 0: a free one. Raises UserError where there is no such step, and for a port that is taken.
    """
    steps = recorded_steps(run)
    if number is not None and number not in steps:
        page_of(run, number)  # says what there is

    class Handler(_Handler):
        folder, first = run, number

    try:
        return ThreadingHTTPServer((HOST, port), Handler)
    except (OSError, OverflowError) as error:
        raise UserError(f"port {port} cannot be served at: {error}; leave out --port") from error


class _Handler(BaseHTTPRequestHandler):
    """Answers GET /?step=N."""

    folder: Path
    first: int | None

    def do_GET(self) -> None:
        """The page, or one line that says what is wrong."""
        # a page from elsewhere that has its own name point here may not read it
        if (self.headers.get("Host") or "").rpartition(":")[0] not in NAMES:
            return self._send(403, "text/plain", f"open http://{HOST}")
        address = urlsplit(self.path)
        if address.path != "/":
            return self._send(404, "text/plain", "there is one page, /")
        asked = parse_qs(address.query).get("step", [""])[0]
        try:
            number = int(asked) if asked else self.first
            self._send(200, "text/html", page_of(self.folder, number))
        except (UserError, ValueError) as error:
            self._send(404, "text/plain", str(error))

    def _send(self, status: int, kind: str, text: str) -> None:
        body = text.encode("utf-8", "backslashreplace")
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the terminal shows the address alone."""
