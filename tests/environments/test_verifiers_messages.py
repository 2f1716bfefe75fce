"""What a server of verifiers may send, against a server that is a socket."""

import threading
import time
from collections.abc import Iterator
from datetime import date
from typing import Any

import msgpack
import numpy as np
import pytest
import zmq

from strop.environments import verifiers_server
from strop.environments.verifiers_server import VerifiersServer
from strop.support.errors import UserError


def packed(values: list[Any], dtype: str) -> dict[str, Any]:
    """An array as verifiers writes it from 0.4.1 on."""
    array = np.array(values, dtype)
    return {"__nd__": True, "dtype": dtype, "shape": [len(values)], "data": array.tobytes()}


NODES = [
    {"parent": None, "token_ids": packed([3, 4], "int32"), "mask": packed([False] * 2, "bool"),
     "logprobs": packed([], "float32")},
    {"parent": 0, "sampled": True, "token_ids": packed([5, 6, 7], "int32"),
     "mask": packed([False, True, True], "bool"), "logprobs": packed([-0.5, -0.25], "float32")},
]  # fmt: skip
WORTH = {"task": {}, "rewards": {"even": {"score": 1.0, "weight": 2.0}}}
HERE = {"OPENAI_BASE_URL": "u", "OPENAI_API_KEY": "k", "STROP_MODEL": "m"}
ANSWERS: dict[str, list[tuple[bytes, bytes]]] = {
    "a delta of no trace": [(b"delta", msgpack.packb({"trace": "t"}))],
    "no msgpack": [(b"reply", b"\xc1")],
    "no success": [(b"reply", msgpack.packb({}))],
    "refused": [(b"reply", msgpack.packb({"success": False, "error": "no room"}))],
    "played on": [],
    "infinite": [
        (b"delta", msgpack.packb({"trace": "t", "open": {"task": {}, "metrics": {"a": 1e999}}})),
        (b"reply", msgpack.packb({"success": True})),
    ],
    "arrays": [
        (b"delta", msgpack.packb({"trace": "t", "open": WORTH, "nodes": NODES})),
        (b"reply", msgpack.packb({"success": True})),
    ],
    "dropped": [
        (b"delta", msgpack.packb({"trace": "t", "open": WORTH, "nodes": NODES})),
        (b"delta", msgpack.packb({"trace": "t", "errors": [{"type": "JudgeError"}],
                                  "set": {"dropped": "no verdict"}})),
        (b"reply", msgpack.packb({"success": True})),
    ],
}  # fmt: skip
MUTE = threading.Event()  # the server answers nothing any more
received: list[tuple[bytes, Any]] = []


@pytest.fixture
def server() -> Iterator[VerifiersServer]:
    """A client of a server that answers a task by its `question`."""
    MUTE.clear(), received.clear()
    over = threading.Event()
    context = zmq.Context()
    socket = context.socket(zmq.ROUTER)
    port = socket.bind_to_random_port("tcp://127.0.0.1")

    def work() -> None:
        while not over.is_set():
            if socket.poll(10):
                whom, name, method, body = socket.recv_multipart()
                received.append((method, msgpack.unpackb(body)))
                answers = [] if MUTE.is_set() else [(b"reply", b"")]
                if method == b"run":
                    answers = ANSWERS[msgpack.unpackb(body)["task_data"]["question"]]
                for answer in answers:
                    socket.send_multipart([whom, name, *answer])

    thread = threading.Thread(target=work)
    thread.start()
    client = VerifiersServer(f"verifiers:tcp://127.0.0.1:{port}", "model", {})
    yield client
    client.close()
    over.set()
    thread.join()
    socket.close(0)
    context.term()


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"question": "a delta of no trace"}, "cannot be read: KeyError: 'open'"),
        ({"question": "no msgpack"}, "cannot be read: FormatError"),
        ({"question": "no success"}, "cannot be read: KeyError: 'success'"),
        ({"question": "refused", "of": date(2026, 1, 1)}, "its row cannot be sent"),
        ({"question": "refused", "of": 2**70}, "its row cannot be sent"),
    ],
)
def test_a_message_that_cannot_be_read_or_written_ends_its_own_episode_only(
    server: VerifiersServer, row: dict[str, Any], why: str
) -> None:
    outcome = server.begin(row, HERE).ended.result(10)
    assert outcome.kind == "lost"  # so it has no score
    assert why in outcome.why
    after = server.begin({"question": "refused"}, HERE).ended.result(10)
    assert "no room" in after.why


@pytest.mark.parametrize("address", ["http://127.0.0.1:5000", "tcp://127.0.0.1"])
def test_an_address_that_is_none_is_refused_at_once(address: str) -> None:
    client = VerifiersServer(f"verifiers:{address}", "model", {})
    with pytest.raises(UserError, match=f"verifiers:{address} is no address of a server"):
        client.start()
    client.close()


def test_a_client_closes_whatever_it_has_still_to_send_to_a_server_that_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(verifiers_server, "START_SECONDS", 0.2)
    client = VerifiersServer("verifiers:tcp://127.0.0.1:9", "model", {})
    with pytest.raises(UserError, match="no server of verifiers answers"):
        client.start()
    for number in range(1200):  # the orders of many episodes; ZeroMQ's own limit is 1,000
        client.outgoing.put((f"ping-{number}", "health", {}))
    closing = threading.Thread(target=client.close, daemon=True)
    closing.start()
    closing.join(30)
    assert not closing.is_alive()


def test_a_number_that_is_not_finite_ends_its_own_episode(server: VerifiersServer) -> None:
    outcome = server.begin({"question": "infinite"}, HERE).ended.result(10)
    assert (outcome.kind, outcome.why) == ("unreadable", "a = inf")


def test_streams_of_tokens_may_be_arrays(server: VerifiersServer) -> None:
    outcome = server.begin({"question": "arrays"}, HERE).ended.result(10)
    assert (outcome.kind, outcome.value["reward"]) == ("returned", 2.0)
    assert outcome.rollout is not None
    (turn,) = outcome.rollout.turns
    assert (turn.prompt_ids, turn.output_ids) == ((3, 4, 5), (6, 7))
    assert (turn.output_log_probs, turn.output_mask) == ((-0.5, -0.25), (True, True))


def test_a_trace_that_was_dropped_has_no_score(server: VerifiersServer) -> None:
    outcome = server.begin({"question": "dropped"}, HERE).ended.result(10)
    assert (outcome.kind, outcome.value) == ("returned", {"even": 2.0, "reward": None})


def test_a_pause_without_episodes_is_no_silence(
    server: VerifiersServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.begin({"question": "refused"}, HERE).ended.result(10)
    monkeypatch.setattr(verifiers_server, "PING_SECONDS", 0.05)
    server.last_reply -= 60  # an update of the policy has taken a minute
    episode = server.begin({"question": "played on"}, HERE)
    with pytest.raises(TimeoutError):
        episode.ended.result(0.5)


def test_a_silent_server_is_told_to_end_the_episodes_that_it_has_lost(
    server: VerifiersServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    episode = server.begin({"question": "played on"}, HERE)
    monkeypatch.setattr(verifiers_server, "PING_SECONDS", 0.05)
    monkeypatch.setattr(verifiers_server, "SILENT_SECONDS", 0.3)
    MUTE.set()
    outcome = episode.ended.result(10)
    assert (outcome.kind, outcome.transient) == ("raised", True)
    assert "silent for 0.3 s" in outcome.why
    until = time.monotonic() + 10
    while (b"cancel", {"request_id": episode.id}) not in received:
        assert time.monotonic() < until
        time.sleep(0.01)
