"""A comparison carried out: for the command and for scripts alike."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from strop.comparison.page import write_page
from strop.comparison.plan import Plan, Scoring, entry_of
from strop.comparison.runs import Job, work
from strop.comparison.scores import Row, collect
from strop.comparison.table import write_tables
from strop.door.evaluating import ALONE
from strop.door.runs_shown import Shown
from strop.errors import UserError
from strop.training.config import RunConfig
from strop.training.lock import Lock
from strop.training.setup import load_prompts
from strop.training.stopping import interrupting

Found = Sequence[tuple[str, RunConfig, Any]]  # label, settings and values of a sweep


def plan_of(
    found: Found, seeds: int, steps: int, scoring: Scoring, baseline: str, swept: str = ""
) -> Plan:
    """The plan of methods; without steps those of the first. Raises UserError."""
    steps = steps or found[0][1].training.steps
    _check_scored(found, scoring)
    entries = tuple(entry_of(label, each, steps, scoring.at, v) for label, each, v in found)
    baseline = baseline or entries[0].label
    return Plan(entries, tuple(range(seeds)), steps, scoring, baseline, swept)


def _check_scored(found: Found, scoring: Scoring) -> None:
    """Raise UserError where no rows are there to score on, which else all runs came before."""
    seen = []
    for label, settings, _ in found if scoring.by == "steps" else ():
        data = settings.data
        if scoring.files:
            data = data.model_copy(update={**ALONE, "task": "", "files": scoring.files})
        if not data.files or data in seen:  # a task has held-out prompts of its own
            continue
        seen.append(data)
        task = load_prompts(data, settings.reward, settings.seed, needs_reward=False)
        if not (task.train if scoring.files else task.heldout):
            raise UserError(
                f"{label}: its data has no held-out rows to score on: give --score-on FILE, or "
                "data.heldout_size, how many rows are kept for that and not trained on"
            )


@dataclass(frozen=True)
class Outcome:
    """What a comparison has come to: a row a scored checkpoint, and what failed, a line each."""

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
        with interrupting(), Shown(console, jobs, plan.steps) as shown:
            failures = work(
                plan, jobs, workers or _cores(), shown.update,
                lambda: shown.note("stopping: the runs finish their step and save"),
            )  # fmt: skip
        rows, runs = collect(plan, jobs)
        if rows:
            write_tables(plan, rows, folder)
            write_page(plan, rows, runs, failures, folder / "compare.html")
    finally:
        lock.free()
    return Outcome(tuple(rows), tuple(failures), len(jobs))


def _cores() -> int:
    """Runs at a time: on a GPU they would share its memory."""
    if torch.cuda.is_available():
        return 1
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
