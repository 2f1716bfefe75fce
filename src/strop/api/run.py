"""A run in a script or notebook: its steps, its tables, and calls about it."""

import atexit
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from strop.api import tables
from strop.api.folders import folders_of, path_of
from strop.api.messages import in_python, messages_in_python
from strop.api.progress import Progress
from strop.api.session import Session
from strop.api.tables import Table
from strop.api.trust import made_here, remember
from strop.support.errors import UserError, nearest_first
from strop.tracking.metrics_file import check_recorded, read_metrics
from strop.tracking.rollouts_file import rollouts_files
from strop.training import loop
from strop.training.record.best import best_step, race_of
from strop.training.settings import config
from strop.training.settings.config import RunConfig

if TYPE_CHECKING:
    from strop.api.evaluate import Answer, Evaluation
    from strop.api.pages import Page
    from strop.api.plan import Planned
    from strop.api.plot import Plot
    from strop.diagnosis.whole import Diagnosis


@dataclass(frozen=True)
class Step:
    """A finished step: its number, its metrics by name, and its run."""

    number: int
    metrics: Mapping[str, float]
    run: "Run"

    def __getitem__(self, name: str) -> float:
        if name not in self.metrics:
            has = nearest_first(name, self.metrics)
            raise KeyError(f"step {self.number} has no metric {name}: it has {has}")
        return self.metrics[name]

    def __repr__(self) -> str:
        shown = {name: self.metrics[name] for name in SHOWN if name in self.metrics}
        numbers = ", ".join(f"{name} {value:.4g}" for name, value in shown.items())
        return f"Step({self.number}{f': {numbers}' if numbers else ''})"


SHOWN = ("reward", "policy_loss", "entropy", "grad_norm")  # of a step, in one line
Callback = Callable[[Step], object]


class Run:
    """A run, returned by `strop.train` or opened from a folder that training wrote.

    `for step in run` takes its steps; leaving the loop saves. `train` takes all remaining steps.
    """

    def __init__(self, folder: str | Path, trust_files: bool = False) -> None:
        """trust_files: whether files, modules and servers that its config.toml names may be used; a
        folder from somebody else can name anything. They may always be used for a run that this
        process has trained.
        """
        self.folder = path_of(folder, "a run")
        self.trusted = trust_files or made_here(self.folder)
        self._session: Session | None = None  # of a run that this process trains
        self._watcher: Any = None
        self._callbacks: tuple[Callback, ...] = ()
        self._going: Iterator[dict[str, float]] | None = None
        self._stop_requested = False
        check_recorded(self.folder, "config.toml")

    @classmethod
    def of_session(
        cls, session: Session, progress: bool = True, callbacks: Sequence[Callback] = ()
    ) -> "Run":
        """The run of a session that has just started."""
        remember(session.folder)
        run = cls(session.folder)
        run._session, run._callbacks = session, tuple(callbacks)
        _open_runs.add(run)
        run._watcher = Progress(quiet=not progress, shown=progress)
        notes = session.run.world.services.notes
        notes[:] = map(in_python, notes)
        return run

    # -- its steps -----------------------------------------------------------------------------

    @property
    def config(self) -> RunConfig:
        """Its complete settings."""
        if self._session is not None:
            return self._session.run.config
        return config.load(self.folder / "config.toml")

    @property
    def steps_done(self) -> int:
        """How many steps it has taken."""
        if self._session is not None:
            return self._session.run.done
        return max((line["step"] for line in self._lines()), default=0)

    @property
    def finished(self) -> bool:
        """Whether all its steps are done, or it has stopped early for lack of improvement."""
        if self._session is not None:
            return self._session.run.finished
        settings, done = self.config, self.steps_done
        return done >= settings.training.steps or race_of(settings, self.folder, done).over

    @property
    def best_step(self) -> int:
        """The step of its best checkpoint, by `training.best`. Raises UserError without one."""
        return best_step(self.config, self.folder)

    @property
    def model(self) -> Any:
        """The model that this process trains or has trained. Raises UserError for other runs."""
        return self._here.run.loaded.model

    @property
    def tokenizer(self) -> Any:
        """The tokenizer of that model. Raises UserError as `model`."""
        return self._here.run.loaded.tokenizer

    def __iter__(self) -> Iterator[Step]:
        session = self._here
        try:
            while not self._over():
                with loop.attended(session.run, self._watcher):
                    step = self._next(session)
                if step is None:
                    self._check_interrupted()
                    return
                yield step
        finally:
            self._watcher.close()
            self.keep()

    def train(self) -> "Run":
        """Take all remaining steps; returns the run itself.

        Ctrl-C finishes the step, saves and raises KeyboardInterrupt; `train` then continues. Raises
        UserError and RunStopped.
        """
        session = self._here
        if not self._over():
            with loop.attended(session.run, self._watcher):
                while self._next(session) is not None:
                    pass
            self._check_interrupted()
        return self

    def stop(self) -> None:
        """Stop after the current step, and save: for callbacks and loops."""
        self._stop_requested = True
        self._here.run.stop_asked = True

    def keep(self) -> None:
        """Save a checkpoint of the current step, where this process trains the run."""
        session = self._session
        if session is not None and not (session.closed or session.forked) and session.run.done:
            session.run.save()

    def close(self) -> None:
        """Save, and end the run's processes; its files can still be read."""
        session = self._session
        if session is not None and not (session.closed or session.forked):
            self.keep()
            self._end(session)

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def _here(self) -> Session:
        if self._session is None:
            raise UserError(
                f"{self.folder} is not being trained here: resume it with strop.resume("
                f"{str(self.folder)!r})"
            )
        if self._session.forked:
            raise UserError(
                f"{self.folder} is trained by process {self._session.process}, of which this one "
                f"is a fork: train there, and read it here by strop.Run({str(self.folder)!r})"
            )
        return self._session

    def _over(self) -> bool:
        """Whether no step remains. Raises UserError for a run that was closed before its end."""
        session = self._here
        if session.closed and not session.run.finished:
            raise UserError(
                f"{self.folder} was closed after step {session.run.done}: resume it with "
                f"strop.resume({str(self.folder)!r})"
            )
        return session.closed

    def _next(self, session: Session) -> Step | None:
        """The next step; None, with the run saved, where none remains or a stop was requested."""
        if self._going is None:
            self._stop_requested = session.run.stop_asked = False
            self._going = session.steps(self._watcher)
        try:
            with messages_in_python():
                metrics = next(self._going, None)
        except BaseException:  # the step is half done: the last save before it counts
            self._end(session)
            raise
        if metrics is None:
            self._going = None
            self._ended(session)
            return None
        step = Step(session.run.done, metrics, self)
        for callback in self._callbacks:
            callback(step)
        return step

    def _ended(self, session: Session) -> None:
        """Write the report where no step remains or a stop was requested."""
        self._watcher.close()
        if session.run.record.metrics_path.exists():
            session.report()
        if session.run.finished:
            self._end(session)
            self._watcher.finish(session.run)
        else:
            self._watcher.note(f"stopped after step {session.run.done}, which is saved")

    def _end(self, session: Session) -> None:
        self._watcher.close()
        if self._going is not None:
            self._going.close()  # type: ignore[attr-defined]
            self._going = None
        session.close()

    def _check_interrupted(self) -> None:
        """Raise KeyboardInterrupt where Ctrl-C has ended the steps."""
        if not self._here.run.finished and not self._stop_requested:
            raise KeyboardInterrupt

    # -- its tables ----------------------------------------------------------------------------

    def _lines(self) -> list[dict[str, Any]]:
        if not (self.folder / "metrics.jsonl").is_file():
            return []
        return read_metrics(self.folder)

    @property
    def metrics(self) -> Table:
        """One row a step, one column a metric (docs/METRICS.md); row 0 is the first validation."""
        return tables.of_rows(self._lines())

    @property
    def rollouts(self) -> Table:
        """One row for each rollout of the steps whose rollouts were written."""
        return tables.of_files(rollouts_files(self.folder))

    # -- calls about it ------------------------------------------------------------------------

    def evaluate(self, **options: Any) -> "Evaluation":
        """Scores of its newest checkpoint on held-out prompts; options as in `strop.evaluate`."""
        from strop.api.evaluate import evaluate

        return evaluate(self, **options)

    def sample(self, prompt: str, n: int = 4, **options: Any) -> "list[Answer]":
        """Sample its newest checkpoint's answers to a prompt; options as in `strop.sample`."""
        from strop.api.evaluate import sample

        return sample(self, prompt, n, **options)

    def plot(self, *names: str) -> "Plot":
        """Its curves as a picture: the first ones of its report, or those of named numbers."""
        from strop.api.plot import plot

        return plot([self.folder], names)

    def report(self) -> Path:
        """Write the run's page, and return its path. Raises UserError before the first step."""
        from strop.report.page import write_report

        return write_report([self.folder], self.folder / "report.html")

    def doctor(self) -> "Diagnosis":
        """Diagnose it from its files: questions with answers and advice."""
        from strop.api.doctor import doctor

        return doctor(self)

    def inspect(self, step: int | None = None, out: str | Path | None = None) -> "Page":
        """Write a page that shows a step token by token; arguments as in `strop.inspect`."""
        from strop.api.pages import inspect

        return inspect(self, step, out)

    def plan(
        self, *more: "str | Path | Run", workers: Sequence[int] = (1, 2, 4, 8, 16, 32, 64),
        staleness: Sequence[int] = (1,), lengths: Sequence[float] = (), prompts: int = 0,
        spare: float = 1.0, exchange: float = 0.0, extrapolate: bool = False,
    ) -> "Planned":  # fmt: skip
        """Its speed on other numbers of workers, at the costs that were measured in it.

        more: further runs of the same model and machine, which make the costs more exact; an
        asynchronous run does so for asynchronous layouts. lengths: mean and 99th percentile of
        answer lengths, in place of its own. Other arguments are those of `strop plan`.
        """
        from strop.api.plan import plan

        with messages_in_python():
            runs = folders_of([self, *more])
            return plan(runs, workers, staleness, lengths, prompts, spare, exchange, extrapolate)

    def __repr__(self) -> str:
        settings = self.config
        name = settings.recipe or "a method of its own"
        return (
            f"Run({str(self.folder)!r}: {name}, step {self.steps_done}/{settings.training.steps})"
        )


_open_runs: "weakref.WeakSet[Run]" = weakref.WeakSet()  # may include closed ones


def let_go(folder: Path) -> None:
    """Save and close this process's run in a folder, so that another run can resume it."""
    for run in list(_open_runs):
        if run.folder.resolve() == folder.resolve():
            run.close()


@atexit.register
def _close_all() -> None:
    """Close all runs while the interpreter still works; in a fork none is closed."""
    for run in list(_open_runs):
        run.close()
