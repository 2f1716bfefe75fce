"""The runs of a comparison: each is a process with one thread, as many at a time as cores.

A run is a plain `strop train` in its own folder, so it can be resumed, inspected and reported like
any other. An interrupted worker lets its run finish the step and save.
"""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import connection, get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from strop.comparison.child import SERVER, run_strop
from strop.comparison.plan import Entry, Plan, Scoring
from strop.support.errors import RunStopped, UserError
from strop.support.processes import send
from strop.support.stopping import INTERRUPTED
from strop.support.writing import write_whole
from strop.tracking.metrics_file import NAME as METRICS
from strop.training.record.lock import Lock

COMPLETE = ".complete"  # a file in the folder of a run that has trained all its steps
TAIL = 1 << 18  # bytes that hold a whole line of metrics
PAUSE = 0.5  # seconds between two checks of the runs
MOST_WAITING = 60.0  # seconds to wait for a run that is still being saved


@dataclass
class Job:
    """One method with one seed. state: "waiting", "training", "scoring", "done", "failed"
    or "stopped" (by a signal, with its run saved).
    """

    entry: Entry
    seed: int
    root: Path
    state: str = "waiting"
    started: float = 0.0
    started_at: int = 0  # the last step done before this start

    @property
    def name(self) -> str:
        """Its name in messages."""
        return f"{self.entry.label} seed {self.seed}"

    @property
    def folder(self) -> Path:
        """The folder of its run."""
        return self.root / "runs" / f"{self.entry.slug}-{self.seed}"

    @property
    def ended(self) -> Path:
        """The file that says that its training is complete."""
        return self.folder / COMPLETE

    def scores_file(self, step: int) -> Path:
        """The file with a checkpoint's held-out scores; step 0: the model before training."""
        if step == 0:
            return self.root / "start.json"
        return self.folder / f"heldout-{step}.json"


def jobs_of(plan: Plan, folder: Path) -> list[Job]:
    """All runs of a comparison, seed by seed."""
    return [Job(entry, seed, folder) for seed in plan.seeds for entry in plan.entries]


class Stopped(RunStopped):
    """A signal has ended a run, or the comparison before the run could start."""


@dataclass
class Children:
    """The running processes; `stop` ends them so that their runs are saved."""

    running: set[Any] = field(default_factory=set)
    stopping: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self, arguments: Sequence[str]) -> str:
        """Run `strop` with arguments; returns its output. Raises RunStopped when it failed, and
        Stopped when a signal ended it, or after `stop`.
        """
        with TemporaryDirectory(prefix="strop-") as folder:
            out, error = Path(folder) / "out", Path(folder) / "error"
            with self.lock:
                if self.stopping:
                    raise Stopped("stopped")
                child = _begin(arguments, out, error)
                self.running.add(child)
            connection.wait([child.sentinel])
            # A start in another thread reads the exit codes of all ended processes, and each code
            # can be read only once: the second reader would see 255.
            with self.lock:
                child.join()
                self.running.discard(child)
            output, wrong = _text(out), _text(error)
        if child.exitcode == INTERRUPTED:
            raise Stopped("a signal stopped it, and it is saved: resume the comparison")
        if child.exitcode:
            lines = wrong.strip().splitlines() or [f"exit code {child.exitcode}"]
            why, _, _ = lines[-1].partition(" Resume with: strop train")  # the comparison resumes
            raise RunStopped(why.removeprefix("error: ").removeprefix("stopped: "))
        return output

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Ask all processes to end, and start no other one."""
        with self.lock:
            self.stopping = True
            for child in self.running:
                send(child.pid, number)


def _begin(arguments: Sequence[str], out: Path, error: Path) -> Any:
    """Start a process of one thread that runs `strop`, forked from one that has imported it."""
    context: Any = get_context("forkserver")
    context.set_forkserver_preload([SERVER])
    threads = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        process = context.Process(target=run_strop, args=([*map(str, arguments)], out, error))
        with _main_hidden():
            process.start()
    finally:
        del os.environ["OMP_NUM_THREADS"]
        if threads is not None:
            os.environ["OMP_NUM_THREADS"] = threads
    return process


@contextmanager
def _main_hidden() -> Iterator[None]:
    """Inside, a new process does not run this process's main script a second time."""
    main = sys.modules["__main__"]
    names = [name for name in ("__file__", "__spec__") if name in vars(main)]
    hidden: dict[str, Any] = {name: vars(main).pop(name) for name in names}
    main.__spec__ = None
    try:
        yield
    finally:
        vars(main).update(hidden)


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


def work(
    plan: Plan,
    jobs: Sequence[Job],
    workers: int,
    show: Callable[[], None],
    stopping: Callable[[], None],
) -> list[str]:
    """Run and score all jobs; calls `show` about twice a second. Returns one line for each failure.

    An interrupt, and an error of `show`, let the runs finish their step and save, and are then
    raised; a second interrupt ends the runs at once. `stopping` is called before they are awaited,
    except where nothing more can be shown.
    """
    children, failures = Children(), list[str]()
    with ThreadPoolExecutor(workers) as pool:
        waiting = {pool.submit(train_and_score, plan, job, children): job for job in jobs}
        try:
            _watch(waiting, failures, show)
        except BaseException as error:  # also SystemExit, where the output is closed
            for future in waiting:
                future.cancel()
            children.stop()
            if isinstance(error, KeyboardInterrupt | UserError):
                stopping()
            if not isinstance(error, KeyboardInterrupt):
                show = _nothing
            try:
                _watch(waiting, failures, show)
            except KeyboardInterrupt:
                children.stop(signal.SIGKILL)
            raise
    return failures


def _nothing() -> None:
    pass


def _watch(waiting: dict[Future[None], Job], failures: list[str], show: Callable[[], None]) -> None:
    """Wait until all have ended, and record failures."""
    pending = {future for future in waiting if not future.cancelled()}
    while pending:
        finished, pending = wait(pending, timeout=PAUSE, return_when=FIRST_COMPLETED)
        for future in finished:
            if error := future.exception():
                stopped = isinstance(error, Stopped)
                waiting[future].state = "stopped" if stopped else "failed"
                failures.append(f"{waiting[future].name}: {error}")
        show()


def train_and_score(plan: Plan, job: Job, children: Children) -> None:
    """Train unless the run is complete, and score the checkpoints that have no scores yet."""
    if not job.ended.exists():
        job.started_at, job.started = last_step(job.folder), time.monotonic()
        job.state = "training"
        if (job.folder / "config.toml").exists():
            _wait_until_free(job.folder)
            children.run(["train", "--resume", str(job.folder), "--quiet"])
        else:
            config = job.root / "runs" / f"{job.entry.slug}.toml"
            where = ["--out", str(job.folder), "--quiet"]
            children.run(["train", "--config", str(config), f"seed={job.seed}", *where])
        job.ended.touch()
    job.state = "scoring"
    first = job.entry == plan.entries[0] and job.seed == plan.seeds[0]
    for step in (*((0,) if plan.scoring.start and first else ()), *plan.scoring.at):
        _score(plan.scoring, job, step, children)
    job.state = "done"


def _wait_until_free(folder: Path) -> None:
    """Wait for the run of a killed comparison, which ends its step and saves by itself.

    Raises UserError when another process still uses it after `MOST_WAITING`.
    """
    lock, last = Lock(folder), time.monotonic() + MOST_WAITING
    while True:
        try:
            lock.take()
        except UserError:
            if time.monotonic() > last:
                raise
            time.sleep(PAUSE)
        else:
            lock.free()
            return


def _score(scoring: Scoring, job: Job, step: int, children: Children) -> None:
    """Score a checkpoint, or the model before training, on held-out rows, unless already done."""
    path = job.scores_file(step)
    if path.exists():
        return
    options = ["--k", ",".join(map(str, scoring.ks)), "--samples", str(scoring.samples)]
    options += ["--prompts", str(scoring.prompts), "--trust-files", "--json"]
    options += [word for file in scoring.files for word in ("--data", file)]
    where = ["--start"] if step == 0 else ["--step", str(step)]
    found = children.run(["eval", str(job.folder), *where, *options])
    write_whole(path, found)


def last_step(folder: Path) -> int:
    """The last step that a run has written; 0 before the first."""
    return int(latest(folder).get("step", 0))


def latest(folder: Path) -> dict[str, Any]:
    """The numbers of the last step that a run has written; empty before the first."""
    path = folder / METRICS
    if not path.is_file():
        return {}
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - TAIL))
        lines = file.read().split(b"\n")[:-1]  # after the last end of line nothing is complete
    return dict(json.loads(lines[-1])) if lines else {}
