"""`strop report`: one offline page for one or several runs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from strop.cli.waiting import loading


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The page.")] = Path("report.html"),
) -> None:
    """Write a page with curves, examples and settings that opens without a network."""
    loading(", ".join(map(str, runs)))
    from strop.report.page import write_report

    write_report(without_methods(runs), out)
    print(f"wrote {out}")


def without_methods(places: Sequence[Path]) -> list[Path]:
    """The places without the methods' files that `strop compare` keeps beside its runs, so that
    `COMPARISON/runs/*` names the runs.
    """
    files = {place for place in places if place.suffix == ".toml" and place.is_file()}
    if files:
        from strop.comparison.plan import NAME

        files = {file for file in files if (file.resolve().parent.parent / NAME).is_file()}
    return [place for place in places if place not in files]
