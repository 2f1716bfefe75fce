"""`strop train`: start a run, or resume one."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from strop.cli import completing
from strop.cli.train_here import Job, work
from strop.data.row_layouts import pairs
from strop.support.errors import UserError

if TYPE_CHECKING:
    from strop.training.settings.config import RunConfig

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
        help="JSON (Lines), Parquet or CSV file with a `prompt` column, a folder that `datasets` "
        "saved, or `hf:NAME:SPLIT`; repeatable."
    ),
]
Validation = Annotated[
    list[str] | None,
    typer.Option(
        help="The same for validation; `NAME=FILE` is a set with its own name; repeatable."
    ),
]
Renamed = Annotated[
    list[str] | None,
    typer.Option("--map", help="Rename a column of the data: `question=prompt`; repeatable."),
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
        help="Resume the run in this folder. With it only `training.steps=...`, "
        "`training.best=...`, `training.patience=...`, `training.save_every=...`, "
        "`training.keep_checkpoints=...`, `training.keep_rollouts=...`, "
        "`training.token_budget=...`, `training.num_slots=...`, "
        "`training...._timeout_seconds=...`, `evaluation....=...`, `tracking....=...`, "
        "`ray....=...`, --step, --ray, --track, --answers and --quiet may be given."
    ),
]
Step = Annotated[int, typer.Option(help="With --resume: resume from this step's checkpoint.")]
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
        help="Print this many sampled answers each time that rollouts are written "
        "(`training.rollouts_every`)."
    ),
]
Ray = Annotated[
    str | None,
    typer.Option(
        help="Sample on Ray, and train there with `ray.num_trainers=2`: `local` starts it here, "
        "`auto` or host:port is a cluster; docs/SCALE.md."
    ),
]
Debug = Annotated[
    bool,
    typer.Option(
        "--debug",
        help="Check the shape and dtype of every tensor that a part receives or returns "
        "(`training.debug`).",
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
    debug: Debug = False,
    quiet: Quiet = False,
) -> None:
    """Train a model. Without arguments: the shipped tiny model on Countdown puzzles.

    Options on the command line win over the file given with `--config`.

    Ctrl-C, SIGTERM and SIGHUP finish the step, save and end with exit code 130; a second Ctrl-C
    stops at once. Other exit codes: 0 the run is complete, 1 it had to stop, 2 an argument is
    wrong.
    """
    stages = {"advantage": advantage, "bound": bound}
    arguments = [
        *(arguments or []),
        *(f"{k}={text}" for k, text in stages.items() if text is not None),
        *([f"ray.address={ray}"] if ray is not None else []),
        *([f"tracking.to={json.dumps(track)}"] if track else []),
        *(["training.debug=true"] if debug else []),
    ]
    columns = pairs(renamed or [], "--map")
    options = sections(model, task, data, validation, reward, columns)
    if resume is not None and (options or config or out):
        raise UserError("--resume takes the run's own configuration: leave other options out")
    if step and resume is None:
        raise UserError("--step names a checkpoint of the run to resume: give --resume too")
    work(Job(arguments, options, config, out, resume, step, quiet, answers), _lead)


def sections(
    model: str,
    task: str,
    data: list[str] | None,
    validation: list[str] | None,
    reward: list[str] | None,
    columns: Mapping[str, str] | None = None,
) -> dict[str, dict[str, Any]]:
    """The settings of these options, by section of a configuration; unset ones are left out."""
    whole: dict[str, dict[str, Any]] = {
        "model": {"name": model},
        "data": {
            "task": task, "files": data, "validation_files": validation, "columns": columns
        },
        "reward": {"functions": reward},
    }  # fmt: skip
    return {
        section: kept
        for section, values in whole.items()
        if (kept := {name: value for name, value in values.items() if value})
    }


def _lead(job: Job, settings: "RunConfig", tell: Callable[[str], None]) -> None:
    """Let trainers on Ray run the job."""
    from strop.cli.train_on_ray import lead  # which imports what a run without Ray need not have

    lead(job, settings, tell)
