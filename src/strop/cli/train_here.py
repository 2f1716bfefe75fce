"""A run that the command line starts or resumes in this process."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from strop.api.trust import names
from strop.cli.waiting import loading
from strop.support.errors import UserError
from strop.support.stopping import INTERRUPTED, explained

if TYPE_CHECKING:
    from strop.api.progress import Progress
    from strop.api.session import Session
    from strop.training.parallel.ranks import Ranks
    from strop.training.settings.config import RunConfig


Lead = Callable[["Job", "RunConfig", Callable[[str], None]], None]


class Job(NamedTuple):
    """A run to start or to resume, as given on the command line."""

    arguments: list[str]
    options: dict[str, dict[str, Any]]
    config: Path | None
    out: Path | None
    resume: Path | None
    step: int
    quiet: bool
    answers: int

    def again(self, folder: Path) -> "Job":
        """The job that resumes this job's run in a folder from its newest checkpoint."""
        return Job([], {}, None, None, folder, 0, self.quiet, self.answers)

    def settings(self) -> "RunConfig":
        """The run's configuration. Raises UserError."""
        from strop.api.options import settings_of
        from strop.api.session import changed

        if self.resume is not None:
            return changed(self.resume, self.arguments)
        return settings_of(self.arguments, self.options, self.config)


def work(job: Job, lead: Lead | None) -> None:
    """Train in this process, which may be one of several.

    lead: runs a job that requests trainers on Ray; None: this process is one of these trainers.
    """
    from strop.api.progress import Progress

    first = os.environ.get("RANK", "0") == "0"
    watcher = Progress(job.quiet, first, job.answers)
    if first and not job.quiet:
        loading("model, data and rewards")
    with explained(lambda: kept(job.resume)):
        from strop.training.parallel import relaunched as launched
        from strop.training.parallel.ranks import join

        ranks = join()
    with ranks.speaking(typer.Exit), explained(lambda: kept(job.resume)):
        before = ranks.from_first(launched.previous_run)
        if before is not None:
            job = job.again(before)
            watcher.note(f"started again: {before} resumes from its newest checkpoint")
        settings = job.settings()
        if settings.ray.address and settings.ray.num_trainers and lead is not None:
            if not ranks.alone:
                raise UserError("torchrun and ray.num_trainers both start trainers: leave one out")
            lead(job, settings, watcher.note)
        elif job.resume is not None:
            _go_on(job.resume, settings, job.step, watcher, ranks)
        else:
            _begin(settings, job.out, watcher, ranks)


def _begin(settings: "RunConfig", out: Path | None, watcher: "Progress", ranks: "Ranks") -> None:
    """Start a run in `out`, or in a free folder; a run that fails to start leaves no folder."""
    from strop.api.session import Session, new_folder
    from strop.training import loop
    from strop.training.parallel import relaunched as launched

    with new_folder(settings.recipe, out, ranks) as folder, explained(lambda: kept(folder)):
        run = loop.start(settings, folder, ranks)
        if ranks.first:
            launched.mark_started(folder)
        _run(Session(run), watcher)


def _go_on(
    folder: Path, settings: "RunConfig", step: int, watcher: "Progress", ranks: "Ranks"
) -> None:
    """Resume a run, perhaps with more steps than it was started with."""
    from strop.api.session import Session
    from strop.training import loop
    from strop.training.parallel import relaunched as launched

    session = Session(loop.resume(settings, folder, step, ranks), new=False)
    if ranks.first:
        launched.mark_started(folder)
    if not session.run.finished:
        _run(session, watcher)
        return
    try:
        session.report()  # the run may have been killed before its report
    finally:
        session.close()
    done, race = session.run.done, session.run.race
    more = f"training.patience={race.since + 1}" if race.over else f"training.steps={2 * done}"
    ended = f", ended early: {race.why_over}" if race.over else ""
    watcher.note(
        f"{folder} is complete: {done} steps{ended}. More of them: "
        f"strop train --resume {folder} {more}"
    )


def kept(folder: Path | None) -> str:
    """Says what is saved of a run that was stopped at once, and how to resume it."""
    if folder is not None and (folder / "config.toml").exists():
        return f"what the run saved stays. Resume with: strop train --resume {folder}"
    return "no run was started: the same command starts one"


def _run(session: "Session", watcher: "Progress") -> None:
    """Take all remaining steps with progress, then write the report, also after Ctrl-C.

    Raises typer.Exit after Ctrl-C.
    """
    run = session.run
    try:
        session.go(watcher)
    finally:
        watcher.close()
        session.close()
    if not run.finished:
        watcher.note(f"stopped after step {run.done}. Resume with: {session.again}")
        if run.record.metrics_path.exists():
            session.report()
        raise typer.Exit(INTERRUPTED)
    session.report()
    more = ["--trust-files"] if names(run.config) else []
    watcher.finish(
        run, f" Next: {' '.join(['strop eval', str(session.folder), *_split(run), *more])}"
    )


def _split(run: Any) -> list[str]:
    """The option of `strop eval` for a run whose data has no held-out rows."""
    task = run.world.services.task
    if task.is_recorded and not task.rewards:
        return ["--data", "FILE", "--reward", "NAME"]
    given = [] if task.rewards or task.own_reward else ["--reward", "NAME"]
    environment = run.config.data.environment()  # a run does not read its held-out episodes
    if task.heldout or (environment is not None and environment.holds_out):
        return given
    return ["--split", "validation" if task.validation else "train", *given]
