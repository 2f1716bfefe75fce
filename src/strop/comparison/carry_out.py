"""A comparison from its plan to its tables and page: for the command and for scripts alike."""

import os
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console

from strop.comparison.page import write_page
from strop.comparison.plan import Plan
from strop.comparison.progress import RunsProgress
from strop.comparison.runs import Job, work
from strop.comparison.scores import Row, collect
from strop.comparison.table import write_tables
from strop.support.stopping import interrupting
from strop.training.record.lock import Lock


@dataclass(frozen=True)
class Outcome:
    """The result of a comparison: a row a scored checkpoint, and what failed, a line each."""

    rows: tuple[Row, ...]
    failures: tuple[str, ...]
    num_runs: int


def carry_out(plan: Plan, folder: Path, workers: int, console: Console) -> Outcome:
    """Do all that is left of a comparison, then write its tables and page.

    Raises KeyboardInterrupt after Ctrl-C, with every run saved.
    """
    jobs = [Job(entry, seed, folder) for seed in plan.seeds for entry in plan.entries]
    lock = Lock(folder)
    lock.take()
    try:
        console.print(
            f"{len(plan.entries)} methods, {len(plan.seeds)} seeds, {plan.steps} steps -> {folder}",
            markup=False,
        )
        with interrupting(), RunsProgress(console, jobs, plan.steps) as progress:
            failures = work(
                plan, jobs, workers or _cores(), progress.update,
                lambda: progress.note("stopping: the runs finish their step and save"),
            )  # fmt: skip
        rows, runs = collect(plan, jobs)
        if rows:
            write_tables(plan, rows, folder)
            write_page(plan, rows, runs, failures, folder / "compare.html")
    finally:
        lock.free()
    return Outcome(tuple(rows), tuple(failures), len(jobs))


def _cores() -> int:
    """How many runs train at a time; on a GPU, whose memory they would share, one."""
    if torch.cuda.is_available():
        return 1
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
