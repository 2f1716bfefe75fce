"""The process that holds the loaded reward functions, as the training process sees it."""

import contextlib
import json
import pickle
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from strop.rewards.source import RewardSpec
from strop.support import guarded_process
from strop.support.errors import UserError
from strop.support.guarded_process import GuardedProcess
from strop.support.loading import search_path

START_SECONDS = 120.0  # of loading the user's module, and of what a call imports
MODEL_START_SECONDS = 1800.0  # reading the weights of a reward model
_WORKER = "strop.rewards.grader_worker"


class WorkerDied(Exception):
    """The process ended by itself, or said what is no reply; the text says how."""


class NotStarted(Exception):
    """A process that had died could not be started again; the text says why."""


class WorkerProcess(GuardedProcess):
    """One process that holds the loaded reward functions; starts again when asked after death.

    `deadline` is when the reply is due. What a call imports does not count there: that has a limit
    of its own, and the process says when it begins and ends.
    """

    def __init__(self, specs: Sequence[RewardSpec], log: Path | None) -> None:
        self.specs = tuple(specs)
        self.log = log
        self.deadline = 0.0
        self._left = 0.0  # seconds for importing; while it imports, for the rest of the call
        self._importing = False
        self._asked = 0  # number of the last request
        self.facts: list[dict[str, Any]] = []  # of each function: independent rows, own time

    def start(self) -> None:
        """Launch the process and ask it to load the functions; `finish_start` waits for it."""
        with contextlib.ExitStack() as opened:
            log = None if self.log is None else opened.enter_context(self.log.open("ab"))
            self.launch(_WORKER, 2 if log is None else log)
        request = {"operation": "load", "specs": self.specs, "path": search_path()}
        self._write(request, self._start_seconds)

    def finish_start(self) -> None:
        """Wait until the functions are loaded.

        Raises UserError for what `load_reward` refuses and for a file that ends the process.
        """
        sources = ", ".join(spec.source for spec in self.specs)
        try:
            self.facts = self.receive()["facts"]
        except WorkerDied as error:
            raise UserError(f"loading the rewards {sources}: {error}: mend the file") from error
        except TimeoutError as error:
            raise UserError(
                f"loading the rewards {sources} took over {self._start_seconds:g} s: "
                "move slow work out of the import"
            ) from error

    def ask(self, request: dict[str, Any], limit: float) -> None:
        """Send a request whose reply is due in `limit` seconds, in a new process if need be.

        Raises NotStarted.
        """
        try:
            self._write(request, limit)
        except (OSError, EOFError):  # it died since the last reply; nothing was lost
            try:
                self.start()
                self.finish_start()
                self._write(request, limit)
            except (OSError, EOFError, UserError) as error:
                self.end()
                raise NotStarted(f"the process of the rewards does not start: {error}") from error

    def receive(self) -> dict[str, Any]:
        """The reply. Raises WorkerDied, TimeoutError, or the UserError that the process met."""
        reply = self.news()
        while reply is None:
            reply = self.news()
        return reply

    def news(self) -> dict[str, Any] | None:
        """The reply; None where the call has begun or ended to import. Raises as `receive`."""
        assert self.channel is not None
        try:
            reply = json.loads(guarded_process.receive(self.channel, self.deadline))
            about = reply["number"]
        except EOFError:
            raise self._died(self.how_it_died()) from None
        except (ValueError, LookupError, TypeError, RecursionError):
            raise self.malformed() from None
        except TimeoutError:
            self.end()
            raise
        if about != self._asked:
            raise self.malformed()
        if "imports" in reply:
            if reply["imports"] != self._importing:
                now, self._importing = time.monotonic(), not self._importing
                self.deadline, self._left = now + self._left, self.deadline - now
            return None
        if "user_error" in reply:
            raise UserError(reply["user_error"])
        return dict(reply)

    def malformed(self) -> WorkerDied:
        """End the process for a reply that is none; the error to raise."""
        return self._died(
            "the process sent what is no reply; does it write to files that it did not open?"
        )

    def _died(self, how: str) -> WorkerDied:
        self.end()
        return WorkerDied(how)

    @property
    def _start_seconds(self) -> float:
        models = any(spec.source.startswith("model:") for spec in self.specs)
        return MODEL_START_SECONDS if models else START_SECONDS

    def _write(self, request: dict[str, Any], limit: float) -> None:
        if self.channel is None:
            raise EOFError("not started")
        self._asked, self._importing = self._asked + 1, False
        self.deadline, self._left = time.monotonic() + limit, START_SECONDS
        self.channel.settimeout(limit)
        content = {**request, "number": self._asked}
        guarded_process.send(self.channel, pickle.dumps(content, protocol=pickle.HIGHEST_PROTOCOL))
