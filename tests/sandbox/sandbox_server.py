"""A server on the loopback that runs Python as SandboxFusion's `POST /run_code` does."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from fakes.loopback import Asked, Reply, loopback


@dataclass
class Served:
    """Where the server listens, what it was asked, and by how many connections."""

    url: str
    bodies: list[dict[str, Any]] = field(default_factory=list)
    connections: list[Any] = field(default_factory=list)


Instead = Callable[[dict[str, Any]], "tuple[int, str] | None"]


@contextmanager
def serve(instead: Instead = lambda body: None) -> Iterator[Served]:
    """`instead(body)` gives a status and a raw body, or None: the program is run."""

    def reply(asked: Asked) -> Reply:
        body = json.loads(asked.body)
        served.bodies.append(body)
        known = asked.path == "/run_code"
        return *((instead(body) or (200, run(body))) if known else (404, "no such place")), {}

    with loopback(reply) as server:
        served = Served(server.url, connections=server.connections)
        yield served


def run(body: dict[str, Any]) -> str:
    """What SandboxFusion answers: the process, and whether it went well."""
    assert body["language"] == "python"
    started = time.monotonic()
    command = [sys.executable, "-I", "-S", "-c", body["code"]]
    try:
        done = subprocess.run(
            command, input=body["stdin"], capture_output=True, text=True,
            timeout=body["run_timeout"],
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        result = {"status": "TimeLimitExceeded", "execution_time": body["run_timeout"],
                  "return_code": None, "stdout": "", "stderr": ""}  # fmt: skip
        return answer("Failed", result)
    result = {"status": "Finished", "execution_time": time.monotonic() - started,
              "return_code": done.returncode, "stdout": done.stdout,
              "stderr": done.stderr}  # fmt: skip
    return answer("Failed" if done.returncode else "Success", result)


def answer(status: str, result: dict[str, Any] | None, message: str = "") -> str:
    """The body of an answer."""
    return json.dumps(
        {"status": status, "message": message, "compile_result": None, "run_result": result,
         "executor_pod_name": None, "files": {}}
    )  # fmt: skip
