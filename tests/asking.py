"""Ray starts this in place of a worker, and Jupyter in place of a kernel: it requests a copied
process that acts as one, and ends with it.
"""

import json
import os
import socket
import sys
import time


def main() -> None:
    """Hand over the words, the environment and the files that the process was to have."""
    words = [word for word in sys.argv[1:] if not word.startswith(SETTING_UP)]
    given = {"words": words, "environment": {**os.environ}, "folder": os.getcwd()}
    with socket.socket(socket.AF_UNIX) as copies:
        connect(copies, os.environ["COPIES_ASKED_FOR_AT"])
        content = json.dumps(given).encode()
        socket.send_fds(copies, [len(content).to_bytes(8)], [0, 1, 2])
        copies.sendall(content)
        copies.recv(1)


def connect(copies: socket.socket, address: str) -> None:
    """Wait for the one that copies, which begins as Ray does."""
    end = time.monotonic() + 60
    while True:
        try:
            return copies.connect(address)
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.02)


# For Ray's own program, which this replaces: no worker here has an environment of its own.
SETTING_UP = ("--serialized-runtime-env-context=", "--language=")

if __name__ == "__main__":
    main()
