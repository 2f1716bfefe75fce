"""Carries a comparison out from its plan to its tables and page, and shows its progress."""

import time
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.live import Live
from rich.table import Table

from strop.comparison.page import write_page
from strop.comparison.plan import START, Plan
from strop.comparison.runs import Job, jobs_of, last_step, latest, work
from strop.comparison.scores import RequestedMetrics, Row, collect
from strop.comparison.table import write_tables
from strop.comparison.tuning import (
    Tried,
    choose,
    choosing,
    judged_plan,
    seen_again,
    validation_scores,
    write_tried,
)
from strop.report.run_folder import Run
from strop.support.errors import RunStopped
from strop.support.processes import num_cores
from strop.support.stopping import interrupting
from strop.training.record import likeness
from strop.training.record.lock import Lock

UNSCORED, MOST_UNSCORED = "rewards/frac_unscored", 0.05
QUIET_SECONDS = 30.0  # between two lines where there is no terminal


class RunsProgress:
    """Shows one line for each run: live on a terminal, at intervals elsewhere."""

    def __init__(self, console: Console, jobs: Sequence[Job], steps: int) -> None:
        self.console, self.jobs, self.steps = console, jobs, steps
        self.live = Live(console=console, refresh_per_second=2) if console.is_terminal else None
        self.printed = time.monotonic()
        self.states: dict[str, str] = {}

    def __enter__(self) -> "RunsProgress":
        if self.live:
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live:
            self.live.update(self._table())
            self.live.stop()

    def note(self, text: str) -> None:
        """Print a sentence for the user."""
        self.console.print(text, markup=False)

    def update(self) -> None:
        """Show the progress of the runs."""
        if self.live:
            self.live.update(self._table())
            return
        for job in self.jobs:
            if job.state != self.states.get(job.name, "waiting"):
                self.states[job.name] = job.state
                self.note(f"{job.name}: {job.state}")
        if time.monotonic() - self.printed > QUIET_SECONDS:
            self.printed = time.monotonic()
            active = [job for job in self.jobs if job.state == "training"]
            steps = [f"{job.name}: {last_step(job.folder)}/{self.steps}" for job in active]
            self.note("; ".join(steps) or self.left())

    def _table(self) -> Table:
        table = Table(
            box=None,
            expand=True,
            padding=(0, 1),
            pad_edge=False,
            title=self.left(),
            title_justify="left",
        )
        table.add_column("run", overflow="ellipsis", no_wrap=True, ratio=1)
        for heading in ("state", "step", "reward", "entropy"):
            table.add_column(heading, no_wrap=True, min_width=7)
        busy = [job for job in self.jobs if job.state != "waiting"]
        for job in busy[-(self.console.height - 4) :]:
            table.add_row(job.name, job.state, *self._numbers(job))
        return table

    def _numbers(self, job: Job) -> list[str]:
        """Step, reward and entropy of a run that is training."""
        if job.state != "training":
            return []
        line = latest(job.folder)
        found = [line.get(name) for name in ("reward", "entropy")]
        shown = [f"{value:.3f}" if isinstance(value, float) else "" for value in found]
        return [f"{line.get('step', 0)}/{self.steps}", *shown]

    def left(self) -> str:
        """How much is done, and the time that the rest will take at the pace so far."""
        done = {job.name: last_step(job.folder) for job in self.jobs}
        active = [job for job in self.jobs if job.started]
        taken = sum(done[job.name] - job.started_at for job in active)
        complete = sum(job.state == "done" for job in self.jobs)
        text = f"{complete} of {len(self.jobs)} runs done"
        if taken:
            pace = (time.monotonic() - min(job.started for job in active)) / taken
            rest = pace * (len(self.jobs) * self.steps - sum(done.values()))
            text += f", about {rest / 60:.0f} min left"
        return text


@dataclass(frozen=True)
class Outcome:
    """The result of a comparison: the compared plan, one row for each scored checkpoint, one line
    for each failure and for what readers of the numbers have to know, and the settings tried.
    """

    plan: Plan
    rows: tuple[Row, ...]
    failures: tuple[str, ...]
    num_runs: int
    notes: tuple[str, ...] = ()
    tried: tuple[Tried, ...] = ()

    def check(self, go_on: str) -> None:
        """Raise RunStopped where a run failed. go_on: says how to resume after a correction."""
        if self.failures:
            raise RunStopped(
                f"{len(self.failures)} of {self.num_runs} runs failed; the first: "
                f"{self.failures[0]}. Mend the cause and {go_on}; other settings of a method need "
                "another folder"
            )


def carry_out(plan: Plan, folder: Path, workers: int, console: Console) -> Outcome:
    """Do everything that remains of a comparison, then write its tables and page.

    Raises KeyboardInterrupt after Ctrl-C, with every run saved.
    """
    lock = Lock(folder)
    lock.take()
    try:
        tried = list[Tried]()
        if plan.tuning is not None:
            first, tuning = choosing(plan), plan.tuning
            number = len(plan.entries) // len({entry.of for entry in plan.entries})
            console.print(f"{number} settings of each method, of which validation chooses one:")
            asked = RequestedMetrics({"--tune-by": tuning.metric, **_target(plan)}, ())
            jobs, failures = _worked(first, folder, workers, console, asked, "setting")
            if failures:
                return Outcome(plan, (), tuple(failures), len(jobs))
            scores = validation_scores(first, jobs, tuning.metric)
            tried = choose(plan, scores)
            write_tried(scores, tried, tuning.metric, folder)
            plan = judged_plan(plan, tried)
            for each in tried:
                if each.chosen:
                    console.print(f"chosen: {each.label}", markup=False)
        asked = RequestedMetrics(_target(plan), plan.scoring.means)
        jobs, failures = _worked(plan, folder, workers, console, asked)
        rows, runs = collect(plan, jobs)
        if tried and rows:
            done = [job for job in jobs if job.state == "done"]
            again = validation_scores(plan, done, tuning.metric, needed=False)
            tried = seen_again(tried, again, tuning.metric)
        notes = (*_other_rewards(plan), *_unscored(runs, folder), *_unscored_heldout(rows),
                 *_alike(jobs))  # fmt: skip
        failed = [f"failed: {line}" for line in failures]
        outcome = Outcome(plan, tuple(rows), tuple(failures), len(jobs), notes, tuple(tried))
        if rows:
            write_tables(plan, rows, folder, notes, tried)
            write_page(plan, rows, runs, [*failed, *notes], folder / "compare.html", tried)
    finally:
        lock.free()
    return outcome


def _target(plan: Plan) -> dict[str, str]:
    """The number of --target, by this option; empty without one."""
    return {"--target": plan.scoring.target[0]} if plan.scoring.target is not None else {}


def _worked(
    plan: Plan, folder: Path, workers: int, console: Console, asked: RequestedMetrics,
    what: str = "method",
) -> tuple[list[Job], list[str]]:  # fmt: skip
    """All runs of a plan, done as far as possible, and one line for each that failed. Raises
    UserError for a requested number that the runs do not have, with the runs saved.
    """
    jobs = jobs_of(plan, folder)
    counts = {what: len(plan.entries), "seed": len(plan.seeds), "step": plan.steps}
    told = ", ".join(f"{count} {name}{'s' * (count > 1)}" for name, count in counts.items())
    console.print(f"{told} -> {folder}", markup=False)
    with interrupting(), RunsProgress(console, jobs, plan.steps) as progress:

        def look() -> None:
            progress.update()
            asked.check(jobs)

        failures = work(
            plan, jobs, workers or _at_once(), look,
            lambda: progress.note("stopping: the runs finish their step and save"),
        )  # fmt: skip
    return jobs, failures


def _other_rewards(plan: Plan) -> list[str]:
    """Notes on methods whose answers other rewards score than those of the baseline."""
    rewards = {
        entry.label: {
            name: value
            for name, value in tomllib.loads(entry.config).get("reward", {}).items()
            if name in ("functions", "weights", "on_failure")
        }
        for entry in plan.entries
    }
    return [
        f"note on {label}: each run's answers are scored by its own rewards, and its [reward] is "
        f"not that of {plan.baseline}, so a difference of their scores is not one of their answers"
        for label, section in rewards.items()
        if section != rewards[plan.baseline]
    ]


def _unscored(runs: Mapping[str, Mapping[int, Run]], folder: Path) -> list[str]:
    """Notes on methods with rollouts without a score, which trained nothing."""
    found = []
    for label, by_seed in runs.items():
        shares = {seed: run.series(UNSCORED)[1] for seed, run in by_seed.items()}
        means = {seed: float(values.mean()) for seed, values in shares.items() if len(values)}
        worst = max(means, key=lambda seed: means[seed], default=None)
        if worst is not None and means[worst] > MOST_UNSCORED:
            found.append(
                f"note on {label}: {means[worst]:.1%} of the rollouts of seed {worst} trained "
                "nothing: no reward applied to them (None), or one failed; `strop doctor` on its "
                f"run in {folder / 'runs'} says which"
            )
    return found


def _unscored_heldout(rows: Sequence[Row]) -> list[str]:
    """Notes on methods with held-out answers without a score, which no number counts."""
    found = []
    for label in dict.fromkeys(row.label for row in rows):
        worst = max((row for row in rows if row.label == label), key=lambda row: row.unscored)
        if worst.unscored:
            of = "" if label == START else f" of seed {worst.seed} after step {worst.step}"
            found.append(
                f"note on {label}: {worst.unscored:.2%} of the held-out answers{of} have no score "
                "and count in no number, so that a method may be judged on easier prompts: no "
                "reward applied to them (None), or one failed; remove the run's heldout files to "
                "score again"
            )
    return found


def _alike(jobs: Sequence[Job]) -> tuple[str, ...]:
    """Notes of the runs on methods that would have done the same, once for each method."""
    texts = {job.entry.label: likeness.read(job.folder)[0] for job in reversed(jobs)}
    return tuple(f"note on {label}: {text}" for label, text in reversed(texts.items()) if text)


def _at_once() -> int:
    """The number of runs at a time: one a core, or one on a GPU, whose memory they would share."""
    return 1 if torch.cuda.is_available() else num_cores()
