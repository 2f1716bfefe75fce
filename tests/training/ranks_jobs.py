"""Several processes of a test, and the work of each: runs, one after another.

A job has the settings of a run and its folder; one without settings resumes a run. "breaks": the
process that fails in the first step. "stands": the one that does nothing there, and never returns.
"disk": the process whose checkpoints never reach the disk. "layers": weights are gathered layer by
layer, as large ones are. "full": a process, and the step from which its files have a size limit.
"""

import faulthandler
import os
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from commands import collectors_copied, forked, from_the_same_server, graders_copied

from strop.evaluation.run import validator
from strop.support.errors import RunStopped
from strop.training import loop
from strop.training.collect.asynchronous import AsynchronousCollector
from strop.training.parallel import relaunched, shards
from strop.training.parallel.ranks import Ranks, join
from strop.training.settings import config

SMALL = shards.WHOLE_BYTES


class Silent:
    """A watcher that shows nothing. breaks, stands: whether it fails or hangs. full: the step of a
    full disk.
    """

    def __init__(self, breaks: bool = False, stands: bool = False, full: int = 0) -> None:
        self.breaks, self.stands, self.full = breaks, stands, full

    def begin(self, run: Any, before: list[dict[str, float]]) -> None:
        """Nothing to show."""

    def step(self, run: Any, metrics: dict[str, float]) -> None:
        """Fail, hang, or have no more room, if that is wanted."""
        if self.breaks:
            raise RunStopped("its memory is full")
        if self.stands:
            time.sleep(1000)
        if self.full and run.done == self.full:
            resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))

    def note(self, text: str) -> None:
        """Nothing to show."""


def hang_at_checkpoints(file: int) -> None:
    """What writing to the disk does where its checkpoints never arrive."""
    if "/checkpoints/" in os.readlink(f"/proc/self/fd/{file}"):
        time.sleep(1000)


def do(job: dict[str, Any], ranks: Ranks) -> None:
    """One run, from its first step or its newest checkpoint to its last step."""
    folder = Path(job["folder"])
    shards.WHOLE_BYTES = 0 if job.get("layers") else SMALL
    if "raw" in job:
        run = loop.start(config.make(job["raw"]), folder, ranks)
    else:
        raw = config.load(folder / "config.toml").model_dump()
        raw["training"]["steps"] = job["steps"]
        run = loop.resume(config.make(raw), folder, ranks=ranks)
    if job.get("turns"):
        run.world.collector = AsynchronousCollector(
            run.config, run.algorithm, run.world.policy, max_staleness=0
        )
    if job.get("disk") == ranks.number:
        os.fsync = hang_at_checkpoints
    evaluation = run.config.evaluation
    process, step = job.get("full", (0, 0))
    watcher = Silent(
        job.get("breaks") == ranks.number,
        job.get("stands") == ranks.number,
        step if process == ranks.number else 0,
    )
    try:
        loop.go(run, watcher, validator(evaluation.num_samples, evaluation.ks, run.config.seed))
    finally:
        run.close()


def join_and_do(environment: dict[str, str], jobs: list[dict[str, Any]], output: Path) -> None:
    """Do all jobs, as one of the processes that the environment tells of."""
    os.environ.update(environment)
    for number in (1, 2):
        os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    faulthandler.enable()  # as the command does
    from_the_same_server()
    try:
        ranks = join()
        with ranks.speaking(), collectors_copied(), graders_copied():
            for job in jobs:
                do(job, ranks)
    except RunStopped as error:
        print(f"said: {error}")
        sys.exit(1)


@contextmanager
def surroundings(count: int) -> Iterator[list[dict[str, str]]]:
    """What torchrun puts into the environment of so many processes, while its store is there."""
    store = relaunched.new_store()
    shared = {"WORLD_SIZE": str(count), **relaunched.started_by("127.0.0.1", store.port)}
    yield [{"RANK": str(n), "LOCAL_RANK": str(n), **shared} for n in range(count)]


def ends(processes: list[Any]) -> list[int]:
    """Their exit codes."""
    for process in processes:
        process.join(300)
    return [process.exitcode for process in processes]


def launch(count: int, jobs: list[dict[str, Any]], folder: Path) -> tuple[list[int], str]:
    """Run the jobs in so many processes: their exit codes, and what they printed."""
    output = folder / f"said-{count}"
    with surroundings(count) as places:
        codes = ends([forked(join_and_do, each, jobs, output) for each in places])
    return codes, output.read_text(encoding="utf-8")


def wait_for_steps(lines: Path, processes: list[Any], output: Path) -> None:
    """Until two lines of metrics are written."""
    end = time.monotonic() + 300
    while not lines.exists() or len(lines.read_text().splitlines()) < 2:
        assert all(process.is_alive() for process in processes), output.read_text()
        assert time.monotonic() < end
        time.sleep(0.02)
