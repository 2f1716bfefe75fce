"""Workers of Ray and kernels of notebooks, copied from a process that has imported what they need.

They behave as usual, but save the four seconds in which each would import torch and transformers.
They import Ray's own library themselves, as it reads the environment then. Ray and Jupyter start
`asking.py` in their place, which requests a copy and lives as long as the copy does.
"""

import ctypes
import importlib
import json
import os
import runpy
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from commands import from_the_same_server

ASKING = str(Path(__file__).with_name("asking.py"))
ADDRESS = "COPIES_ASKED_FOR_AT"  # environment variable: the socket for requests of copies
_DEATH_SIGNAL = 1  # of prctl
# The imports of actors, and of the functions that the doctor sends.
NEEDED = (
    "strop.cli.train_on_ray", "strop.diagnosis.cluster", "strop.training.cluster.engine_worker",
    "strop.training.cluster.rewards", "strop.training.cluster.environments",
)  # fmt: skip


def serve(address: str, needed: Sequence[str] = NEEDED) -> None:
    """Copy this process, with what is needed besides, for whoever asks, until its parent ends."""
    from_the_same_server()
    os.setsid()  # so that copies that are stopped hear when it has ended
    ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for a copy
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(64)
        for name in needed:
            importlib.import_module(name)
        while True:
            asked, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                _work(asked)
            asked.close()


def _work(asked: socket.socket) -> None:
    """Be the worker that is asked for, and end with the process that asks."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setpgid(0, 0)  # Ray ends the group of a worker that is lost
    size, files, _, _ = socket.recv_fds(asked, 8, 3)
    with asked.makefile("rb") as letter:
        given = json.loads(letter.read(int.from_bytes(size)))
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(given["environment"])
    os.chdir(given["folder"])
    threading.Thread(target=_end_with, args=(asked,), daemon=True).start()
    sys.argv = given["words"]
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    finally:
        os._exit(0)


def _end_with(asked: socket.socket) -> None:
    asked.recv(1)
    os.kill(os.getpid(), signal.SIGKILL)


@contextmanager
def workers_copied(address: Path) -> Iterator[None]:
    """Inside, clusters that are begun have their workers copied by who listens at an address."""
    from ray._private.parameter import RayParams

    plain = RayParams.update_if_absent

    def asking(params: Any, **given: Any) -> None:
        if "setup_worker_path" in given:
            given["setup_worker_path"] = ASKING
        plain(params, **given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RayParams, "update_if_absent", asking)
        patch.setenv(ADDRESS, str(address))
        yield
