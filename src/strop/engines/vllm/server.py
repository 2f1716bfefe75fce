"""A `vllm serve` that strop starts in an environment that has vLLM, and ends when it is done."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from strop.support import processes
from strop.support.errors import UserError
from strop.support.http import Http

SIDE = Path(__file__).with_name("inside")  # modules for vLLM's processes
WORKER = "strop_in_vllm.Weights"
RULES = "strop_processors:Rules"
LOOK_SECONDS, TELL_SECONDS = 0.5, 20.0  # between checks and between messages while it starts
END_SECONDS = 30.0  # time to end; longer than the grace of `serve_while_wanted.py`
LONGEST = 76  # bytes of a folder whose sockets have paths that all systems admit (103)
SHOWN = 8  # last lines of its log in a message
TORCHRUN = re.compile(
    r"(LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)$|ROLE_NAME$|MASTER_(ADDR|PORT)$|TORCHELASTIC_"
)


def check_python(python: str) -> None:
    """Raise UserError unless this Python has vLLM."""
    look = "import importlib.util as u, sys; sys.exit(u.find_spec('vllm') is None)"
    try:
        has = subprocess.run([python, "-c", look], capture_output=True, timeout=120).returncode == 0
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(f"engine.python: {python} cannot be run: {error}") from error
    if not has:
        raise UserError(
            f"{python} has no vLLM: give engine.python the Python of an environment that has it "
            "(python -m venv VENV; VENV/bin/pip install vllm), or engine.url a server that runs"
        )


class Server:
    """A server on this machine; it ends with this process, and `folder` is then deleted.

    It listens at a socket in a folder that no other user can enter: who reaches a server that takes
    weights can change them.
    """

    def __init__(self, python: str, folder: Path, model: Path, options: Sequence[str]) -> None:
        usual = tempfile.gettempdir()
        short = usual if len(os.fsencode(usual)) <= LONGEST else "/tmp"
        self.place = Path(tempfile.mkdtemp(prefix="strop-vllm-", dir=short))
        self.log, socket = self.place / "log", self.place / "socket"
        self.url, self.http = f"unix:{socket}", Http(10.0, socket=str(socket))
        command = [
            sys.executable, str(SIDE / "serve_while_wanted.py"), str(os.getpid()), str(folder),
            python, str(SIDE / "serve.py"), "serve", str(model),
            "--uds", str(socket), *options,
        ]  # fmt: skip
        with self.log.open("wb") as log:
            self.process = processes.start(
                command, stdout=log, stderr=log, env=environment(os.environ)
            )

    def wait(self, seconds: float) -> None:
        """Wait until it answers, and print its progress now and then. Raises UserError."""
        started = reported = time.monotonic()
        while not self._answers():
            if self.process.poll() is not None:
                raise UserError(self.obituary())
            now = time.monotonic()
            if now - started > seconds:
                raise UserError(
                    f"vLLM does not answer after {seconds:g} s, the limit of engine.start_seconds; "
                    f"{self._last_words()}"
                )
            if now - reported > TELL_SECONDS:
                reported = now
                last = "".join(self._lines()[-1:])
                print(f"vLLM starts ({now - started:.0f} s) {last}", file=sys.stderr)
            time.sleep(LOOK_SECONDS)

    def dead(self) -> bool:
        """Whether the server has ended."""
        return self.process.poll() is not None

    def obituary(self) -> str:
        """A message that the server ended, with the end of its log."""
        return f"vLLM has ended (exit status {self.process.returncode}); {self._last_words()}"

    def close(self, keep_log: bool = False) -> None:
        """End the server, and all processes that it started."""
        self.http.close()
        processes.end(self.process, END_SECONDS)
        if not keep_log:
            shutil.rmtree(self.place, ignore_errors=True)

    def _answers(self) -> bool:
        try:
            return self.http.send("GET", "http://localhost/health").status == 200
        except OSError:
            return False

    def _lines(self) -> list[str]:
        text = self.log.read_text(encoding="utf-8", errors="replace")
        return [line[:300] for line in text.splitlines() if line.strip()]

    def _last_words(self) -> str:
        """The log's errors and its last lines: the cause often stands far above the end."""
        lines = self._lines()
        causes = [line for line in lines[:-SHOWN] if re.search(r"\b\w+Error: ", line)][-2:]
        ending = "\n  ".join(["", *causes, *lines[-SHOWN:]])
        return f"its log, {self.log}, ends:{ending}"


def environment(own: Mapping[str, str]) -> dict[str, str]:
    """The server's environment variables: they allow new weights, switch usage reports off, and
    leave out those of torchrun, so that it does not join this process's group.
    """
    own = {name: value for name, value in own.items() if not TORCHRUN.match(name)}
    paths = os.pathsep.join(filter(None, (str(SIDE), own.get("PYTHONPATH", ""))))
    usage = {"VLLM_NO_USAGE_STATS": "1"}
    opened = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}
    return {**usage, **own, "PYTHONPATH": paths, **opened}
