"""Small servers on the loopback: OpenAI's chat protocol backed by a function, and bare bytes."""

import json
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from fakes.loopback import Asked, Reply, loopback

Answer = Callable[[dict[str, Any]], str | tuple[int, str, dict[str, str]]]


@dataclass
class Served:
    """Where the server listens, what it was asked (bodies, headers), over which connections."""

    url: str
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    connections: list[Any] = field(default_factory=list)


@contextmanager
def serve(answer: Answer) -> Iterator[Served]:
    """`answer(body)` gives the text of the completion, or (status, raw body, headers)."""

    def reply(asked: Asked) -> Reply:
        assert (asked.method, asked.path) == ("POST", "/v1/chat/completions")
        body = json.loads(asked.body)
        served.bodies.append(body)
        served.headers.append(dict(asked.headers))
        said = answer(body)
        return said if isinstance(said, tuple) else (200, chat(said), {})

    with loopback(reply) as server:
        served = Served(f"{server.url}/v1", connections=server.connections)
        yield served


def chat(text: str | None, finish_reason: str = "stop") -> str:
    """The body of a chat completion with this text."""
    message = {
        "index": 0,
        "message": {"role": "assistant", "content": text},
        "finish_reason": finish_reason,
    }
    return json.dumps({"object": "chat.completion", "choices": [message]})


@contextmanager
def serve_bytes(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """The url of a server that reads a request and lets `answer(connection)` say anything."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            asked = b""
            while b"\r\n\r\n" not in asked:
                asked += self.request.recv(1 << 16)
            head, _, body = asked.partition(b"\r\n\r\n")
            size = int(head.lower().partition(b"content-length:")[2].split()[0])
            while len(body) < size:
                body += self.request.recv(1 << 16)
            with suppress(OSError):  # who asked has gone
                answer(self.request)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/v1"
        finally:
            server.shutdown()
            thread.join()
