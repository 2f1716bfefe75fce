"""`strop eval`: scores of a run's checkpoint, or of any model."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from strop.cli.trust import Trust, check_trust
from strop.cli.waiting import loading
from strop.errors import UserError

SPLITS = ("heldout", "validation", "train")
Engine = Annotated[
    str,
    typer.Option(
        help="What samples, with its settings: `kind(setting=value)`; default: the run's, or local."
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="A setting, as `strop train` takes it (`data.system_prompt=...`); repeatable.",
    ),
]
MODELS = ("config.json", "adapter_config.json")  # either is in the folder of a model


def evaluate(
    source: Annotated[
        str,
        typer.Argument(metavar="RUN_OR_MODEL", help="Run folder, model folder or name, `tiny`."),
    ],
    k: Annotated[str, typer.Option(help="Comma-separated k of pass@k and maj@k.")] = "1,8",
    split: Annotated[
        str,
        typer.Option(
            help="`heldout`, `validation` or `train`; default: `heldout`, with --data its rows."
        ),
    ] = "",
    num_samples: Annotated[
        int, typer.Option("--samples", min=0, help="Answers per prompt; 0: 16 or the largest k.")
    ] = 0,
    max_prompts: Annotated[int, typer.Option("--prompts", min=0, help="Most prompts; 0: all.")] = 0,
    step: Annotated[int, typer.Option(help="Checkpoint of the run; 0: the newest.")] = 0,
    start: Annotated[bool, typer.Option(help="The model that the run began with.")] = False,
    temperature: Annotated[float, typer.Option(help="Sampling temperature.")] = 1.0,
    max_tokens: Annotated[
        int, typer.Option(min=0, help="Most new tokens; 0: the run's or the task's.")
    ] = 0,
    task: Annotated[str, typer.Option(help="Task, where the source is a model.")] = "",
    data: Annotated[list[str] | None, typer.Option(help="Data file; repeatable.")] = None,
    reward: Annotated[list[str] | None, typer.Option(help="Reward function; repeatable.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the draws and of the bootstrap.")] = 0,
    engine: Engine = "",
    assignments: Settings = None,
    trust: Trust = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Unbiased pass@k, maj@k, mean@n, confidence, diversity and lengths, with 95% intervals.

    Intervals are bootstrapped over prompts.
    """
    loading(source)
    from strop.evaluation.summary import as_json as flat

    ks = _numbers(k)
    num_samples = num_samples or max(16, *ks)
    split = split or ("train" if data else "heldout")
    if split not in SPLITS:
        raise UserError(f"no split {split!r}: there are {', '.join(SPLITS)}")
    if max(ks) > num_samples:
        raise UserError(f"--k {max(ks)} needs at least as many samples: give --samples {max(ks)}")
    subject = open_subject(
        source, step, task, data, reward, temperature, max_tokens, engine,
        start=start, assignments=assignments, trust=trust,
    )  # fmt: skip
    with subject:
        evaluated = _evaluate(subject, split, max_prompts, num_samples, ks, seed)
    if not evaluated.estimates:
        raise UserError(evaluated.why_empty)
    _tell_failures(subject.services.sampling.failures)
    if as_json:
        print(json.dumps(flat(evaluated.estimates), indent=2))
        return
    _show(evaluated, f"{source} on {subject.services.task.name} {split}", num_samples)


def _tell_failures(failures: Sequence[str]) -> None:
    if failures:
        print(
            f"note: requests failed ({len(failures)}), their answers are left unscored; the first: "
            f"{failures[0]}",
            file=sys.stderr,
        )


def _evaluate(
    subject: Any, split: str, max_prompts: int, num_samples: int, ks: tuple[int, ...], seed: int
) -> Any:
    from strop.evaluation.run import evaluate as run
    from strop.training.rows import fitting

    task = subject.services.task
    prompts = getattr(task, split)
    if not prompts:
        others = " or ".join(f"--split {name}" for name in SPLITS if getattr(task, name))
        raise UserError(f"the split {split} of {task.name} is empty: give {others} or --data FILE")
    if subject.drops_overlong:
        prompts, left_out = fitting(subject.services, subject.rollout.part, prompts, split)
        for note in left_out:
            print(f"note: {note}", file=sys.stderr)
    prompts = prompts[:max_prompts] if max_prompts else prompts
    for prompt in prompts:
        subject.services.texts.prompt_ids(prompt.uid)  # one that cannot be read is found at once
    return run(
        prompts, subject.rollout, subject.engine, subject.services,
        num_samples=num_samples, ks=ks, seed=seed,
    )  # fmt: skip


def open_subject(
    source: str,
    step: int = 0,
    task: str = "",
    data: list[str] | None = None,
    reward: list[str] | None = None,
    temperature: float = 1.0,
    max_tokens: int = 0,
    engine: str = "",
    *,
    scored: bool = True,
    start: bool = False,
    trust: bool = False,
    assignments: list[str] | None = None,
) -> Any:
    """A run's checkpoint or a model, ready to sample. Raises UserError.

    engine: what samples, `kind` or `kind(setting=value)`; empty: the run's, or the local one.
    scored: with the rewards, too. start: the model that the run began with. trust: what the run's
    configuration names may be imported.
    assignments: settings in place of the run's.
    """
    from strop.cli.subject import Subject
    from strop.notation import named
    from strop.training import config

    settings, model = checkpoint_of(source, step, start)
    options: dict[str, Any] = {}
    if task or data:
        own = {"validation_files": (), "validation_size": 0, "heldout_size": 0, "train_size": 0}
        kept = settings.data.task_config if task == settings.data.task else {}
        options["data"] = {
            **own, "task_config": kept, "task": task, "files": tuple(data or ())
        }  # fmt: skip
    if reward or not scored:
        options["reward"] = {"functions": tuple(reward or ()), "weights": ()}
    if not trust:  # a model alone has the defaults, which name nothing
        check_trust(settings, {**options, **({"engine": engine} if engine else {})}, source)
    dumped = settings.model_dump()
    if engine:
        kind, given = named(engine)
        dumped["engine"] = {"kind": kind, **given}
    merged = {**dumped, **{
        section: {**dumped[section], **values} for section, values in options.items()
    }}  # fmt: skip
    merged = config.override(merged, assignments or [])
    return Subject.open(config.make(merged), model, temperature, max_tokens, scored)


def checkpoint_of(source: str, step: int, start: bool = False) -> tuple[Any, str]:
    """The settings and the model's folder or name of a run's checkpoint, or of a model itself.

    step: of the checkpoint; 0: the newest. start: what the run began with. Raises UserError when
    there is none.
    """
    from strop.training import checkpoint, config

    folder = Path(source)
    if (folder / "config.toml").is_file():
        settings = config.load(folder / "config.toml")
        if start and step:
            raise UserError(f"--start and --step {step} name two models: leave one out")
        if start:
            return settings, settings.model.name
        place = checkpoint.at(folder / "checkpoints", step)
        for note in checkpoint.unchecked(place):
            print(f"note: {note}", file=sys.stderr)
        return settings, str(place)
    if folder.is_dir() and not any((folder / name).is_file() for name in MODELS):
        raise UserError(
            f"{folder} is neither a run (config.toml) nor a model (config.json) nor an adapter "
            "(adapter_config.json)"
        )
    return config.make({"model": {"name": source}}), source


def _numbers(text: str) -> tuple[int, ...]:
    try:
        found = tuple(int(piece) for piece in text.split(","))
    except ValueError as error:
        raise UserError(f"--k takes whole numbers separated by commas, got {text!r}") from error
    if not found or min(found) < 1:
        raise UserError(f"--k takes numbers of at least 1, got {text!r}")
    return found


def _show(evaluated: Any, title: str, num_samples: int) -> None:
    table = Table(title=title, title_justify="left")
    table.add_column("")
    table.add_column("value", justify="right")
    table.add_column("95% interval", justify="right")
    for name, estimate in evaluated.estimates.items():
        inside = (
            "" if estimate.low == estimate.high else f"{estimate.low:.3f} to {estimate.high:.3f}"
        )
        value = f"{estimate.value:.0f}" if name.startswith("num_") else f"{estimate.value:.3f}"
        table.add_row(name.replace("@n", f"@{num_samples}"), value, inside)
    console = Console(highlight=False)
    console.print(table)
    if evaluated.num_left_out:
        console.print(f"{evaluated.num_left_out} prompts left out: too few scored answers")
