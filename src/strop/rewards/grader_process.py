"""The training process's side of the process that holds the loaded reward functions."""

import contextlib
import json
import pickle
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from strop.rewards.source import RewardSpec, parse
from strop.support import guarded_process
from strop.support.errors import UserError
from strop.support.guarded_process import GuardedProcess
from strop.support.loading import search_path

START_SECONDS = 120.0  # for loading the user's module, and for the imports of a call
MODEL_START_SECONDS = 1800.0  # for loading the weights of a reward model, or of a judge
_WORKER = "strop.rewards.grader_worker"


class WorkerDied(Exception):
    """The process ended by itself, or sent something that is no reply; the text says how."""


class NotStarted(Exception):
    """A process that had died could not be restarted; the text says why."""


class WorkerProcess(GuardedProcess):
    """One process that holds the loaded reward functions; a request restarts it if it has died.

    `deadline` is when the reply is due. Imports of a call do not count: they have a limit of their
    own, and the process reports when they start and end.
    """

    def __init__(self, specs: Sequence[RewardSpec], log: Path | None) -> None:
        self.specs = tuple(specs)
        self.log = log
        self.deadline = 0.0
        self._left = 0.0  # seconds left for importing, or, during an import, for the call
        self._importing = False
        self._asked = 0  # number of the last request
        self.facts: list[dict[str, Any]] = []  # for each function: independent rows, own time limit

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
            raise UserError(f"loading the rewards {sources}: {error}: correct the file") from error
        except TimeoutError as error:
            raise UserError(
                f"loading the rewards {sources} took over {self._start_seconds:g} s: "
                "move slow work out of the import"
            ) from error

    def ask(self, request: dict[str, Any], limit: float) -> None:
        """Send a request whose reply is due in `limit` seconds, to a new process if necessary.

        Raises NotStarted.
        """
        try:
            self._write(request, limit)
        except (OSError, EOFError):  # it has died since the last reply; nothing was lost
            try:
                self.start()
                self.finish_start()
                self._write(request, limit)
            except (OSError, EOFError, UserError) as error:
                self.end()
                raise NotStarted(f"the process of the rewards does not start: {error}") from error

    def receive(self) -> dict[str, Any]:
        """Wait for the reply. Raises WorkerDied, TimeoutError, or the process's UserError."""
        reply = self.news()
        while reply is None:
            reply = self.news()
        return reply

    def news(self) -> dict[str, Any] | None:
        """The reply, or None for a message about imports. Raises as `receive` does."""
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
        """End the process after an invalid reply and return the error to raise."""
        return self._died(
            "the process sent something that is no reply; does it write to files that it did not "
            "open?"
        )

    def _died(self, how: str) -> WorkerDied:
        self.end()
        return WorkerDied(how)

    @property
    def _start_seconds(self) -> float:
        sources = [parse(spec.source) for spec in self.specs]
        models = any(source.kind == "model" or "model" in source.options for source in sources)
        return MODEL_START_SECONDS if models else START_SECONDS

    def _write(self, request: dict[str, Any], limit: float) -> None:
        if self.channel is None:
            raise EOFError("not started")
        self._asked, self._importing = self._asked + 1, False
        self.deadline, self._left = time.monotonic() + limit, START_SECONDS
        self.channel.settimeout(limit)
        content = {**request, "number": self._asked}
        guarded_process.send(self.channel, pickle.dumps(content, protocol=pickle.HIGHEST_PROTOCOL))
