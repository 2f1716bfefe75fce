"""A program in the Python that has OpenEnv, which serves until the test has ended."""

import os
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PATIENCE = 240.0  # seconds, for a server that imports much on a busy machine


@contextmanager
def serving(name: str) -> Iterator[str]:
    """Where a program of this folder answers; it is called with a port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program = Path(__file__).with_name(name)
    process = subprocess.Popen([os.environ["STROP_OPENENV_PYTHON"], str(program), str(port)])
    place, started = f"http://127.0.0.1:{port}", time.monotonic()
    try:
        while True:
            try:
                with urllib.request.urlopen(f"{place}/health"):
                    break
            except OSError:
                assert process.poll() is None
                assert time.monotonic() < started + PATIENCE
                time.sleep(0.2)
        yield place
    finally:
        process.terminate()
        process.wait()
