"""A run with its folder and report, for the command and for scripts alike."""

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from strop.api.folders import free_folder
from strop.evaluation.run import validator
from strop.report.page import write_report
from strop.support.errors import RunStopped, UserError
from strop.tracking.metrics_file import check_recorded
from strop.training import loop
from strop.training.parallel.ranks import Ranks
from strop.training.settings import config
from strop.training.settings.assignments import override

# The settings that may change when a run is resumed.
CHANGEABLE = (
    "training.steps", "training.save_every", "training.best", "training.patience",
    "training.keep_checkpoints", "training.keep_rollouts", "training.token_budget",
    "training.num_slots", "training.process_timeout_seconds", "training.collector_timeout_seconds",
    "evaluation.", "tracking.", "ray.",
)  # fmt: skip


class Session:
    """A run with its folder. new: whether the folder is new; again: how to resume the run; given:
    whether a script has passed it files.
    """

    def __init__(
        self, run: loop.Run, new: bool = True, again: str = "strop train --resume {folder}",
        given: bool = False,
    ) -> None:  # fmt: skip
        self.run, self.new, self.given = run, new, given
        self.folder = run.record.folder
        self.again = again.format(folder=self.folder)
        self.spoilt = False  # True after an error of the user before the first step
        self.closed = False
        self.process = os.getpid()  # the process that trains it

    @property
    def forked(self) -> bool:
        """Whether this process is a fork of the one that trains the run."""
        return os.getpid() != self.process

    def steps(self, watcher: loop.Watcher) -> Iterator[dict[str, float]]:
        """Take each remaining step and yield its metrics. Raises UserError and RunStopped."""
        run, evaluation = self.run, self.run.config.evaluation
        try:
            ks = evaluation.ks if evaluation.every else ()
            evaluator = validator(evaluation.num_samples, ks, run.config.seed)
            yield from loop.steps(run, watcher, evaluator)
        except RunStopped as error:
            unsaved = "" if run.saved >= 0 else "No step is saved: first correct what stopped it. "
            raise RunStopped(f"{error}. {unsaved}Resume with: {self.again}") from error
        except UserError as error:
            if run.done:
                raise UserError(f"{error}. Resume with: {self.again}") from error
            self.spoilt = self.new
            raise

    def go(self, watcher: loop.Watcher) -> None:
        """Take all remaining steps; a first Ctrl-C ends them. Raises as `steps`."""
        with loop.attended(self.run, watcher):
            for _ in self.steps(watcher):
                pass

    def close(self) -> None:
        """End the run's processes; the files of a spoilt run are removed."""
        self.closed = True
        self.run.close()
        if self.spoilt and self.run.ranks.first:
            self.run.record.discard(self.given)

    def report(self) -> Path:
        """Write the run's report, in the first process. Raises RunStopped."""
        out = self.folder / "report.html"
        if self.run.ranks.first:
            try:
                write_report([self.folder], out)
            except RunStopped as error:
                raise RunStopped(f"{error}. Write it with: {self.again}") from error
        return out


@contextlib.contextmanager
def new_folder(recipe: str, out: Path | None, ranks: Ranks) -> Iterator[Path]:
    """`out`, or a free folder; folders made for it are removed if they are still empty."""
    place = out or Path("runs")
    new = [folder for folder in (place, *place.parents) if not folder.exists()]
    folder = out or ranks.from_first(lambda: free_folder(recipe))
    try:
        yield folder
    finally:
        if ranks.first:
            with contextlib.suppress(OSError):  # not empty: there is a run
                for empty in (*([] if out else [folder]), *new):
                    empty.rmdir()


def changed(folder: Path, changes: Sequence[str | tuple[str, Any]]) -> config.RunConfig:
    """The configuration of the run in a folder, with the changes that a resumed run may have.

    Raises UserError for anything else.
    """
    check_recorded(folder, "config.toml")
    for each in changes:
        path, found, _ = each.partition("=") if isinstance(each, str) else (each[0], "=", "")
        if not found or not path.strip().startswith(CHANGEABLE):
            text = each if isinstance(each, str) else path
            *others, last = (name.rstrip(".") for name in CHANGEABLE)
            raise UserError(
                f"a resumed run has its own configuration: leave {text} out; only "
                f"{', '.join(others)} and {last} options may change"
            )
    settings = config.load(folder / "config.toml")
    return config.make(override(settings.model_dump(), changes)) if changes else settings
