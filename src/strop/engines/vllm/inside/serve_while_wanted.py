"""Runs a command until it ends, a signal (SIGTERM) stops it, or the process that wants it is gone.

    python serve_while_wanted.py PROCESS FOLDER COMMAND...

The folder is deleted at the end in any case. So nothing that the command starts outlives the
process that wants it, even one that is killed. It needs nothing but Python.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time

LOOK_SECONDS = 0.5  # between two checks
GRACE_SECONDS = 20.0  # for the command to end by itself


def main() -> int:
    """Run the command; returns its exit status."""
    parent, folder, command = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
    wanted = [True]
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: wanted.clear())
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        while wanted and child.poll() is None and os.getppid() == parent:
            time.sleep(LOOK_SECONDS)
    finally:
        _end(child)
        shutil.rmtree(folder, ignore_errors=True)
    return child.returncode


def _end(child: "subprocess.Popen[bytes]") -> None:
    """End the command and all that it started, first by SIGTERM, then by SIGKILL."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(GRACE_SECONDS)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


if __name__ == "__main__":
    sys.exit(main())
