"""`strop reproduce`: tests papers' claims about their methods in small experiments."""

import csv
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from strop.cli import completing
from strop.cli.waiting import loading
from strop.support.errors import UserError
from strop.support.files import without_nan
from strop.support.output import plain_console
from strop.support.stopping import explained
from strop.support.tables import write_rows
from strop.support.writing import writing

if TYPE_CHECKING:
    from strop.api.reproduce import Outcome

COLUMNS = (
    "claim", "text", "source", "verdict", "number", "expected", "ours", "theirs", "difference",
    "low", "high", "resolves", "seeds", "date", "version", "why",
)  # fmt: skip


def reproduce(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RECIPE|RECIPE/CLAIM...",
            help="Recipes or claims to test; without one, all claims are listed. `all`: each.",
            autocompletion=completing.methods,
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=0, help="In place of the experiment's own.")] = 0,
    steps: Annotated[int, typer.Option(min=0, help="In place of the experiment's own.")] = 0,
    jobs: Annotated[int, typer.Option(min=0, help="Runs at a time; 0: one a core.")] = 0,
    out: Annotated[Path, typer.Option(help="A folder for the runs.")] = Path("reproductions"),
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")] = False,
    table: Annotated[
        Path | None,
        typer.Option("--csv", help="Also write the results here; other rows of it stay."),
    ] = None,
) -> None:
    """Run the experiments of papers' claims, and say which of them hold at this scale.

    A claim's experiment compares two methods on equal seeds: by runs on a shipped model, or by
    enumeration as in `strop audit`. Ctrl-C saves the runs; the same command resumes them.
    """
    loading("the claims")
    from strop.api.reproduce import outcomes
    from strop.comparison.claims import claims, claims_of

    console = plain_console(soft_wrap=True)
    if not names:
        _list(console, as_json)
        return
    named = [c for name in names for c in (claims() if name == "all" else claims_of(name))]
    found = [*{claim.id: claim for claim in named}.values()]
    if table is not None and not table.absolute().parent.is_dir():
        raise UserError(f"--csv {table}: its folder does not exist")
    with explained(lambda: f"what its runs saved stays in {out}: the same command resumes them"):
        for outcome in outcomes(found, out, seeds, steps, jobs, not as_json):
            if as_json:
                print(json.dumps(without_nan(outcome.row())))
            else:
                console.print("\n".join(outcome.lines()) + "\n", markup=False)
            if table is not None:
                _keep(outcome, table)


def _list(console: Console, as_json: bool) -> None:
    """Print all claims, and how many of them can be tested here."""
    from strop.comparison.claims import claims, results

    shown = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for head in ("claim", "says", "by", "found"):
        shown.add_column(head, overflow="fold")
    for claim in claims():
        how = "enumeration" if claim.audited else f"{2 * claim.seeds} runs"
        found = results().get(claim.id, {}).get("verdict", "")
        how = "not testable" if claim.untestable else how
        shown.add_row(claim.id, escape(claim.text), how, found)
        if as_json:
            print(json.dumps({"claim": claim.id, "text": claim.text, "by": how, "found": found}))
    if as_json:
        return
    console.print(shown)
    testable = sum(not claim.untestable for claim in claims())
    console.print(f"{testable} of {len(claims())} can be tested here: strop reproduce NAME")


def _keep(outcome: "Outcome", path: Path) -> None:
    """Put a result into a table, in place of an older one of the same claim."""
    rows = {row["claim"]: row for row in _rows(path)}
    rows[outcome.claim.id] = {
        name: f"{value:.5g}" if isinstance(value, float) else str(value)
        for name, value in outcome.row().items()
    }
    with writing(path.parent, path.name):
        write_rows(path, COLUMNS, [rows[name] for name in sorted(rows)])


def _rows(path: Path) -> list[dict[str, Any]]:
    """The rows of such a table; none where there is no file. Raises UserError."""
    if not path.exists():
        return []
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            if tuple(reader.fieldnames or ()) != COLUMNS:
                raise UserError(f"{path} is not a table of claims: give --csv another file")
            return [*reader]
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {path}: {error}") from error
