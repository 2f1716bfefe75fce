"""`strop sequence`: trains one policy on several tasks in order."""

import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from strop.api.folders import numbered
from strop.cli import completing
from strop.cli.train import Model, Reward, sections
from strop.cli.train_here import Job, work
from strop.support.errors import UserError
from strop.support.output import plain_console
from strop.support.stopping import explained

if TYPE_CHECKING:
    from strop.comparison.sequence import Plan

Tasks = Annotated[
    list[str] | None,
    typer.Option(help="NAME=FILE: the rows of a task; repeat it for the tasks in their order."),
]
Scored = Annotated[
    list[str] | None,
    typer.Option(
        help="NAME=FILE: the rows that a task is scored on, or a suite that no task trains on; "
        "repeatable."
    ),
]


def sequence(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RECIPE] [OPTION=VALUE]...",
            help="A recipe and options, as `strop train` takes them, for all tasks.",
            autocompletion=completing.methods,
        ),
    ] = None,
    model: Model = "",
    data: Tasks = None,
    validation: Scored = None,
    reward: Reward = None,
    replay: Annotated[
        float, typer.Option(min=0.0, max=0.999, help="Share of prompts from earlier tasks.")
    ] = 0.0,
    metric: Annotated[
        str, typer.Option(help="Number of the validations that counts as accuracy, like pass@1.")
    ] = "",
    out: Annotated[Path | None, typer.Option(help="Folder; default: sequences/N.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Resume the sequence in this folder.")] = None,
    quiet: Annotated[bool, typer.Option(help="Print only the end of each task.")] = False,
) -> None:
    """Train one policy on several tasks in order, score all tasks after each, and say what was
    learnt and what was retained.

    Each task is a run that starts from the weights of the previous one. Ctrl-C saves; the same
    command with the same --out, or --resume, resumes, also after a crash. Writes sequence.html,
    table.md and result.json.
    """
    from strop.api.options import settings_of
    from strop.comparison.sequence import plan_of, read_plan

    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError("a sequence trains in one process: start it without torchrun")
    if resume is not None:
        if arguments or data or validation or reward or model or replay or out is not None:
            raise UserError(
                "--resume takes the folder's own plan: leave all but --metric and --quiet out"
            )
        plan = read_plan(resume)
        plan = dataclasses.replace(plan, metric=metric or plan.metric)
        plan.keep(resume)
        _carry_out(plan, resume, quiet)
        return
    settings = settings_of(arguments or [], sections(model, "", data, validation, reward))
    plan = plan_of(settings, replay, metric or "pass@1")
    folder = out or numbered(Path("sequences"))
    plan.keep(folder)
    _carry_out(plan, folder, quiet)


def _carry_out(plan: "Plan", folder: Path, quiet: bool) -> None:
    """Do everything that remains of a sequence, then print its tables."""
    from strop.comparison.sequence import carry_out
    from strop.comparison.sequence_page import markdown, write_result

    console = plain_console(soft_wrap=True)

    def tell(text: str) -> None:
        console.print(text, markup=False)

    def train(config: Path | None, run: Path) -> None:
        new = run if config is not None else None
        again = run if config is None else None
        try:
            work(Job([], {}, config, new, again, step=0, quiet=quiet, answers=0), None)
        except typer.Exit:
            tell(f"the sequence is saved: strop sequence --resume {folder}")
            raise

    with explained(lambda: f"it is saved. Resume with: strop sequence --resume {folder}"):
        found = carry_out(plan, folder, train, tell)
    write_result(found, folder)
    print(markdown(found))
    print(f"wrote {folder / 'sequence.html'}, {folder / 'table.md'}, {folder / 'result.json'}")
