"""Signs of life: what is taken for a hang, and what is not."""

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from strop.training.parallel import watchdog as signs
from strop.training.parallel.watchdog import Signs

LIMIT = 1.0


class Ended(list[int]):
    """Exit codes of processes that would have ended; all of them leave then."""

    def __init__(self) -> None:
        self.processes: list[Signs] = []
        self.over = threading.Event()

    def __call__(self, code: int) -> None:
        self.append(code)
        self.over.set()
        for each in self.processes:
            each.left.set()

    def watch(self, number: int, store: Any, folder: Path) -> Signs:
        """A process of two, that watches the other over a store."""
        self.processes.append(Signs(number, 2))
        self.processes[-1].watch(LIMIT, folder, lambda: store, lambda: True)
        return self.processes[-1]


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ended]:
    found = Ended()
    monkeypatch.setattr(os, "_exit", found)
    yield found
    for each in found.processes:
        each.leave()


def test_a_process_that_waits_works_or_has_left_is_none_that_hangs(ended, tmp_path):
    """Each for longer than the limit: outside steps, in what has limits of its own, at work; and
    after its end.
    """
    store = torch.distributed.HashStore()
    first, second = (ended.watch(number, store, tmp_path) for number in (0, 1))
    time.sleep(1.5 * LIMIT)
    first.place = second.place = "step 1, update"
    with first.patient(), second.patient():
        time.sleep(1.5 * LIMIT)
    until = time.monotonic() + 1.5 * LIMIT
    while time.monotonic() < until:
        sum(range(1000))
    first.place = ""
    second.leave()
    time.sleep(1.5 * LIMIT)
    assert store.get("strop/sign/1") == signs.LEFT
    assert not signs.verdict(store)
    assert not ended


def test_one_that_does_nothing_in_a_step_says_where(ended, tmp_path, capfd):
    store = torch.distributed.HashStore()
    _, second = (ended.watch(number, store, tmp_path) for number in (0, 1))
    second.place = "step 3, rollout"
    assert ended.over.wait(30)
    said = signs.verdict(store)
    assert f"process 1 of 2 ({os.getpid()} on " in said
    assert "; last at step 3, rollout, threading.py, line " in said
    assert ") did nothing for 1 s (training.process_timeout_seconds)" in said
    assert f"stopped: {said}.\n" in capfd.readouterr().err


def test_one_that_is_silent_is_named_with_where_it_was_last(ended, tmp_path, capfd):
    store = torch.distributed.HashStore()
    store.set("strop/sign/1", '[7, 4711, "there", "step 2, reward", "grader.py, line 5"]')
    (tmp_path / "config.toml").touch()
    ended.watch(0, store, tmp_path)
    assert ended.over.wait(30)
    said = signs.verdict(store)
    assert said.startswith(
        "process 1 of 2 (4711 on there; last at step 2, reward, grader.py, line 5) gave no sign of "
        "life for 1 s"
    )
    assert f"{said}. Resume with: strop train --resume {tmp_path}\n" in capfd.readouterr().err


class Hanging:
    """A store of which the machine is gone: no answer, or a broken connection."""

    def __init__(self, after: int, error: type[Exception] | None = None) -> None:
        self.left, self.error, self.end = after, error, threading.Event()

    def set(self, name: str, value: Any) -> None:
        self.left -= 1
        if self.left < 0:
            if self.error is not None:
                raise self.error("Connection reset by peer")
            self.end.wait()

    def check(self, names: list[str]) -> bool:
        return False


def test_a_store_without_answer_is_named_itself(ended, tmp_path, capfd, monkeypatch):
    monkeypatch.setenv("MASTER_ADDR", "there")
    monkeypatch.setenv("MASTER_PORT", "29500")
    store = Hanging(after=2)
    ended.watch(1, store, tmp_path)
    assert ended.over.wait(30)
    store.end.set()
    assert "from the store of all processes at there:29500" in capfd.readouterr().err


class Refusing(torch.distributed.HashStore):
    """A store that breaks when it is told of a process that hangs."""

    def set(self, name: str, value: Any) -> None:
        if name == signs.VERDICT:
            raise torch.distributed.DistNetworkError("Connection reset by peer")
        super().set(name, value)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_who_cannot_tell_the_store_ends_all_the_same(ended, tmp_path, capfd):
    ended.watch(1, Refusing(), tmp_path)
    assert ended.over.wait(30)
    assert ended == [1]
    assert "process 0 of 2 gave no sign of life for 1 s" in capfd.readouterr().err


def test_who_started_the_processes_being_gone_ends_the_watch(ended, tmp_path):
    one = ended.watch(1, Hanging(2, torch.distributed.DistNetworkError), tmp_path)
    assert one.left.wait(30)
    one.leave()
    assert not any(thread.is_alive() for thread in one.threads)
    assert not ended
