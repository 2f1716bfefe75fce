"""Runs Python code on a server with SandboxFusion's interface (`POST URL/run_code`).

A failure of the connection raises NotRun: it says nothing about the code. So does a server's own
failure, whose cause may be the code: a failure that persists over retries counts as a crash.
"""

import json
import secrets
from typing import Literal

from pydantic import BaseModel, ValidationError

from strop.sandbox.run import Limits, NotRun, Ran
from strop.support.errors import UserError
from strop.support.exits import Exit
from strop.support.http import UNREAD, Failed, Http, Retries, TooLong, why_no_place

ANSWER_BYTES = 1 << 22  # of a server's answer; a program that prints more has failed
RETRIES = Retries(tries=4)


class Command(BaseModel):
    """How a process ended on the server."""

    status: Literal["Finished", "Error", "TimeLimitExceeded"]
    execution_time: float | None = None
    return_code: int | None = None
    stdout: str | None = None
    stderr: str | None = None


class Answer(BaseModel):
    """The server's answer to a run."""

    status: Literal["Success", "Failed", "SandboxError"]
    message: str = ""
    compile_result: Command | None = None
    run_result: Command | None = None


class RemoteSandbox:
    """Runs code on the server; `parallel` connections are kept.

    wait_seconds: for an answer, after the run's own limit, because the server may be busy.
    """

    def __init__(self, url: str, parallel: int, wait_seconds: float) -> None:
        if why := why_no_place(url):
            raise UserError(f"a code reward with url={url!r}: {why}")
        self.url = url.rstrip("/").removesuffix("/run_code") + "/run_code"
        self.wait_seconds = wait_seconds
        self.http = Http(wait_seconds, most_at_once=parallel, most_bytes=ANSWER_BYTES)

    def check(self) -> None:
        """Raise UserError where no server answers, or one that does not run Python."""
        try:
            ran, _ = self.run("print(6 * 7)", test=None, stdin="", limits=Limits())
        except NotRun as error:
            raise UserError(
                f"{error}: start a SandboxFusion server there, or mend the option url"
            ) from error
        if not ran.passed or ran.output.strip() != "42":
            problem = ran.how or ran.errors[-200:] or f"it printed {ran.output[:80]!r}, not 42"
            raise UserError(f"the sandbox at {self.url} does not run Python: {problem}")

    def run(self, code: str, *, test: str | None, stdin: str, limits: Limits) -> tuple[Ran, float]:
        """Run a program on `stdin`, or `test` after the code; returns also the seconds it took.

        A test passes when it runs to its end. Raises NotRun where the sandbox failed.
        """
        mark = secrets.token_hex(16)
        body = {
            "code": code if test is None else f"{code}\n\n{test}\n\nprint({chr(10) + mark!r})\n",
            "language": "python",
            "stdin": stdin,
            "run_timeout": limits.wall_seconds,
            "memory_limit_MB": max(1, limits.memory_bytes >> 20),
        }
        seconds = limits.wall_seconds
        try:
            answer = self.http.ask(
                self.url,
                body,
                read=_answer,
                retries=RETRIES,
                timeout_seconds=seconds + self.wait_seconds,
            )
        except TooLong:
            return Ran(False, "", "", f"printed over {ANSWER_BYTES} bytes"), seconds
        except SandboxFailed as error:
            raise NotRun(f"the sandbox at {self.url} failed: {error}", Exit.CRASH) from error
        except OSError as error:
            why = f"the sandbox at {self.url} did not answer: {error}"
            unread = isinstance(error, Failed) and error.status in UNREAD
            raise NotRun(why, Exit.UNREADABLE if unread else Exit.UNREACHABLE) from error
        ended = answer.run_result or answer.compile_result
        assert ended is not None, "_answer takes none without"
        how = f"over {seconds:g} s" if ended.status == "TimeLimitExceeded" else ""
        output, passed = ended.stdout or "", answer.status == "Success" and not how
        if test is not None:
            passed = passed and output.splitlines()[-1:] == [mark]
        took = seconds if ended.execution_time is None else ended.execution_time
        return Ran(passed, output, ended.stderr or "", how), took

    def most_seconds(self, run_seconds: float) -> float:
        """The longest time of a run, with all its tries."""
        return RETRIES.tries * (run_seconds + self.wait_seconds) + RETRIES.longest_wait


class SandboxFailed(Failed):
    """The server reported that it could not run the code."""


def _answer(body: bytes) -> Answer:
    """Parse the server's answer. Raises Failed for a malformed one and for the server's failure."""
    try:
        answer = Answer.model_validate(json.loads(body))
    except (ValidationError, ValueError, RecursionError) as error:
        raise Failed(f"an answer that is none of SandboxFusion's: {body[:200]!r}") from error
    if answer.status == "SandboxError" or (answer.run_result or answer.compile_result) is None:
        why = " ".join(answer.message.split())[:200] or "it gives no reason"
        raise SandboxFailed(why, again=True)
    return answer
