"""`strop audit`: what a method does to a policy that is small enough to enumerate."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from strop.cli import completing
from strop.cli.compare import Written, methods_of
from strop.cli.numbers import numbers
from strop.support.errors import UserError
from strop.support.files import without_nan
from strop.support.output import plain_console
from strop.support.tables import write_rows
from strop.support.writing import writing

if TYPE_CHECKING:
    from strop.api.audit import Audited, Part

Numbers = Annotated[str, typer.Option()]


def audit(
    arguments: Annotated[
        list[str],
        typer.Argument(
            metavar="METHOD... [OPTION=VALUE]...",
            help="A METHOD is a recipe in one line, or a .toml file. An option is for all methods; "
            "put those of one method with it in quotes: 'rloo loss.clip_high=0.3'.",
            autocompletion=completing.methods,
        ),
    ],
    group: Annotated[str, typer.Option(help="Answers to a prompt.")] = "2,4,8",
    success: Annotated[str, typer.Option(help="Success rates of the policy.")] = "0.1,0.3,0.7",
    staleness: Annotated[
        str, typer.Option(help="Steps that the policy has taken since the answers were drawn.")
    ] = "0,2,8",
    updates: Annotated[str, typer.Option(help="Updates on the same answers.")] = "1,4",
    step: Annotated[
        float, typer.Option(help="Learning rate, on free logits, of such a step or update.")
    ] = 0.3,
    depth: Annotated[int, typer.Option(help="Most tokens of an answer.")] = 3,
    branching: Annotated[int, typer.Option(help="Actions at every node.")] = 2,
    ragged: Annotated[bool, typer.Option(help="Action 0 ends an answer.")] = True,
    prompts: Annotated[int, typer.Option(min=1, help="Prompts of a step, a tree each.")] = 1,
    share: Annotated[float, typer.Option(help="Share of the paths that are right.")] = 0.5,
    most: Annotated[int, typer.Option(min=1, help="Largest number of groups to enumerate.")] = 1500,
    draws: Annotated[int, typer.Option(min=40, help="Groups to draw where there are more.")] = 1000,
    seed: Annotated[int, typer.Option(help="Of the tree's rewards and the policy.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")] = False,
    out: Annotated[Path | None, typer.Option("--csv", help="Also write the numbers here.")] = None,
) -> None:
    """Bias, variance and first-order effects of a method's gradient, by enumeration.

    The base setting takes the middle value of group and success, the first of staleness and the
    method's own updates; the other values are tried one at a time.

    scale: how many times the mean step contains the true policy gradient; bias: the rest of the
    step over that part; noise: its standard deviation over its length; error: squared error of N
    answers, times N; success', entropy': their first-order change per unit of step; ESS: effective
    sample size, as a share; silent: share of groups that move nothing; refilled: share of groups
    replaced; c-scale, c-bias: towards the gradient of what top_p, top_k or min_p leave; ratio: mean
    of learner over sampler. A teacher's true gradient is of whole answers, token bias of tokens'.
    """
    from strop.api.audit import audits, base_of

    methods = _methods(arguments)
    changes = _changes(group=group, success=success, staleness=staleness, updates=updates)
    base = base_of(
        changes, step=step, depth=depth, branching=branching, ragged=ragged, prompts=prompts,
        share=share, shape=seed,
    )  # fmt: skip
    rows, headings, tell = [], set[str](), _json if as_json else _quiet
    for label, settings in methods:
        found = audits(label, settings, base, changes, most, draws, tell)
        rows += _shown_rows(found, as_json)
        headings.update(*(part.shown()[0] for part in found.parts))
    if not as_json:
        _explain(headings)
    if out is not None:
        _write(rows, out)


def _methods(arguments: Sequence[str]) -> list[tuple[str, Any]]:
    """Labels and settings. Raises UserError for a method that cannot be built."""
    from strop.auditing.vary import phases_of
    from strop.training.settings.assignments import split

    if not split(arguments)[0]:
        raise UserError("name a recipe to audit, such as `strop audit grpo`")
    methods = [(label, Written().settings(words)) for label, words, *_ in methods_of(arguments)]
    for _, settings in methods:
        phases_of(settings)
    return methods


def _changes(**texts: str) -> dict[str, Sequence[float]]:
    """The numbers of these options: success rates, and counts. Raises UserError."""
    rates = {"success": float}
    return {name: numbers(f"--{name}", text, rates.get(name, int)) for name, text in texts.items()}


def _shown_rows(found: "Audited", as_json: bool) -> list[dict[str, Any]]:
    """Print the results, unless their rows were printed as they came, and return all rows."""
    for line in found.left_out:
        print(line, file=sys.stderr)
    for part in found.parts if not as_json else ():
        _show(part)
    return [row for part in found.parts for row in part.rows]


def _quiet(row: dict[str, Any]) -> None:
    """Print nothing: the table follows when all rows are there."""


def _json(row: dict[str, Any]) -> None:
    print(json.dumps(without_nan(row)), flush=True)


MEANINGS = {
    "scale": "how many times the mean step contains the true policy gradient",
    "bias": "the rest of the mean step over that part",
    "token bias": "the same towards the gradient of a teacher's tokens",
    "cosine": "between the mean step and the gradient",
    "noise": "standard deviation of the step over its length",
    "error": "squared error of N answers, times N",
    "success', entropy'": "first-order change per unit of step",
    "ESS": "effective sample size, as a share",
    "silent": "share of groups that move nothing",
    "refilled": "share of groups that are replaced",
    "c-scale, c-bias": "towards the gradient of what top_p, top_k or min_p leave",
    "ratio": "mean of learner over sampler",
}


def _explain(headings: set[str]) -> None:
    """Print what the columns are, one a line."""
    shown = Table.grid(padding=(0, 2, 0, 0))
    for names, meaning in MEANINGS.items():
        if headings & set(names.split(", ")):
            shown.add_row(names, meaning)
    console = plain_console()
    console.print()
    console.print(shown)
    console.print("docs/AUDIT.md has the formulas")


WIDE = 160  # characters of a table: a number that is cut says nothing


def _show(part: "Part") -> None:
    """Print what the part is about, and the settings' numbers."""
    console = plain_console()
    console.print(f"[bold]{escape(part.label)}[/] {escape(part.about)}")
    head, lines = part.shown()
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column(head[0], no_wrap=True)
    for name in head[1:]:
        table.add_column(name, justify="right", no_wrap=True)
    for line in lines:
        table.add_row(*line)
    plain_console(width=max(console.width, WIDE)).print(table)


def _write(rows: list[dict[str, Any]], path: Path) -> None:
    with writing(path.parent, path.name):
        write_rows(path, list(rows[0]), rows)
    print(f"wrote {path}", file=sys.stderr)
