"""`strop train`: start a run, or go on with one."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from strop.cli import completing
from strop.door.progress import Progress
from strop.door.trust import names
from strop.errors import UserError
from strop.tasks.renaming import pairs

if TYPE_CHECKING:
    from strop.door.session import Session
    from strop.training.config import RunConfig
    from strop.training.ranks import Ranks

RecipeAndOptions = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[RECIPE] [OPTION=VALUE]...",
        help="A recipe (`grpo`, `entrocraft(h_low=linear(0.6, 0.4))`) and any options, such as "
        "`training.lr=2e-6`, `sampling.num_rollouts=8`, `seed=3`, or parts of a stage, such as "
        "`bound=clip_both_sides`, `ratio=ratio_per_sequence`.",
        autocompletion=completing.methods,
    ),
]
Model = Annotated[
    str,
    typer.Option(
        help="Model folder, name or GGUF file; `tiny` and `tiny-worked` ship with strop.",
        autocompletion=completing.models,
    ),
]
Task = Annotated[
    str,
    typer.Option(
        help="`countdown`, `worked_countdown`, `reasoning_gym:NAME`, or an environment: "
        "`corridor`, `file.py:Class`.",
        autocompletion=completing.tasks,
    ),
]
Data = Annotated[
    list[str] | None,
    typer.Option(
        help="JSON Lines, Parquet or CSV file with a `prompt` column, a folder that `datasets` "
        "saved, or `hf:NAME:SPLIT`; repeatable."
    ),
]
Validation = Annotated[
    list[str] | None,
    typer.Option(
        help="The same for validation; `NAME=FILE` is a set with a name of its own; repeatable."
    ),
]
Renamed = Annotated[
    list[str] | None,
    typer.Option(
        "--map", help="A column of the data under another name: `question=prompt`; repeatable."
    ),
]
Reward = Annotated[
    list[str] | None,
    typer.Option(
        help="`file.py:function`, a built-in (`math_verify`, `run_tests`), `model:FOLDER` or "
        "`judge:FILE.toml`; repeatable.",
        autocompletion=completing.rewards,
    ),
]
Advantage = Annotated[
    str | None, typer.Option(help="As `advantage=...`: `subtract_group_mean | spread_evenly`.")
]
Bound = Annotated[
    str | None, typer.Option(help="As `bound=...`: `clip_both_sides(clip_high=0.28)`.")
]
Config = Annotated[Path | None, typer.Option(help="TOML file with all options.")]
Out = Annotated[Path | None, typer.Option(help="Folder of the run (default: runs/...).")]
Resume = Annotated[
    Path | None,
    typer.Option(
        help="Go on with the run in this folder. Beside it only `training.steps=...`, "
        "`training.save_every=...`, `training.best=...`, `training.patience=...`, "
        "`training.process_timeout_seconds`, "
        "`evaluation....=...`, `tracking....=...`, `ray....=...`, --ray and --track may be given."
    ),
]
Step = Annotated[int, typer.Option(help="With --resume: go on from this step's checkpoint.")]
Track = Annotated[
    list[str] | None,
    typer.Option(
        help="Where metrics and samples also go: `tensorboard`, `wandb`, `trackio`, `mlflow`; "
        "repeatable.",
        autocompletion=completing.trackers,
    ),
]
Answers = Annotated[
    int,
    typer.Option(
        help="Print so many sampled answers each time that rollouts are written "
        "(`training.rollouts_every`).",
    ),
]
Ray = Annotated[
    str | None,
    typer.Option(
        help="Sample, and train if told so (`ray.num_trainers=2`), on Ray: `local` starts it here, "
        "`auto` or host:port is a cluster; docs/SCALE.md."
    ),
]
Quiet = Annotated[bool, typer.Option(help="Print only the end.")]


def train(
    arguments: RecipeAndOptions = None,
    model: Model = "",
    task: Task = "",
    data: Data = None,
    validation: Validation = None,
    renamed: Renamed = None,
    reward: Reward = None,
    advantage: Advantage = None,
    bound: Bound = None,
    config: Config = None,
    out: Out = None,
    resume: Resume = None,
    step: Step = 0,
    ray: Ray = None,
    track: Track = None,
    answers: Answers = 0,
    quiet: Quiet = False,
) -> None:
    """Train a model. Without arguments: the shipped tiny model on Countdown puzzles.

    Options on the command line win over the file given with `--config`.

    Ctrl-C, SIGTERM and SIGHUP finish the step, save and end with exit code 130; a second Ctrl-C
    stops at once. Other exit codes: 0 the run is complete, 1 it had to stop, 2 something that was
    given is wrong.
    """
    stages = {"advantage": advantage, "bound": bound}
    arguments = [
        *(arguments or []),
        *(f"{k}={text}" for k, text in stages.items() if text is not None),
        *([f"ray.address={ray}"] if ray is not None else []),
        *([f"tracking.to={json.dumps(track)}"] if track else []),
    ]
    given: dict[str, dict[str, Any]] = {
        "model": {"name": model},
        "data": {"task": task, "files": data, "validation_files": validation,
                 "columns": pairs(renamed or [], "--map")},
        "reward": {"functions": reward},
    }  # fmt: skip
    options = {
        section: kept
        for section, values in given.items()
        if (kept := {k: v for k, v in values.items() if v})
    }
    if resume is not None and (options or config or out):
        raise UserError("--resume takes the run's own configuration: leave other options out")
    if step and resume is None:
        raise UserError("--step names a checkpoint of the run that --resume goes on with")
    work(Job(arguments, options, config, out, resume, step, quiet, answers))


class Job(NamedTuple):
    """A run to begin or to go on with, as the command line says it."""

    arguments: list[str]
    options: dict[str, dict[str, Any]]
    config: Path | None
    out: Path | None
    resume: Path | None
    step: int
    quiet: bool
    answers: int

    def again(self, folder: Path) -> "Job":
        """To go on with what it has begun in a folder, at the newest checkpoint."""
        return Job([], {}, None, None, folder, 0, self.quiet, self.answers)

    def settings(self) -> "RunConfig":
        """The run's configuration. Raises UserError."""
        from strop.door.options import settings_of
        from strop.door.session import changed

        if self.resume is not None:
            return changed(self.resume, self.arguments)
        return settings_of(self.arguments, self.options, self.config)


def work(job: Job, led: bool = False) -> None:
    """Train in this process, which may be one of several. led: they are Ray's."""
    heard = os.environ.get("RANK", "0") == "0"
    watcher = Progress(job.quiet, heard, job.answers)
    watcher.open()
    from strop.training import launched
    from strop.training.ranks import join
    from strop.training.stopping import interrupting

    ranks = join()
    with interrupting(), ranks.speaking(typer.Exit):
        before = ranks.from_first(launched.begun)
        if before is not None:
            job = job.again(before)
            watcher.note(f"started again: {before} goes on behind its newest checkpoint")
        settings = job.settings()
        if settings.ray.address and settings.ray.num_trainers and not led:
            if not ranks.alone:
                raise UserError("torchrun and ray.num_trainers both start trainers: leave one out")
            from strop.cli.trainers import lead

            lead(job, settings, watcher.note)
        elif job.resume is not None:
            _go_on(job.resume, settings, job.step, watcher, ranks)
        else:
            _begin(settings, job.out, watcher, ranks)


def _begin(settings: "RunConfig", out: Path | None, watcher: Progress, ranks: "Ranks") -> None:
    """A new run in `out`, or in a free folder; one that comes to nothing leaves no folder."""
    from strop.door.session import Session, new_folder
    from strop.training import launched, loop

    with new_folder(settings.recipe, out, ranks) as folder:
        run = loop.start(settings, folder, ranks)
        if ranks.first:
            launched.tell_begun(folder)
        _run(Session(run), watcher)


def _go_on(
    folder: Path, settings: "RunConfig", step: int, watcher: Progress, ranks: "Ranks"
) -> None:
    """The rest of a run, perhaps with more steps than it was started with."""
    from strop.door.session import Session
    from strop.training import launched, loop

    session = Session(loop.resume(settings, folder, step, ranks), new=False)
    if ranks.first:
        launched.tell_begun(folder)
    if not session.run.finished:
        _run(session, watcher)
        return
    try:
        session.report()  # perhaps a kill came before it
    finally:
        session.close()
    done, race = session.run.done, session.run.race
    more = f"training.patience={race.since + 1}" if race.over else f"training.steps={2 * done}"
    ended = f", ended early: {race.why_over}" if race.over else ""
    watcher.note(
        f"{folder} is complete: {done} steps{ended}. More of them: "
        f"strop train --resume {folder} {more}"
    )


def _run(session: "Session", watcher: Progress) -> None:
    """All remaining steps, with progress; then the report, after Ctrl-C too.

    Raises typer.Exit then.
    """
    run = session.run
    try:
        session.go(watcher)
    finally:
        watcher.close()
        session.close()
    if not run.finished:
        watcher.note(f"stopped after step {run.done}. Go on with: {session.again}")
        if run.record.metrics_path.exists():
            session.report()
        raise typer.Exit(130)
    session.report()
    more = ["--trust-files"] if names(run.config) else []
    watcher.finish(
        run, f" Next: {' '.join(['strop eval', str(session.folder), *_split(run), *more])}"
    )


def _split(run: Any) -> list[str]:
    """What `strop eval` is told of a run whose data has no held-out rows."""
    task = run.world.services.task
    if task.heldout or run.config.data.environment() is not None:
        return []
    return ["--split", "validation" if task.validation else "train"]
