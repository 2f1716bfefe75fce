"""`strop labs`: lists the laboratories, and runs one of them.

They are files at the top of the repository (docs/LABS.md); a wheel has them inside the package.
"""

import ast
import os
import re
import sys
import textwrap
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from strop.cli import shown
from strop.support.about import SOURCE
from strop.support.errors import UserError, nearest

PLACES = (SOURCE / "labs", SOURCE.parents[1] / "labs")  # in a wheel, and in a clone
WIDTH = 80
SETTINGS = {"allow_extra_args": True, "ignore_unknown_options": True,
            "allow_interspersed_args": False}  # fmt: skip


class Lab(NamedTuple):
    """A laboratory as its docstring describes it."""

    name: str
    what: str
    papers: list[str]
    takes: str


def folder() -> Path:
    """The folder of the laboratories. Raises UserError."""
    for place in PLACES:
        if place.is_dir():
            return place
    raise UserError(
        f"this installation has no laboratories: there is no folder {PLACES[0]}. They are in every "
        "wheel and in the folder labs/ of the repository; install strop again from either"
    )


def lab(path: Path) -> Lab:
    """Reads a file's docstring: its first sentence, its papers and its line `Takes: ...`."""
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    summary = " ".join(docstring.split())
    takes = re.search(r"Takes: (.+?)\.(?: |$)", summary)
    papers = dict.fromkeys(re.findall(r"10\.\d{4}/[\w.]*\w|\d{4}\.\d{4,5}", summary))
    return Lab(
        path.stem, summary.partition(". ")[0] + ".", list(papers), takes[1] if takes else "?"
    )


def offered(incomplete: str) -> list[tuple[str, str]]:
    """Completions: the laboratories with this prefix, and their descriptions."""
    return [(each.name, each.what) for each in map(lab, files().values())
            if each.name.startswith(incomplete)]  # fmt: skip


def files() -> dict[str, Path]:
    """The laboratories by their name."""
    return {path.stem: path for path in sorted(folder().glob("*.py"))}


def labs(
    context: typer.Context,
    name: Annotated[
        str,
        typer.Argument(
            metavar="[NAME [OPTION]...]",
            help="A laboratory with its own options; without a name all are listed.",
            autocompletion=offered,
        ),
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
) -> None:
    """List the laboratories, small complete programs beside the library, or run one of them."""
    found = files()
    if name:
        if name not in found:
            raise UserError(f"no laboratory {name!r}{nearest(name, found)}; `strop labs` lists all")
        sys.stdout.flush()
        # It replaces this process, so that what it defines is found as in any other program.
        os.execv(sys.executable, [sys.executable, str(found[name]), *context.args])
    read = [lab(path) for path in found.values()]
    if as_json:
        shown.as_json([each._asdict() for each in read])
        return
    for each in read:
        where = "doi" if each.papers[0].startswith("10.") else "arXiv"
        print(f"{each.name}: {where} {', '.join(each.papers)}; {each.takes}")
        print(textwrap.fill(each.what, WIDTH, initial_indent="  ", subsequent_indent="  "))
    print(f"\n`strop labs NAME` runs one. They are in\n{folder()}, each in one file, to copy and "
          "change.")  # fmt: skip
