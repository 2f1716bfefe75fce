"""Runs trackers beside a run's own watcher: a slow or broken tracker costs the run nothing.

tracking.json stores each tracker's id of the run, so a resumed run resumes in the trackers too.
"""

import atexit
import json
import queue
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from strop.support.errors import UserError
from strop.support.files import flat
from strop.support.writing import write_whole, writing
from strop.tracking.base import RunInfo, Samples, Tracker, open_tracker
from strop.tracking.metrics_file import is_number
from strop.tracking.rollouts_file import read_table

NAME = "tracking.json"
WRITTEN = ("tensorboard", "wandb")  # folders of trackers in the run's folder
MOST_BEHIND = 1000  # a tracker with more pending calls counts as hanging
END_SECONDS, BREAK_SECONDS = 60.0, 5.0  # to send what is pending: at the end; after an error


class Line:
    """One tracker, called in a thread of its own, in order."""

    def __init__(self, kind: str, tracker: Tracker) -> None:
        self.kind, self.tracker = kind, tracker
        self.why = ""  # why it is called no more; empty while it works
        self.reported = False
        self._calls: queue.Queue[Callable[[Tracker], None] | None] = queue.Queue()
        self._thread = threading.Thread(target=self._work, name=f"strop-{kind}", daemon=True)
        self._thread.start()

    def send(self, call: Callable[[Tracker], None]) -> None:
        """Queue a call; returns at once, whatever the tracker does."""
        if not self.why and self._calls.qsize() >= MOST_BEHIND:
            self.why = f"it is {MOST_BEHIND} calls behind"
        if not self.why:
            self._calls.put(call)

    def end(self, ok: bool, by: float) -> None:
        """Queue the last call, and wait for it until the time `by`."""
        self.send(lambda tracker: tracker.end(ok))
        if not self.why:
            self._calls.put(None)
            self._thread.join(max(by - time.monotonic(), 0.0))
            if self._thread.is_alive():
                self.why = "it is still sending, and the run does not wait for it"

    def complaint(self) -> str:
        """What went wrong, at the first call after it did; else empty."""
        if not self.why or self.reported:
            return ""
        self.reported = True
        return (
            f"the tracker {self.kind} gets no more data: {self.why}; the run continues, and "
            "metrics.jsonl has everything"
        )

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                call(self.tracker)
            except BaseException as error:  # also SystemExit; reported at the next step
                self.why = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
                return


class Trackers:
    """A watcher of the run that also passes on to trackers what it sees."""

    def __init__(self, watcher: Any) -> None:
        self.watcher = watcher
        self.lines: list[Line] = []
        self.ended = False

    def begin(self, run: Any, before: list[dict[str, float]]) -> None:
        """Open the trackers, all or none. Raises UserError.

        before: metrics of the steps already done, which are sent to trackers new to the run.
        """
        folder, settings = run.record.folder, run.config.tracking
        known = read_ids(folder)
        for kind in settings.to:
            info = RunInfo(
                folder=folder,
                project=settings.project,
                name=settings.name or folder.resolve().name,
                config=dict(flat(run.config.model_dump(mode="json"))),
                text=run.config.to_toml(),
                step=run.done,
                id=known.get(kind, ""),
            )
            line = Line(kind, open_tracker(kind, info))
            self.lines.append(line)
            known = {**known, kind: line.tracker.id}
            with writing(folder, NAME):
                write_whole(folder / NAME, json.dumps(known))
            if before and not info.id:  # in one call: they may be more than MOST_BEHIND
                line.send(_catching_up(before))
        self.watcher.begin(run, before)

    def step(self, run: Any, metrics: dict[str, float]) -> None:
        """Send a step's metrics, and some of its rollouts if they were written."""
        step, folder = run.done, run.record.folder
        samples = sampled(folder, step, run.config.tracking.samples)
        for line in self.lines:
            line.send(_metrics(metrics, step))
            if samples is not None:
                line.send(lambda tracker: tracker.samples(step, samples))
        self._complain()
        self.watcher.step(run, metrics)

    def note(self, text: str) -> None:
        """Show the user a sentence."""
        self.watcher.note(text)

    def end(self, ok: bool) -> None:
        """Let the trackers send what is pending, for a limited time."""
        if self.ended:
            return
        self.ended = True
        by = time.monotonic() + (END_SECONDS if ok else BREAK_SECONDS)
        for line in self.lines:
            line.end(ok, by)
        self._complain()

    def _complain(self) -> None:
        for line in self.lines:
            if complaint := line.complaint():
                self.note(complaint)


@contextmanager
def tracked(run: Any, watcher: Any) -> Iterator[Any]:
    """The run's watcher, combined with its trackers if it has any."""
    if not run.config.tracking.to or not run.ranks.first:
        yield watcher
        return
    trackers, ok = Trackers(watcher), False
    # A script may abandon the loop over steps; at its end, this lets the trackers finish.
    atexit.register(trackers.end, True)
    try:
        yield trackers
        ok = True
    except GeneratorExit:  # the caller stops iterating over steps
        ok = True
        raise
    finally:
        trackers.end(ok)
        atexit.unregister(trackers.end)


def forget(folder: Path) -> None:
    """Remove what trackers wrote into the folder of a run that never took a step."""
    (folder / NAME).unlink(missing_ok=True)
    for name in WRITTEN:
        shutil.rmtree(folder / name, ignore_errors=True)


def read_ids(folder: Path) -> dict[str, str]:
    """Each tracker's id of the run. Raises UserError for a damaged file."""
    path = folder / NAME
    try:
        found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise UserError(f"{path} is damaged: repair it, or remove it to start over there")
    return {str(kind): str(id) for kind, id in found.items()}


def _catching_up(before: list[dict[str, float]]) -> Callable[[Tracker], None]:
    calls = [_metrics(metrics, int(metrics["step"])) for metrics in before]

    def tell(tracker: Tracker) -> None:
        for call in calls:
            call(tracker)

    return tell


def _metrics(values: dict[str, float], step: int) -> Callable[[Tracker], None]:
    finite = {k: float(v) for k, v in values.items() if k != "step" and is_number(v)}
    return lambda tracker: tracker.metrics(step, finite)


FIRST = ("prompt", "completion", "reward")
SHOWN = 600  # maximum characters of a text on a terminal
LAST = ("advantage", "length", "truncated", "scored")


def sampled(folder: Path, step: int, most: int) -> Samples | None:
    """At most `most` rollouts of a step, spread over it; None when it wrote none.

    folder: of the run.
    """
    path = folder / "rollouts" / f"step-{step:06d}.parquet"
    if most < 1 or not path.is_file():
        return None
    table = read_table(path)
    components = [name for name in table.column_names if name.startswith("reward/")]
    columns = [*FIRST, *components, *LAST]
    size = table.num_rows
    if not size:
        return None
    num = min(most, size)
    picked = table.select(columns).take([i * size // num for i in range(num)])
    return Samples(columns, [list(row.values()) for row in picked.to_pylist()])


def shortened(text: str) -> str:
    """A text for a terminal; a long one is shortened to its beginning and end."""
    half = SHOWN // 2
    return text if len(text) <= SHOWN else f"{text[:half]} ... {text[-half:]}"
