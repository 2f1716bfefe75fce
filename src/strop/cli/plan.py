"""`strop plan`: what a run would yield on other numbers of workers, from costs measured in it."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from strop.cli.numbers import numbers
from strop.cli.waiting import loading

Runs = Annotated[
    list[Path],
    typer.Argument(
        metavar="RUN...",
        help="Run folder; further runs, of the same model and machine, sharpen the costs, those of "
        "asynchronous layouts an asynchronous run.",
    ),
]
Workers = Annotated[str, typer.Option(help="Numbers of workers: GPUs, or what the run was on.")]
Staleness = Annotated[str, typer.Option(help="Bounds of asynchronous layouts.")]
Lengths = Annotated[
    str,
    typer.Option(
        metavar="MEAN[,P99]",
        help="Tokens of an answer in place of the run's: mean, 99th percentile.",
    ),
]
Prompts = Annotated[int, typer.Option(min=0, help="Prompts of a step; 0: as the run.")]
Spare = Annotated[
    float,
    typer.Option(
        min=0.0,
        max=16.0,
        help="Partial layouts: prompts under way beyond a step's, as a share of them; 0: none.",
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
Out = Annotated[Path, typer.Option("--out", "-o", help="The page.")]


def plan(
    runs: Runs,
    workers: Workers = "1,2,4,8,16,32,64",
    staleness: Staleness = "1",
    lengths: Lengths = "",
    prompts: Prompts = 0,
    spare: Spare = 1.0,
    exchange: Exchange = 0.0,
    out: Out = Path("plan.html"),
) -> None:
    """Estimate throughput and idle time of layouts with other numbers of workers.

    Synchronous, partial (more prompts under way than a step takes) and asynchronous layouts are
    simulated at the costs that the run measured. Prints a table and writes a page with pictures.
    """
    counts, bounds = numbers("--workers", workers, int), numbers("--staleness", staleness, int)
    given = numbers("--lengths", lengths, float) if lengths else ()
    loading(", ".join(map(str, runs)))
    from strop.api.plan import plan as planned
    from strop.planning.told import proposals, table, told

    found = planned(runs, counts, bounds, given, prompts, spare, exchange)
    console = Console(highlight=False, markup=False, soft_wrap=True)
    for line in (*told(found.measured), ""):
        console.print(line)
    console.print(table(found.found))
    for line in ("", *proposals(found.found)):
        console.print(line)
    print(f"wrote {found.save(out)}")
