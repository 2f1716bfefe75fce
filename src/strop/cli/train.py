"""`strop train`: start a run, or go on with one."""

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from strop.errors import RunStopped, UserError

OVERRIDE = re.compile(r"^[A-Za-z_][\w.]*\s*=")


def train(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RECIPE] [OPTION=VALUE]...",
            help="A recipe (`grpo`, `entrocraft(h_low=linear(0.6, 0.4))`) and any options, such as "
            "`training.lr=2e-6`, `sampling.num_rollouts=8`, `seed=3`.",
        ),
    ] = None,
    model: Annotated[str, typer.Option(help="Model folder or name; `tiny` ships with strop.")] = "",
    task: Annotated[str, typer.Option(help="`countdown` or `reasoning_gym:NAME`.")] = "",
    data: Annotated[
        list[str] | None,
        typer.Option(help="JSON Lines, Parquet or CSV file with a `prompt` column; repeatable."),
    ] = None,
    validation: Annotated[
        list[str] | None, typer.Option(help="The same for validation; repeatable.")
    ] = None,
    reward: Annotated[
        list[str] | None,
        typer.Option(help="`file.py:function` or a built-in (`math_verify`); repeatable."),
    ] = None,
    advantage: Annotated[
        str, typer.Option(help="Parts of the advantage: `subtract_group_mean | spread_evenly`.")
    ] = "",
    bound: Annotated[
        str, typer.Option(help="Bound of the policy term: `clip_both_sides(clip_high=0.28)`.")
    ] = "",
    config: Annotated[Path | None, typer.Option(help="TOML file with all options.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run (default: runs/...).")] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with the run in this folder.")] = None,
    quiet: Annotated[bool, typer.Option(help="Print only the end.")] = False,
) -> None:
    """Train a model. Without arguments: the shipped tiny model on Countdown puzzles.

    Options on the command line win over the file given with `--config`.
    """
    given = {
        "model": {"name": model},
        "data": {"task": task, "files": data, "validation_files": validation},
        "reward": {"functions": reward},
        "stages": {"advantage": advantage, "bound": bound},
    }
    options = {
        section: kept
        for section, values in given.items()
        if (kept := {k: v for k, v in values.items() if v})
    }
    if resume is not None:
        if arguments or options or config or out:
            raise UserError("--resume takes the run's own configuration: leave other options out")
        _run(resume, None, quiet)
        return
    settings = settings_of(arguments or [], options, config)
    _run(out or free_folder(settings.recipe), settings, quiet)


def settings_of(arguments: list[str], options: dict[str, Any], file: Path | None) -> Any:
    """The run's configuration from file, options and `name=value` arguments. Raises UserError."""
    from strop.training import config

    assignments = [text for text in arguments if OVERRIDE.match(text)]
    recipes = [text for text in arguments if not OVERRIDE.match(text)]
    if len(recipes) > 1:
        raise UserError(f"one recipe at a time, got {' and '.join(recipes)}")
    raw = config.load(file).model_dump(exclude_unset=True) if file else {}
    model = options.get("model", {}).get("name") or raw.get("model", {}).get("name", "tiny")
    merged = config.defaults(model)
    for source in (raw, options):
        for section, values in source.items():
            if isinstance(values, dict):
                merged[section] = {**merged.get(section, {}), **values}
            else:
                merged[section] = values
    if recipes:
        merged["recipe"] = recipes[0]
    return config.make(config.override(merged, assignments))


def free_folder(recipe: str) -> Path:
    """runs/<recipe>-1, or the next number that is free."""
    name = re.match(r"\w*", recipe.strip('"'))
    stem = (name.group() if name else "") or "run"
    number = 1
    while Path("runs", f"{stem}-{number}").exists():
        number += 1
    return Path("runs", f"{stem}-{number}")


def _run(folder: Path, settings: Any, quiet: bool) -> None:
    from strop.cli.progress import Progress
    from strop.evaluation.validate import validator
    from strop.report.page import write_report
    from strop.training import config, loop

    if settings is None:
        if not (folder / "config.toml").is_file():
            raise UserError(f"{folder} is not a run: it has no config.toml")
        settings = config.load(folder / "config.toml")
        run = loop.resume(settings, folder)
    else:
        run = loop.start(settings, folder)
    evaluation = settings.evaluation
    watcher = Progress(quiet)
    try:
        loop.go(run, watcher, validator(evaluation.num_samples, evaluation.k, settings.seed))
    except RunStopped as error:
        raise RunStopped(f"{error}. Go on with: strop train --resume {folder}") from error
    finally:
        watcher.close()
        run.world.services.grader.close()
    if run.done < settings.training.steps:
        watcher.note(f"stopped after step {run.done}; go on with: strop train --resume {folder}")
        return
    write_report([folder], folder / "report.html")
    watcher.finish(run)
