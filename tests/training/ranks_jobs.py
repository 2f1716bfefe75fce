"""What each process of a test's torchrun does: the runs of a file of jobs, one after another.

    torchrun --nproc-per-node 2 tests/training/ranks_jobs.py JOBS

A job has the settings of a run and its folder; one without settings goes on with a run.
"""

import json
import sys
from pathlib import Path
from typing import Any

from strop.evaluation.validate import validator
from strop.training import config, loop
from strop.training.ranks import Ranks, join


class Silent:
    """A watcher that shows nothing."""

    def begin(self, run: Any, before: list[dict[str, float]]) -> None:
        """Nothing to show."""

    def step(self, run: Any, metrics: dict[str, float]) -> None:
        """Nothing to show."""

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
    try:
        loop.go(run, Silent(), validator(evaluation.num_samples, evaluation.ks, run.config.seed))
    finally:
        run.close()


if __name__ == "__main__":
    processes = join()
    with processes.speaking():
        for each in json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")):
            do(each, processes)
