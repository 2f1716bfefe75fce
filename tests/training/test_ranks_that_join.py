"""Processes of a run that are stopped, or lose each other, while they join."""

import os
import signal
import time
from pathlib import Path

import pytest
import torch
from commands import launch
from ranks_jobs import surroundings

from strop.support.errors import RunStopped
from strop.training.parallel import ranks, relaunched


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_processes_that_are_stopped_while_they_join_say_so_once(number, tmp_path: Path):
    """Two of three, which wait for the third."""
    words = ("train", "--out", tmp_path / "run", "training.steps=1", "--quiet")
    with surroundings(3) as places:
        outputs = [tmp_path / str(place) for place in range(2)]
        processes = [
            launch(words, output, environment=place)
            for output, place in zip(outputs, places[:2], strict=True)
        ]
        store = relaunched.part(torch.distributed.TCPStore(
            "127.0.0.1", int(places[0]["MASTER_PORT"]), is_master=False), "0")  # fmt: skip
        end = time.monotonic() + 120
        while store.num_keys() < 2:  # what the two tell of themselves
            assert all(process.is_alive() for process in processes)
            assert time.monotonic() < end
            time.sleep(0.05)
        for process in processes:
            os.kill(process.pid, number)
        for process in processes:
            process.join(30)
    assert [process.exitcode for process in processes] == [130, 130]
    said = "".join(output.read_text() for output in outputs)
    assert said.count("interrupted: ") == 1
    assert (
        "of 3 waited for the others to join; no step was started: give the same command again\n"
        in (said)
    )
    assert "Traceback" not in said
    assert not (tmp_path / "run").exists()


def test_a_lost_connection_says_what_may_have_happened(monkeypatch):
    monkeypatch.setattr(ranks, "deafen", lambda: None)

    def lose() -> None:
        raise torch.distributed.DistNetworkError("Failed to recv,\ngot 0 bytes")

    with pytest.raises(RunStopped) as stopped:
        ranks._met(lose, "process 1 of 2")
    assert str(stopped.value) == (
        "process 1 of 2 could not join the others: one was not started, ended or cannot be reached "
        "from here (Failed to recv, got 0 bytes); no step was started: give the same command again"
    )


def test_where_nobody_can_be_asked_a_process_is_the_first(monkeypatch):
    for name in ("TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_RESTART_COUNT"):
        monkeypatch.delenv(name, raising=False)
    assert relaunched.is_first("stopped")
    with surroundings(2) as places:
        for name, value in places[0].items():
            monkeypatch.setenv(name, value)
        assert [relaunched.is_first("stopped") for _ in range(2)] == [True, False]
    monkeypatch.setattr(relaunched, "BRIEF", relaunched.datetime.timedelta(seconds=0.2))
    monkeypatch.setenv("MASTER_PORT", "9")  # where nothing listens
    assert relaunched.is_first("stopped")
