"""`strop eval`: scores of a run's checkpoint, or of any model."""

import json
import math
from typing import Annotated, Any

import typer
from rich.table import Table

from strop.cli.numbers import numbers
from strop.cli.train import Data, Reward
from strop.cli.waiting import loading
from strop.support.errors import UserError
from strop.support.files import without_nan
from strop.support.output import plain_console

Source = Annotated[
    str, typer.Argument(metavar="RUN_OR_MODEL", help="Run folder, model folder or name, `tiny`.")
]
Engine = Annotated[
    str,
    typer.Option(help="Engine that samples: `kind(setting=value)`; default: the run's, or local."),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set", help="A setting, as `strop train` takes it (`data.system_prompt=...`); repeatable."
    ),
]

Temperature = Annotated[
    float | None,
    typer.Option(
        help="Sampling temperature; default: the run's, whose top_p, top_k and min_p hold too "
        "(`--set rollout.top_p=1`), or 1."
    ),
]
MaxTokens = Annotated[
    int, typer.Option(min=0, help="Most new tokens; 0: the run's, the model's or the task's.")
]
Trust = Annotated[
    bool,
    typer.Option(
        "--trust-files",
        help="Import the files and modules, ask the judges and servers, and run code unisolated, "
        "as the run's config.toml says; a folder from somebody else can name anything.",
    ),
]
K = Annotated[
    str,
    typer.Option(
        help="Comma-separated k of pass@k and maj@k; default: 1,8, or 1 and --samples where these "
        "are fewer."
    ),
]
Split = Annotated[
    str,
    typer.Option(
        help="`heldout`, `validation`, `train` or a validation set's name; default: `heldout`, or "
        "the rows of --data."
    ),
]


def evaluate(
    source: Source,
    k: K = "",
    split: Split = "",
    num_samples: Annotated[
        int, typer.Option("--samples", min=0, help="Answers per prompt; 0: 16 or the largest k.")
    ] = 0,
    max_prompts: Annotated[int, typer.Option("--prompts", min=0, help="Most prompts; 0: all.")] = 0,
    step: Annotated[int, typer.Option(help="Checkpoint of the run; 0: the newest.")] = 0,
    best: Annotated[bool, typer.Option(help="The best checkpoint, by `training.best`.")] = False,
    start: Annotated[bool, typer.Option(help="The model that the run started from.")] = False,
    temperature: Temperature = None,
    max_tokens: MaxTokens = 0,
    task: Annotated[str, typer.Option(help="Task, where the source is a model.")] = "",
    data: Data = None,
    reward: Reward = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the draws and of the bootstrap.")] = 0,
    engine: Engine = "",
    assignments: Settings = None,
    trust: Trust = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Unbiased pass@k, maj@k, mean@n, confidence, diversity and lengths, with 95% intervals.

    A run's checkpoint samples as in the run's validation. Intervals are bootstrapped over prompts.
    """
    given = numbers("--k", k, int, 1) if k else ()
    loading(source)
    from strop.api.inference import check_scoring, open_model, scored
    from strop.evaluation.at_k import usual_ks
    from strop.evaluation.summary import as_json as flat

    ks = given or usual_ks(8, num_samples)
    num_samples = num_samples or max(16, *ks)
    split = split or ("train" if data else "heldout")
    check_scoring(ks, num_samples)
    subject = open_model(
        source, step, task, data, reward, temperature, max_tokens, engine,
        start=start, best=best, assignments=assignments, trust=trust, split=split,
    )  # fmt: skip
    with subject:
        evaluated = scored(subject, split, max_prompts, num_samples, ks, seed)
    if not evaluated.estimates:
        raise UserError(evaluated.why_empty)
    if as_json:
        by_prompt = {name: value_P.tolist() for name, value_P in evaluated.by_prompt.items()}
        print(json.dumps({**flat(evaluated.estimates), "by_prompt": without_nan(by_prompt)}))
        return
    most = subject.services.limits.episode_tokens
    title = f"{source} on {subject.services.task.name} {split}, at most {most} new tokens"
    _show(evaluated, title, num_samples)


def _show(evaluated: Any, title: str, num_samples: int) -> None:
    table = Table(title=title, title_justify="left")
    table.add_column("")
    table.add_column("value", justify="right")
    table.add_column("95% interval", justify="right")
    for name, estimate in evaluated.estimates.items():
        alone = estimate.low == estimate.high or math.isnan(estimate.low)  # as with one prompt
        inside = "" if alone else f"{estimate.low:.3f} to {estimate.high:.3f}"
        value = f"{estimate.value:.0f}" if name.startswith("num_") else f"{estimate.value:.3f}"
        value = "-" if math.isnan(estimate.value) else value
        table.add_row(name.replace("@n", f"@{num_samples}"), value, inside)
    console = plain_console()
    console.print(table)
    if evaluated.num_left_out:
        console.print(
            f"{evaluated.num_left_out} prompts left out at the largest k: too few scored answers"
        )
