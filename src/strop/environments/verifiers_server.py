"""Episodes that an EnvServer of verifiers (0.4) plays: `data.task=verifiers:tcp://127.0.0.1:5000`.

The server takes a task and the address of a model, plays, and streams the episode's trace. Frames
are msgpack over ZeroMQ: [request, method, body] to the server, and [request, kind, body] back,
where the kinds are "delta", a piece of a trace, and "reply", the end.
"""

from __future__ import annotations

import itertools
import math
import threading
import time
import uuid
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any

from strop.environments.agent_process import Outcome
from strop.support.errors import UserError, did_you_mean, needs_extra
from strop.support.processes import Restarts
from strop.traces.reading import NothingSaid, end_of_trace, rollout_of

FAMILY = "verifiers:"
OPTIONS = ("renderer", "renderer_model", "sampling")
LISTS = ("nodes", "calls", "errors", "extra_usage", "request_rewrites", "response_rewrites")
STREAMS = ("token_ids", "mask", "logprobs")  # of a node: lists, or arrays as bytes (from 0.4.1)
# Errors that the policy cannot have caused: of sandbox, environment and connections.
OUTSIDE = ("SandboxError", "EnvError", "InterceptionError", "TunnelError", "ToolsetError")
START_SECONDS = 60.0  # for the server's first answer
PING_SECONDS, SILENT_SECONDS = 2.0, 30.0  # between two pings; silence after which it is lost
LOOK_MILLISECONDS = 20  # between two checks of the queue of messages to send


@dataclass(eq=False)
class ServedEpisode:
    """An episode on the server. ended: how it ended, once it has; it never has an exception."""

    owner: VerifiersServer
    id: str
    ended: Future[Outcome] = field(default_factory=Future)
    traces: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.ended.set_running_or_notify_cancel()  # who awaits it may give up, and not cancel it

    def end(self) -> None:
        """End the episode now."""
        self.owner.cancel(self)

    def apply(self, delta: Mapping[str, Any]) -> None:
        """Add a piece of a trace."""
        name = delta["trace"]
        if delta.get("discard"):
            self.traces.pop(name, None)
            return
        if name not in self.traces:
            self.traces[name] = {**delta["open"], **{each: [] for each in LISTS}}
        trace = self.traces[name]
        for node, links in (delta.get("links") or {}).items():
            trace["nodes"][int(node)].setdefault("semantic_parents", []).extend(links)
        for each in LISTS:
            found = delta.get(each) or ()
            trace[each].extend(map(_with_lists, found) if each == "nodes" else found)
        trace.update(delta.get("set") or {})


class VerifiersServer:
    """A server of verifiers, with the same methods as the process of agents.

    options: renderer and renderer_model, with which it writes prompts in tokens, and sampling.
    """

    def __init__(self, name: str, model: str, options: Mapping[str, Any]) -> None:
        self.address = name.removeprefix(FAMILY)
        for option in options:
            if option not in OPTIONS:
                hint = did_you_mean(option, OPTIONS)
                raise UserError(f"{name} has no option {option!r}{hint}: {', '.join(OPTIONS)}")
        self.model, self.options = model, dict(options)
        self.running: dict[str, ServedEpisode] = {}
        self.outgoing: SimpleQueue[tuple[str, str, Any]] = SimpleQueue()
        self.restarts = Restarts(f"the server of verifiers at {self.address} was lost")
        self.lock = threading.Lock()
        self.last_reply = 0.0  # time of its last answer
        self.lost = ""  # why it was lost, if it was since its last start
        self.over = threading.Event()
        self.thread: threading.Thread | None = None
        self.pings = itertools.count()

    def start(self) -> None:
        """Connect. Raises UserError where the server does not answer, RunStopped where it was lost
        too often.
        """
        with self.lock:
            if self.lost:
                self.restarts.count(self.lost)
                self.lost = ""
            elif self.thread is not None:
                return
            if self.thread is None:
                check_installed()
                given = (_connected(self.address),)
                self.thread = threading.Thread(target=self._work, args=given, daemon=True)
                self.thread.start()
            since = self.last_reply
            last = time.monotonic() + START_SECONDS
            while self.last_reply <= since:
                if time.monotonic() > last:
                    raise UserError(
                        f"no server of verifiers answers at {self.address}: start one there, "
                        "EnvServer(config, address), before the run"
                    )
                self.outgoing.put((f"ping-{next(self.pings)}", "health", {}))
                time.sleep(0.1)

    def begin(self, row: Mapping[str, Any], environment: Mapping[str, str]) -> ServedEpisode:
        """Let the server play a task with the model at an address. Raises as `start` does."""
        self.start()
        episode = ServedEpisode(self, uuid.uuid4().hex)
        with self.lock:
            if not self.running:  # only while episodes run does it have to answer pings
                self.last_reply = time.monotonic()
            self.running[episode.id] = episode
        body = {
            "task_data": {name: value for name, value in row.items() if value is not None},
            "client": self._client(environment),
            "model": environment["STROP_MODEL"],
            "sampling": self.options.get("sampling", {}),
        }
        self.outgoing.put((episode.id, "run", body))
        return episode

    def _client(self, environment: Mapping[str, str]) -> dict[str, Any]:
        """How the server reaches the model, with the key of this episode."""
        client = {
            "type": "train",
            "base_url": environment["OPENAI_BASE_URL"],
            "api_key_var": "STROP_HAS_NO_KEY_HERE",
            "headers": {"Authorization": f"Bearer {environment['OPENAI_API_KEY']}"},
            "renderer_model_name": self.options.get("renderer_model", self.model),
        }
        return {**client, **{k: v for k, v in self.options.items() if k == "renderer"}}

    def cancel(self, episode: ServedEpisode) -> None:
        """End an episode now, if it has not ended."""
        self._cancel(episode, Outcome("lost", why="it was ended"))

    def close(self) -> None:
        """End all episodes, and the connection."""
        for episode in list(self.running.values()):
            episode.end()
        self.over.set()
        if self.thread is not None:
            self.thread.join()
            self.thread = None

    def _cancel(self, episode: ServedEpisode, outcome: Outcome) -> None:
        if self.running.pop(episode.id, None) is not None:
            self.outgoing.put((f"cancel-{episode.id}", "cancel", {"request_id": episode.id}))
            episode.ended.set_result(outcome)

    # ---- in the thread of the connection

    def _work(self, socket: Any) -> None:
        with socket.context, socket:
            asked = time.monotonic()
            while not (self.over.is_set() and self.outgoing.empty()):
                while True:
                    try:
                        name, method, body = self.outgoing.get_nowait()
                    except Empty:
                        break
                    if frames := self._frames(name, method, body):
                        socket.send_multipart(frames)
                if socket.poll(LOOK_MILLISECONDS):
                    self._receive(*socket.recv_multipart())
                now = time.monotonic()
                if self.running and now - asked > PING_SECONDS:
                    asked = now
                    self.outgoing.put((f"ping-{next(self.pings)}", "health", {}))
                    if now - self.last_reply > SILENT_SECONDS:
                        self._lose(f"it was silent for {SILENT_SECONDS:g} s")

    def _frames(self, name: str, method: str, body: Any) -> list[bytes]:
        """A message to the server; empty, and its episode is lost, where it cannot be written."""
        import msgpack

        try:
            return [name.encode(), method.encode(), msgpack.packb(body)]
        except (TypeError, ValueError, OverflowError) as error:
            self._fail(name, f"its row cannot be sent to the server of verifiers: {error}")
            return []

    def _receive(self, name: bytes, kind: bytes = b"", body: bytes = b"", *_: bytes) -> None:
        """Take a message in. An exception would end the thread, and so all later episodes."""
        import msgpack

        self.last_reply = time.monotonic()
        episode = self.running.get(name.decode(errors="replace"))
        if episode is None:
            return
        try:
            message = msgpack.unpackb(body, raw=False, strict_map_key=False)
            if kind == b"delta":
                episode.apply(message)
                return
            outcome = outcome_of(message, [*episode.traces.values()])
        except Exception as error:  # a server may send anything
            why = f"{type(error).__name__}: {error}"
            self._fail(episode.id, f"the server of verifiers sent what cannot be read: {why}")
            return
        if self.running.pop(episode.id, None) is not None:
            self.restarts.worked()
            episode.ended.set_result(outcome)

    def _fail(self, name: str, why: str) -> None:
        """End an episode, if it has not ended, without a result."""
        if (episode := self.running.pop(name, None)) is not None:
            episode.ended.set_result(Outcome("lost", why=why))

    def _lose(self, why: str) -> None:
        self.lost = why
        outcome = Outcome("raised", why=f"the server of verifiers: {why}", transient=True)
        for episode in list(self.running.values()):
            self._cancel(episode, outcome)


def _connected(address: str) -> Any:
    """A socket that connects to an address, with a context of its own. Raises UserError for one
    that ZeroMQ does not take.
    """
    import zmq

    context = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.LINGER, 200)
    socket.setsockopt(zmq.SNDHWM, 0)  # no limit: or sending to a server that is gone never returns
    try:
        socket.connect(address)
    except zmq.ZMQError as error:
        context.destroy()
        raise UserError(
            f"data.task={FAMILY}{address} is no address of a server of verifiers "
            f"({error.strerror}): give one such as {FAMILY}tcp://127.0.0.1:5000"
        ) from error
    return socket


def _with_lists(node: Mapping[str, Any]) -> dict[str, Any]:
    """A node with its streams as lists."""
    packed = {name: node[name] for name in STREAMS if isinstance(node.get(name), Mapping)}
    return {**node, **{name: _list(array) for name, array in packed.items()}}


def _list(array: Mapping[str, Any]) -> list[Any]:
    import numpy as np  # not above: the lists of recipes and options are shown without it

    return np.frombuffer(array["data"], array["dtype"]).reshape(array["shape"]).tolist()


def outcome_of(reply: Mapping[str, Any], traces: list[dict[str, Any]]) -> Outcome:
    """How an episode ended, with its rollout where the trace has the tokens."""
    if not reply["success"]:
        return Outcome("lost", why=f"the server of verifiers refused it: {reply.get('error')}")
    head = reply.get("head") or {}
    ours = [each for each in traces if (each.get("agent") or {}).get("trainable", True)]
    if len(ours) != 1:
        errors = "; ".join(_error(each) for each in head.get("errors") or ())
        why = errors or f"{len(ours)} agents of it are trained, and a rollout is of one"
        return Outcome("lost", why=f"the episode has no rollout: {why}")
    (trace,) = ours
    failures = [*(trace.get("errors") or ()), *(head.get("errors") or ())]
    end = end_of_trace(trace)
    if end["reward"] is None and failures and trace.get("dropped") is None:
        late = trace.get("is_timeout") or head.get("is_timeout")
        lost = failures[-1].get("type") in OUTSIDE
        kind = "late" if late else "lost" if lost else "raised"
        return Outcome(kind, why=_error(failures[-1]))
    try:
        rollout = rollout_of(trace, "the trace of verifiers")
    except NothingSaid:  # the model was not called
        rollout = None
    except UserError as error:
        return Outcome("lost", why=str(error))
    found = (trace.get("metrics") or {}).items()
    metrics = {name: float(value) for name, value in found if isinstance(value, int | float)}
    rewards = {**end["rewards"], **metrics, "reward": end["reward"]}
    for name, value in rewards.items():
        if value is not None and not math.isfinite(value):
            return Outcome("unreadable", why=f"{name} = {value}")
    return Outcome("returned", rewards, rollout=rollout)


def _error(error: Mapping[str, Any]) -> str:
    return f"{error.get('type')}: {error.get('message')}"


def check_installed() -> None:
    """Raise UserError where the packages of the connection are missing."""
    with needs_extra("environments of verifiers need pyzmq and msgpack", "verifiers"):
        import msgpack  # noqa: F401
        import zmq  # noqa: F401
