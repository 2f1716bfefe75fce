"""Keeps the report of running runs up to date in a browser on this machine."""

import hashlib
import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

from strop.report.about import best_of, parsed
from strop.report.html import document
from strop.report.local_server import LocalServer, Reply
from strop.report.page import body, parts, title_of, unique_names
from strop.report.run_folder import STOPPED, Reader, Run
from strop.support.errors import UserError
from strop.training.record.lock import in_use

SOON, LATE = 2.0, 15.0  # seconds between updates: at least; at most, or for a stopped run
RECENT = 50  # newest steps, from which the remaining time is estimated


@dataclass(frozen=True)
class State:
    """How far a run is, in words, and the seconds until the next update; 0: never."""

    text: str
    wait: float


def state_of(run: Run, active: bool) -> State:
    """Complete, finishing, training, starting or stopped; `active`: whether a process runs it."""
    step = run.num_steps
    steps = parsed(run.config).get("training", {}).get("steps", 0)
    failed = any(note.startswith(STOPPED) for note in run.notes)
    if steps and step >= steps and active:  # the last weights are not saved yet
        return State(f"finishing, step {step:,} of {steps:,}", SOON)
    if steps and step >= steps and not failed:
        return State(f"complete, {_counted(step)}", 0)
    if not active and (best := best_of(run)) and best.ended_early:
        why = f"nothing better since step {best.step}"
        return State(f"complete, ended early after {_counted(step)}: {why}", 0)
    of = f" of {steps:,}" if steps else ""
    if not active:
        after = f"after step {step:,}{of}" if step else "before the first step"
        return State(f"stopped {after}", LATE)
    if not step:
        return State("starting, no step yet", SOON)
    seconds = _seconds(run)
    left = f", {_time(seconds * (steps - step))} left" if steps and seconds else ""
    return State(f"training, step {step:,}{of}{left}", min(max(SOON, seconds / 2), LATE))


def _counted(steps: int) -> str:
    return f"{steps:,} step{'' if steps == 1 else 's'}"


def _seconds(run: Run) -> float:
    """Mean seconds of the newest steps, with validation; 0 when they are not recorded."""
    total = sum(
        float(values[steps > run.num_steps - RECENT].sum())
        for steps, values in map(run.series, ("step_time", "timing_s/eval"))
    )
    return total / min(run.num_steps, RECENT)


def _time(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


class Watched:
    """The runs as they were last read, and the page about them."""

    def __init__(self, folders: Sequence[Path]) -> None:
        """Raises UserError without a run, and for a folder that is not a run."""
        if not folders:
            raise UserError("strop watch needs at least one run's folder.")
        self.folders = list(folders)
        self.readers = [Reader(folder) for folder in folders]
        self.runs = [reader.read() for reader in self.readers]
        self.rendered: Any = None
        self.parts: dict[str, str] = {}
        self.version = ""
        self.lock = threading.Lock()

    def look(self) -> dict[str, Any]:
        """The page's current parts, title and version, and the seconds until the next update."""
        with self.lock:
            states = [self._state(index) for index in range(len(self.runs))]
            runs = unique_names(self.runs, self.folders)
            alone = len(runs) == 1
            texts = [
                state.text if alone else f"{run.name}: {state.text}"
                for run, state in zip(runs, states, strict=True)
            ]
            self._render(runs, texts)
        waits = [state.wait for state in states if state.wait]
        title = f"{texts[0]} - {title_of(runs)}" if alone else title_of(runs)
        return {
            "version": self.version,
            "title": title,
            "wait": min(waits, default=0),
            "parts": self.parts,
        }

    def _render(self, runs: Sequence[Run], texts: Sequence[str]) -> None:
        """Render the page's parts again if any run or its state has changed."""
        if self.rendered != (now := ([id(run) for run in self.runs], texts)):
            self.rendered, self.parts = now, parts(runs, texts)
            self.version = hashlib.sha256(repr(self.parts).encode()).hexdigest()[:16]

    def _state(self, index: int) -> State:
        """Read one run again; if it cannot be read, the last one read stays."""
        active = in_use(self.folders[index])  # asked first: an ended run is then read completely
        try:
            self.runs[index] = self.readers[index].read()
        except UserError as error:
            return State(f"cannot be read: {error}", LATE)
        return state_of(self.runs[index], active)


def open_server(watched: Watched, port: int) -> LocalServer:
    """A server of the page and of its updates. Raises UserError as `LocalServer` does."""

    def reply(path: str, query: Mapping[str, str]) -> Reply:
        if path not in ("", "data"):
            return Reply("there is only the report", "text/plain", HTTPStatus.NOT_FOUND)
        now = watched.look()
        if not path:
            return Reply(document(now["title"], body(now["parts"]), served="watch.js"))
        if query.get("seen") == now["version"]:
            del now["parts"]
        return Reply(json.dumps(now, ensure_ascii=False), "application/json")

    return LocalServer(reply, port)
