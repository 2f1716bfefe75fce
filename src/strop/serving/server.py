"""The server of a policy: an application in a thread of this process, with a key."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import secrets
import socket
import threading
from collections.abc import Callable
from typing import Any

from strop.data.chat import Chat
from strop.serving.app import Service, check_installed
from strop.serving.intake import Intake
from strop.serving.prompts import Prompts
from strop.serving.protocol import Backend
from strop.serving.reading import Reading
from strop.support.errors import UserError

HOST = "127.0.0.1"  # other machines cannot connect
TOKEN_BYTES = 24
END_SECONDS = 2  # time for answers in progress, once the server ends
START_SECONDS = 30.0


class PolicyServer:
    """Serves one policy, from `start` to `close`; a context manager.

    chat: how messages are put to the model. model: its name for clients. max_model_len: tokens of
    its context; checks_room: False where the backend refuses calls that are too long for it. key:
    the clients' bearer token; empty: a random one. keys: recognises further tokens, such as one per
    rollout; it is called in the server's thread. port 0 takes a free one. intake: receives posted
    rollouts; None: they are refused. Raises UserError where the packages of a server are missing.
    """

    def __init__(
        self,
        tokenizer: Any,
        chat: Chat,
        backend: Backend,
        *,
        model: str,
        max_model_len: int,
        host: str = HOST,
        port: int = 0,
        key: str = "",
        keys: Callable[[str], bool] | None = None,
        checks_room: bool = True,
        intake: Intake | None = None,
    ) -> None:
        check_installed()
        self.host, self.port, self.model = host, port, model
        self.key = _checked(key) if key else secrets.token_urlsafe(TOKEN_BYTES)
        self.further = keys
        reading = Reading(Prompts(tokenizer, chat), model, max_model_len, checks_room)
        self.service = Service(tokenizer, backend, reading, self.knows, intake)
        self.below = contextlib.ExitStack()  # the objects that it serves, closed after it
        self._server: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def knows(self, key: str) -> bool:
        """Whether a client with this key has access."""
        ours = secrets.compare_digest(key.encode("utf-8", "replace"), self.key.encode())
        return ours or (self.further is not None and bool(key) and self.further(key))

    @property
    def url(self) -> str:
        """The server's address; OpenAI's clients take it with `/v1`."""
        host = {"0.0.0.0": HOST, "::": "::1"}.get(self.host, self.host)
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}"

    def start(self) -> PolicyServer:
        """Open the port and start answering. Raises UserError where the port is not available."""
        import uvicorn

        if self._thread is not None:
            raise RuntimeError("the server runs already")
        listening = _listen(self.host, self.port)
        self.port = listening.getsockname()[1]
        config = uvicorn.Config(
            self.service.app(),
            loop="asyncio",
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="critical",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=END_SECONDS,
        )
        self._server = uvicorn.Server(config)
        up = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(listening, up), name="strop-serving", daemon=True
        )
        self._thread.start()
        if not up.wait(START_SECONDS):
            raise RuntimeError("the server does not start")
        return self

    def close(self) -> None:
        """End answers in progress, close the port, and close the objects that were served."""
        with self.below:
            thread, self._thread = self._thread, None
            if thread is None or self._loop is None:
                return
            with contextlib.suppress(RuntimeError):  # the loop has ended by itself
                self._loop.call_soon_threadsafe(self._end)
            thread.join()

    def __enter__(self) -> PolicyServer:
        return self if self._thread is not None else self.start()

    def __exit__(self, *error: object) -> None:
        self.close()

    def _end(self) -> None:
        self.service.end()
        self._server.should_exit = True

    def _run(self, listening: socket.socket, up: threading.Event) -> None:
        async def serve() -> None:
            self._loop = asyncio.get_running_loop()
            self._loop.call_soon(up.set)
            await self._server.serve(sockets=[listening])

        try:
            with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
                runner.run(serve())
        finally:
            listening.close()
            up.set()


def _checked(key: str) -> str:
    """Return the key if it fits into a header. Raises UserError."""
    if not key.isascii() or not key.isprintable() or " " in key:
        raise UserError("the server's key must be of printable ASCII without spaces")
    return key


def _listen(host: str, port: int) -> socket.socket:
    """Open a listening socket. Raises UserError where that is not possible."""
    try:
        family = socket.AF_INET6 if _is_version_6(host) else socket.AF_INET
        # asyncio sends small parts at once only of sockets that name TCP: else each answer on an
        # open connection waits 40 ms for the client to acknowledge the part before.
        listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((host, port))
            listening.listen(2048)
        except BaseException:
            listening.close()
            raise
    except (OSError, OverflowError) as error:
        raise UserError(
            f"port {port} of {host} cannot be used: {getattr(error, 'strerror', None) or error}; "
            "give another one, or 0 to take any that is free"
        ) from error
    return listening


def _is_version_6(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).version == 6
    except ValueError:
        return False
