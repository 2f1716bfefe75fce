"""What each of several processes of a test does: runs, one after another.

A job has the settings of a run and its folder; one without settings goes on with a run. "breaks":
the process that fails in the first step. "full": a process, and the step from which on no file of
its may have more than some bytes.
"""

import os
import resource
import sys
from pathlib import Path
from typing import Any

from commands import collectors_copied, from_the_same_server

from strop.errors import RunStopped
from strop.evaluation.validate import validator
from strop.training import config, loop
from strop.training.apart import Apart
from strop.training.ranks import Ranks, join


class Silent:
    """A watcher that shows nothing. breaks: whether it fails. full: the step of a full disk."""

    def __init__(self, breaks: bool = False, full: int = 0) -> None:
        self.breaks, self.full = breaks, full

    def begin(self, run: Any, before: list[dict[str, float]]) -> None:
        """Nothing to show."""

    def step(self, run: Any, metrics: dict[str, float]) -> None:
        """Fail, or have no more room, if that is wanted."""
        if self.breaks:
            raise RunStopped("its memory is full")
        if self.full and run.done == self.full:
            resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))

    def note(self, text: str) -> None:
        """Nothing to show."""


def do(job: dict[str, Any], ranks: Ranks) -> None:
    """One run, from its first step or its newest checkpoint to its last step."""
    folder = Path(job["folder"])
    if "raw" in job:
        run = loop.start(config.make(job["raw"]), folder, ranks)
    else:
        raw = config.load(folder / "config.toml").model_dump()
        raw["training"]["steps"] = job["steps"]
        run = loop.resume(config.make(raw), folder, ranks=ranks)
    if job.get("turns"):
        run.world.collector = Apart(run.config, run.algorithm, run.world.policy, max_staleness=0)
    evaluation = run.config.evaluation
    process, step = job.get("full", (0, 0))
    watcher = Silent(job.get("breaks") == ranks.number, step if process == ranks.number else 0)
    try:
        loop.go(run, watcher, validator(evaluation.num_samples, evaluation.ks, run.config.seed))
    finally:
        run.close()


def join_and_do(environment: dict[str, str], jobs: list[dict[str, Any]], output: Path) -> None:
    """Do all jobs, as one of the processes that the environment tells of."""
    os.environ.update(environment)
    for number in (1, 2):
        os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    from_the_same_server()
    try:
        ranks = join()
        with ranks.speaking(), collectors_copied():
            for job in jobs:
                do(job, ranks)
    except RunStopped as error:
        print(f"said: {error}")
        sys.exit(1)
