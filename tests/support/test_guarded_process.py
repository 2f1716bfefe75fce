"""Messages over a socket, in pieces and late."""

import itertools
import socket
import threading
import time
from unittest import mock

import pytest

from strop.support.guarded_process import LAST_LOOK_SECONDS, receive


@pytest.fixture
def ends():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def test_a_message_that_comes_in_pieces_before_its_deadline_is_whole(ends):
    ours, theirs = ends
    message = (6).to_bytes(8, "big") + b"abcdef"
    theirs.sendall(message[:10])
    rest = threading.Timer(0.05, theirs.sendall, [message[10:]])
    rest.start()
    assert receive(ours, time.monotonic() + 60) == b"abcdef"
    rest.join()


def test_what_has_come_by_then_is_still_read(ends, monkeypatch):
    ours, theirs = ends
    theirs.sendall((6).to_bytes(8, "big") + b"abcdef")
    clock = mock.Mock(monotonic=itertools.count().__next__)  # each look at it is a second later
    monkeypatch.setattr("strop.support.guarded_process.time", clock)
    assert receive(ours, 0.5) == b"abcdef"


def test_one_that_is_not_whole_by_then_is_late(ends):
    ours, theirs = ends
    theirs.sendall((6).to_bytes(8, "big") + b"ab")
    started = time.monotonic()
    with pytest.raises(TimeoutError):
        receive(ours, started)
    assert time.monotonic() >= started + LAST_LOOK_SECONDS
