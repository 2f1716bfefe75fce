"""What each process of a test's torchrun does: the runs of a file of jobs, one after another.

    torchrun --nproc-per-node 2 tests/training/ranks_jobs.py JOBS

A job has the settings of a run and its folder; one without settings goes on with a run. "breaks":
the process that fails in the first step.
"""

import json
import sys
from pathlib import Path
from typing import Any

from strop.errors import RunStopped
from strop.evaluation.validate import validator
from strop.training import config, loop
from strop.training.ranks import Ranks, join


class Silent:
    """A watcher that shows nothing. breaks: whether it fails."""

    def __init__(self, breaks: bool = False) -> None:
        self.breaks = breaks

    def begin(self, run: Any, before: list[dict[str, float]]) -> None:
        """Nothing to show."""

    def step(self, run: Any, metrics: dict[str, float]) -> None:
        """Fail, if that is wanted."""
        if self.breaks:
            raise RunStopped("its memory is full")

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
    evaluation = run.config.evaluation
    watcher = Silent(job.get("breaks") == ranks.number)
    try:
        loop.go(run, watcher, validator(evaluation.num_samples, evaluation.ks, run.config.seed))
    finally:
        run.close()


def main(path: Path) -> None:
    """Do all jobs."""
    ranks = join()
    with ranks.speaking():
        for job in json.loads(path.read_text(encoding="utf-8")):
            do(job, ranks)


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]))
    except RunStopped as error:
        print(f"said: {error}")
        sys.exit(1)
