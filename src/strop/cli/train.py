"""`strop train`: start a run, or go on with one."""

import contextlib
import os
import re
from pathlib import Path
from typing import Annotated, Any

import typer

from strop.cli.progress import Progress
from strop.errors import RunStopped, UserError

CHANGEABLE = ("training.steps", "training.save_every", "evaluation.")  # of a run that goes on
OVERRIDE = re.compile(r"^[A-Za-z_][\w.]*\s*=")

RecipeAndOptions = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[RECIPE] [OPTION=VALUE]...",
        help="A recipe (`grpo`, `entrocraft(h_low=linear(0.6, 0.4))`) and any options, such as "
        "`training.lr=2e-6`, `sampling.num_rollouts=8`, `seed=3`, or parts of a stage, such as "
        "`bound=clip_both_sides`, `ratio=ratio_per_sequence`.",
    ),
]
Model = Annotated[
    str,
    typer.Option(help="Model folder, name or GGUF file; `tiny` and `tiny-worked` ship with strop."),
]
Task = Annotated[
    str,
    typer.Option(
        help="`countdown`, `worked_countdown`, `reasoning_gym:NAME`, or an environment: "
        "`corridor`, `file.py:Class`."
    ),
]
Data = Annotated[
    list[str] | None,
    typer.Option(help="JSON Lines, Parquet or CSV file with a `prompt` column; repeatable."),
]
Validation = Annotated[list[str] | None, typer.Option(help="The same for validation; repeatable.")]
Reward = Annotated[
    list[str] | None,
    typer.Option(
        help="`file.py:function`, a built-in (`math_verify`, `run_tests`), `model:FOLDER` or "
        "`judge:FILE.toml`; repeatable."
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
        "`training.save_every=...` and `evaluation....=...` may be given."
    ),
]
Step = Annotated[int, typer.Option(help="With --resume: go on from this step's checkpoint.")]
Quiet = Annotated[bool, typer.Option(help="Print only the end.")]


def train(
    arguments: RecipeAndOptions = None,
    model: Model = "",
    task: Task = "",
    data: Data = None,
    validation: Validation = None,
    reward: Reward = None,
    advantage: Advantage = None,
    bound: Bound = None,
    config: Config = None,
    out: Out = None,
    resume: Resume = None,
    step: Step = 0,
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
    ]
    given: dict[str, dict[str, Any]] = {
        "model": {"name": model},
        "data": {"task": task, "files": data, "validation_files": validation},
        "reward": {"functions": reward},
    }
    options = {
        section: kept
        for section, values in given.items()
        if (kept := {k: v for k, v in values.items() if v})
    }
    if resume is not None and (options or config or out):
        raise UserError("--resume takes the run's own configuration: leave other options out")
    if step and resume is None:
        raise UserError("--step names a checkpoint of the run that --resume goes on with")
    watcher = Progress(quiet, heard=os.environ.get("RANK", "0") == "0")
    watcher.open()
    from strop.training.ranks import join
    from strop.training.stopping import interrupting

    ranks = join()
    with interrupting(), ranks.speaking(typer.Exit):
        if resume is not None:
            _go_on(resume, arguments, step, watcher, ranks)
        else:
            _begin(settings_of(arguments, options, config), out, watcher, ranks)


def settings_of(arguments: list[str], options: dict[str, Any], file: Path | None) -> Any:
    """The run's configuration from file, options and `name=value` arguments. Raises UserError."""
    from strop.catalogue import model_of
    from strop.training import config

    assignments = [text for text in arguments if OVERRIDE.match(text)]
    recipes = [text for text in arguments if not OVERRIDE.match(text)]
    if len(recipes) > 1:
        raise UserError(f"one recipe at a time, got {' and '.join(recipes)}")
    raw = config.load(file).model_dump(exclude_unset=True) if file else {}
    given = _model_given(assignments, options, raw)
    needed = "" if given else model_of(recipes[0] if recipes else raw.get("recipe", ""))
    merged = config.defaults(given or needed or "tiny")
    if needed:
        merged["model"] = {"name": needed}
    for source in (raw, options):
        for section, values in source.items():
            if isinstance(values, dict):
                merged[section] = {**merged.get(section, {}), **values}
            else:
                merged[section] = values
    if recipes:
        theirs = raw.get("recipe", recipes[0])
        if theirs != recipes[0] and any(map(raw.get, config.METHOD)):
            raise UserError(
                f"the options of the method in {file} belong to "
                f"{f'its recipe {theirs}' if theirs else 'its own [stages]'}, not to "
                f"{recipes[0]}: leave the recipe out, or the file's [algorithm], [stages] and "
                "[phases]"
            )
        merged["recipe"] = recipes[0]
    return config.make(config.override(merged, assignments))


def _model_given(assignments: list[str], *sources: dict[str, Any]) -> str:
    """The model that is asked for: its settings to begin with are those of no other."""
    for text in reversed(assignments):
        if (found := re.match(r"model\.name\s*=\s*(.+)", text)) is not None:
            return found.group(1).strip("\"'")
    names = [source.get("model", {}).get("name", "") for source in sources]
    return next(filter(None, names), "")


def free_folder(recipe: str) -> Path:
    """runs/<recipe>-1, or the next number that is free; made here, so that it is nobody else's."""
    name = re.match(r"\w*", re.sub(r"^until\([^,]*,\s*", "", recipe).strip('"'))
    return numbered(Path("runs"), f"{(name.group() if name else '') or 'run'}-")


def numbered(parent: Path, stem: str = "") -> Path:
    """A new folder, `stem` and the lowest number that is free. Raises UserError."""
    number = 1
    while True:
        folder = parent / f"{stem}{number}"
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            number += 1
        except OSError as error:
            raise UserError(f"cannot make {folder}: {error.strerror}") from error


def _begin(settings: Any, out: Path | None, watcher: Progress, ranks: Any) -> None:
    """A new run in `out`, or in a free folder; one that comes to nothing leaves no folder."""
    folder = out or ranks.from_first(lambda: free_folder(settings.recipe))
    try:
        _begin_in(folder, settings, watcher, ranks)
    finally:
        if out is None and ranks.first:
            with contextlib.suppress(OSError):  # not empty: the run, and runs before it
                folder.rmdir()
                folder.parent.rmdir()


def _begin_in(folder: Path, settings: Any, watcher: Progress, ranks: Any) -> None:
    """A new run; a mistake that shows before its first step takes its files away."""
    from strop.training import loop

    run = loop.start(settings, folder, ranks)
    try:
        _run(run, watcher)
    except UserError:
        if run.done == 0:
            run.record.discard()
        raise


def _go_on(folder: Path, changes: list[str], step: int, watcher: Progress, ranks: Any) -> None:
    """The rest of a run, perhaps with more steps than it was started with."""
    from strop.training import config, loop

    if not (folder / "config.toml").is_file():
        raise UserError(f"{folder} is not a run: it has no config.toml")
    for text in changes:
        path = text.partition("=")[0].strip()
        if not OVERRIDE.match(text) or not path.startswith(CHANGEABLE):
            raise UserError(
                f"--resume takes the run's own configuration: leave {text} out; only "
                "training.steps, training.save_every and evaluation options may change"
            )
    settings = config.load(folder / "config.toml")
    if changes:
        settings = config.make(config.override(settings.model_dump(), changes))
    run = loop.resume(settings, folder, step, ranks)
    if run.finished:
        try:
            _report(run)  # perhaps a kill came before it
        finally:
            run.close()
        watcher.note(
            f"{folder} is complete: {run.done} steps. More of them: "
            f"strop train --resume {folder} training.steps={2 * run.done}"
        )
        return
    _run(run, watcher)


def _run(run: Any, watcher: Progress) -> None:
    """All remaining steps, with progress; then the report, after Ctrl-C too.

    Raises typer.Exit then.
    """
    from strop.evaluation.validate import validator
    from strop.training import loop

    folder, evaluation = run.record.folder, run.config.evaluation
    again = f"Go on with: strop train --resume {folder}"
    try:
        ks = evaluation.ks if evaluation.every else ()
        loop.go(run, watcher, validator(evaluation.num_samples, ks, run.config.seed))
    except RunStopped as error:
        raise RunStopped(f"{error}. {again}") from error
    except UserError as error:
        raise UserError(f"{error}. {again}" if run.done else str(error)) from error
    finally:
        watcher.close()
        run.close()
    if not run.finished:
        watcher.note(f"stopped after step {run.done}. {again}")
        if run.record.metrics_path.exists():
            _report(run)
        raise typer.Exit(130)
    _report(run)
    watcher.finish(run)


def _report(run: Any) -> None:
    """The run's report. Raises RunStopped on a full disk."""
    from strop.report.page import write_report

    folder = run.record.folder
    if not run.ranks.first:
        return
    try:
        write_report([folder], folder / "report.html")
    except RunStopped as error:
        raise RunStopped(f"{error}. Write it with: strop train --resume {folder}") from error
