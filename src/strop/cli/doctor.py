"""`strop doctor`: what is installed, whether it fits together, and what went wrong in a run."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from strop.cli import completing
from strop.cli.train import Data, Renamed, Reward, sections
from strop.cli.waiting import loading
from strop.data.row_layouts import pairs
from strop.support.errors import UserError
from strop.support.output import plain_console

if TYPE_CHECKING:
    from strop.diagnosis.whole import Diagnosis

COLOURS = {"ok": "green", "note": "yellow", "problem": "bold red", "unknown": "dim"}


def doctor(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN] [OPTION=VALUE]...",
            help="A run's folder; or any options, the method as `recipe=dapo`.",
            autocompletion=completing.options,
        ),
    ] = None,
    model: Annotated[str, typer.Option(help="Model folder or name; `tiny` ships with strop.")] = "",
    data: Data = None,
    renamed: Renamed = None,
    reward: Reward = None,
    ray: Annotated[
        str, typer.Option(help="A Ray cluster, as for training: `local`, `auto` or host:port.")
    ] = "",
    serve: Annotated[
        str,
        typer.Option(help="URL of a server with OpenAI's protocol; its key: OPENAI_API_KEY."),
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Look for what is wrong: with a run, or with machine, model, data and rewards before one.

    With a run's folder: why the loss is 0, why entropy falls, which groups give no signal, and
    more, from its files. Without: versions and devices; with --model its size and an estimate of
    the memory; with --data and --reward lengths, repeated rows and a trial of the reward functions;
    with --ray whether the cluster's machines answer, have the same versions, room and this folder,
    and how fast weights reach them. With --serve: which routes and models an endpoint has, and
    whether it gives tokens with log-probabilities, tokens, or text alone.

    The estimate is of the model, the optimiser, a reference, the cache and one pass. It leaves out
    Python with torch and transformers (about 0.35 GiB of main memory), the processes of reward
    functions, a critic's heads, AdamW's temporary copies on a GPU, and attention that keeps a
    matrix of length * length. docs/MODELS.md compares it with what runs took.

    Exit code 1: a problem was found. 0: none was. 2: an argument is wrong.
    """
    loading("what the doctor checks")
    from strop.diagnosis.whole import after_a_run, of_an_endpoint
    from strop.training.settings.assignments import split

    given, columns = arguments or [], pairs(renamed or [], "--map")
    runs, _ = split(given)
    if len(runs) > 1:
        raise UserError(f"one run at a time, got {' and '.join(runs)}")
    if serve:
        if given or model or data or renamed or reward or ray:
            raise UserError("--serve checks only an endpoint: leave the other options out")
        found = of_an_endpoint(serve)
    elif runs:
        if len(given) > 1 or model or data or renamed or reward or ray:
            raise UserError("a run is judged by its own files: leave the other options out")
        found = after_a_run(Path(runs[0]))
    else:
        found = _before(given, sections(model, "", data, None, reward, columns), ray)
    _print(found, as_json)
    if found.problems:
        raise typer.Exit(1)


def _before(given: list[str], options: dict[str, Any], ray: str) -> "Diagnosis":
    """The diagnosis of a run with these options before it starts."""
    from strop.api.options import settings_of
    from strop.diagnosis.whole import before_a_run

    options |= {"ray": {"address": ray}} if ray else {}
    heads = {text.partition(".")[0] for text in given}
    return before_a_run(
        settings_of(given, options),
        with_model=bool("model" in options or heads - {"ray"}),
        with_data=bool({"data", "reward"} & (options.keys() | heads)),
    )


def _print(found: "Diagnosis", as_json: bool) -> None:
    if as_json:
        findings = [asdict(finding) for finding in found.findings]
        whole = {**found.report, "problems": len(found.problems), "findings": findings}
        print(json.dumps(whole, indent=2))
        return
    console = plain_console(soft_wrap=True)
    for line in found.lines:
        console.print(line, markup=False)
    for finding in found.findings:
        colour = COLOURS[finding.status]
        console.print(f"\n[bold]{escape(finding.question)}[/]  [{colour}]{finding.status}[/]")
        console.print(f"  {finding.answer}", markup=False)
        if finding.advice:
            console.print(f"  Do: {finding.advice}", markup=False)
