"""`strop plan`: speed of a run on other numbers of workers, or of a model on a number of GPUs."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from strop.cli.numbers import numbers
from strop.cli.waiting import loading, progress_line
from strop.support.errors import UserError
from strop.support.files import without_nan
from strop.support.output import plain_console

if TYPE_CHECKING:
    from strop.api.plan import Planned

Given = Annotated[
    list[Path],
    typer.Argument(
        metavar="RUN...|MODEL [RUN...]",
        help="Run folder; further runs of the same model and machine make the costs more exact, an "
        "asynchronous run those of asynchronous layouts. With --gpus: a model's folder or "
        "config.json, and runs on one such GPU, whose measured costs replace assumed ones.",
    ),
]
Workers = Annotated[str, typer.Option(help="Numbers of workers: GPUs, or the devices of the run.")]
Staleness = Annotated[str, typer.Option(help="Bounds of asynchronous layouts.")]
Lengths = Annotated[
    str,
    typer.Option(
        metavar="MEAN[,P99]|FILE",
        help="Tokens of an answer, instead of the run's: mean, 99th percentile; with --gpus also a "
        "file with a number in each line.",
    ),
]
Prompts = Annotated[int, typer.Option(min=0, help="Prompts of a step; 0: as the run, or 128.")]
Spare = Annotated[
    float,
    typer.Option(
        min=0.0,
        max=16.0,
        help="Partial layouts: prompts in flight beyond a step's, as a share of them; 0: none.",
    ),
]
Exchange = Annotated[
    float,
    typer.Option(
        min=0.0,
        max=86_400.0,
        help="Seconds until several trainers have a step's gradients, or engines its weights.",
    ),
]
Extrapolate = Annotated[
    bool, typer.Option("--extrapolate", help="Allow --lengths far above those of the run.")
]
Gpus = Annotated[str, typer.Option(help="Numbers of GPUs: plan a model without a run.")]
Kind = Annotated[str, typer.Option(help="The GPUs: A100, B200, GB200, H100, H20, H200, L4, L40S.")]
Answers = Annotated[int, typer.Option(min=0, help="Answers to a prompt; 0: as the run, or 16.")]
PromptTokens = Annotated[int, typer.Option(min=0, help="Of a prompt; 0: as the run, or 200.")]
MaxTokens = Annotated[int, typer.Option(min=0, help="Most tokens of an answer; 0: any number.")]
Updates = Annotated[int, typer.Option(min=1, help="Updates of the weights in a step.")]
Passes = Annotated[
    float,
    typer.Option(
        min=0.0, max=16.0,
        help="Forward passes of training besides that of the update: old log-probabilities, a "
        "reference.",
    ),
]  # fmt: skip
Generate = Annotated[
    int,
    typer.Option(min=0, help="GPUs that generate in asynchronous layouts; 0: the best number."),
]
Assume = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=VALUE", help="Assumptions about GPUs, such as mfu=0.4."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, one layout a line.")]
Out = Annotated[Path, typer.Option("--out", "-o", help="The page.")]
WIDE = 110  # characters of the table of how GPUs share a model
WORKERS = "1,2,4,8,16,32,64"


def plan(
    given: Given,
    workers: Workers = WORKERS,
    staleness: Staleness = "1",
    lengths: Lengths = "",
    prompts: Prompts = 0,
    spare: Spare = 1.0,
    exchange: Exchange = 0.0,
    extrapolate: Extrapolate = False,
    gpus: Gpus = "",
    kind: Kind = "",
    answers: Answers = 0,
    prompt_tokens: PromptTokens = 0,
    max_tokens: MaxTokens = 0,
    updates: Updates = 1,
    passes: Passes = 1.0,
    generate: Generate = 0,
    assume: Assume = None,
    as_json: AsJson = False,
    out: Out = Path("plan.html"),
) -> None:
    """Estimate throughput and idle time of layouts with other numbers of workers.

    Synchronous, partial (more prompts in flight than a step takes) and asynchronous layouts are
    simulated at the costs that the run measured or, with --gpus, at costs from a model's
    configuration and the GPUs' data sheets. Prints a table and writes a page with charts.
    """
    of_model = {
        "--kind": kind, "--answers": answers, "--prompt-tokens": prompt_tokens,
        "--max-tokens": max_tokens, "--updates": updates != 1, "--passes": passes != 1,
        "--generate": generate, "--assume": assume,
    }  # fmt: skip
    of_run = {"--workers": workers != WORKERS, "--exchange": exchange, "--extrapolate": extrapolate}
    wrong = [name for name, value in (of_run if gpus else of_model).items() if value]
    if wrong:
        raise UserError(
            f"{wrong[0]} is for a plan {'from a run, not with' if gpus else 'of a model:'} --gpus"
        )
    bounds = numbers("--staleness", staleness, int)
    counts = numbers("--gpus", gpus, int) if gpus else numbers("--workers", workers, int)
    in_file = bool(gpus) and Path(lengths).is_file()
    option = "--lengths, which names no file here," if gpus else "--lengths"
    tokens = numbers(option, lengths, float) if lengths and not in_file else ()
    loading(", ".join(map(str, given)))
    from strop.api.plan import Question, plan_model
    from strop.api.plan import plan as planned

    with progress_line() as progress:
        if gpus:
            asked = Question(
                counts, kind, bounds, Path(lengths) if in_file else tokens, max_tokens,
                prompts, answers, prompt_tokens, updates, passes, spare, generate,
                assume or (),
            )  # fmt: skip
            found = plan_model(given[0], given[1:], asked, progress)
        else:
            found = planned(
                given, counts, bounds, tokens, prompts, spare, exchange, extrapolate, progress
            )
    _show(found, as_json, out)


def _show(found: "Planned", as_json: bool, out: Path) -> None:
    """Print the layouts, and write the page."""
    from strop.planning.text import sharing_table, table

    console = plain_console(markup=False, soft_wrap=True)
    if as_json:
        for row in found.rows:
            print(json.dumps(without_nan(row)))
        found.save(out)
        return
    for line in (*found.facts, ""):
        console.print(line)
    console.print(table(found.found))
    if any(row.get("engine") for row in found.rows):
        console.print("")
        plain_console(markup=False, width=WIDE).print(sharing_table(found.found))
    for line in ("", *found.proposals):
        console.print(line)
    print(f"wrote {found.save(out)}")
