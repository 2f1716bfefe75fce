"""A small server with OpenAI's chat protocol on the loopback, backed by a function."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = Callable[[dict[str, Any]], str | tuple[int, str, dict[str, str]]]


@dataclass
class Served:
    """Where the server listens, and what it was asked: bodies and headers."""

    url: str
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)


@contextmanager
def serve(answer: Answer) -> Iterator[Served]:
    """`answer(body)` gives the text of the completion, or (status, raw body, headers)."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            served.bodies.append(body)
            served.headers.append(dict(self.headers))
            assert self.path == "/v1/chat/completions"
            said = answer(body)
            status, raw, headers = said if isinstance(said, tuple) else (200, chat(said), {})
            self.send_response(status)
            for name, value in {"Content-Length": str(len(raw.encode())), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(raw.encode())

        def log_message(self, *arguments: Any) -> None:
            """Nothing to print."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        served = Served(f"http://127.0.0.1:{server.server_address[1]}/v1")
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield served
        finally:
            server.shutdown()
            thread.join()


def chat(text: str) -> str:
    """The body of a chat completion with this text."""
    message = {
        "index": 0,
        "message": {"role": "assistant", "content": text},
        "finish_reason": "stop",
    }
    return json.dumps({"object": "chat.completion", "choices": [message]})
