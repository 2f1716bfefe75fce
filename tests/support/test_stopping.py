"""Signals that raise: which of two counts, and one that would have gone unnoticed."""

import signal
import time

import pytest

from strop.support import stopping
from strop.support.stopping import asking_first, interrupting

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture(autouse=True)
def heeded():
    """Signals as in a terminal: under nohup SIGHUP is ignored, and stays so."""
    before = {number: signal.signal(number, signal.default_int_handler) for number in NUMBERS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", NUMBERS)
def test_each_interrupts_and_what_was_there_is_put_back(number):
    before = [signal.getsignal(each) for each in NUMBERS]
    with pytest.raises(KeyboardInterrupt), interrupting():
        signal.raise_signal(number)
    assert [signal.getsignal(each) for each in NUMBERS] == before


def test_one_wish_that_is_sent_twice_interrupts_once(monkeypatch):
    """The second comes when the block that heeded the first is left."""
    asked: list[bool] = []
    with interrupting():
        with asking_first(lambda: asked.append(True)):
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(signal.SIGTERM)
        assert asked == [True]
        monkeypatch.setattr(stopping, "AGAIN_SECONDS", 0.0)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
    monkeypatch.undo()
    with pytest.raises(KeyboardInterrupt), interrupting():
        signal.raise_signal(signal.SIGTERM)  # of another command, in the same second


def test_ctrl_c_counts_each_time():
    with interrupting():
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)


class Dying:
    def __del__(self):
        signal.raise_signal(signal.SIGTERM)


def test_an_interrupt_that_nobody_would_have_seen_comes_again(capfd):
    def wait() -> None:
        Dying()
        time.sleep(10)

    with pytest.raises(KeyboardInterrupt), interrupting():
        wait()
    assert capfd.readouterr().err == ""
