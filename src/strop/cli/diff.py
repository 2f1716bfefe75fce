"""`strop diff`: whether two runs are the same, and if not, where they diverge and why."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from strop.cli.waiting import loading
from strop.support.output import plain_console


def diff(
    first: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.")],
    second: Annotated[Path, typer.Argument(metavar="RUN", help="The other one.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say whether two runs are the same, bit for bit, and if not, where they diverge and why.

    Compares the metrics of every step that both have, except times, and the rollouts and tokens
    that both have saved. Names the first step that differs with its stage, columns and first token,
    and the settings, data, versions and machines in which the folders differ.

    Exit code 0: they are the same. 1: they are not. 2: an argument is wrong.
    """
    loading("two runs")
    from strop.diagnosis.difference import difference

    found = difference(first, second)
    if as_json:
        whole = {"same": found.same, "stage": found.stage, **asdict(found)}
        print(json.dumps(whole, indent=2))
    else:
        console = plain_console(soft_wrap=True)
        for line in found.lines:
            console.print(line, markup=False)
    if not found.same:
        raise typer.Exit(1)
