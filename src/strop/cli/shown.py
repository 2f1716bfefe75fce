"""Prints `strop recipes` and `strop parts`, with nothing cut off on a narrow terminal."""

import ast
import json
import textwrap
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table

from strop.catalogue import families
from strop.catalogue.entries import Entry
from strop.support.about import PARTS
from strop.support.output import plain_console

DOC_LINES = {  # of a part's docstring
    "source": "Source",
    "differs_from_source": "Differs from the source",
    "nearest_part": "Nearest part",
    "edges": "Edges",
}


def as_json(data: Any) -> None:
    """Print data as JSON."""
    print(json.dumps(data, indent=2))


def _console() -> Console:
    return plain_console(markup=False)


def _table(*headings: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for place, heading in enumerate(headings):
        table.add_column(heading, no_wrap=place == 0, overflow="fold")
    return table


def recipes(entries: list[Entry]) -> None:
    """Print one line for each recipe, at most 80 columns whatever the terminal's width."""
    console = _console()
    width = max(len(entry.name) for entry in entries)
    for family, members in families.grouped(entries).items():
        console.print(f"{family.name}: {family.title}", style="bold")
        for entry in members:
            line = f"{entry.name:{width}}  {entry.arxiv}  {entry.line('In short')}"
            console.print(line, soft_wrap=True)
        console.print()
    count = "1 recipe" if len(entries) == 1 else f"{len(entries)} recipes"
    console.print(
        f"{count}. `strop recipes NAME` shows one, `strop train NAME` runs it,\n"
        "`strop recipes WORD` searches; --family, --status, --needs and --without choose."
    )


def recipe(page: dict[str, Any]) -> None:
    """Print the page of a recipe."""
    console = _console()
    where = f", {page['where']}" if page["where"] else ""
    console.print(f"{page['name']}: {page['title']}", style="bold")
    if page["arxiv"]:
        console.print(f"arXiv {page['arxiv']}{where} (https://arxiv.org/abs/{page['arxiv']})")
    for keys in (("code", "parent", "status"), ("family", "in_short", "model")):
        facts = [f"{key.replace('_', ' ').capitalize()}: {page[key]}." for key in keys if page[key]]
        if facts:
            console.print(" ".join(facts))
    _section(console, "Choose it when", page["choose_it_when"])
    _section(console, "Equation", page["equation"])
    console.print("\nParts, stage by stage", style="bold")
    table = _table("stage", "parts")
    for stage, texts in page["stages"].items():
        table.add_row(stage, "\n".join(texts))
    console.print(Padding(table, (0, 0, 0, 2), expand=False))
    extra = "; ".join(page["costs"]) or "none"
    _section(console, "Work beside the rollouts and one update", extra)
    _section(console, "Metrics of its own", ", ".join(page["metrics"]))
    _section(console, "Differs from the parent", page["differs_from_parent"])
    _section(console, f"Differs from {page['parent']} once", page["differs_once"])
    _section(console, "All of its parts are at work once", page["in_full_once"])
    _section(console, "Differs from the paper", page["differs_from_paper"])
    _section(console, "Claims of it, looked at here", "\n".join(page["claims"]).removesuffix("."))
    _section(console, "Try", page["try"])
    _print_fields(console, "Parameters", page["parameters"])


def parts(found: list[dict[str, Any]]) -> None:
    """Print every part as it is written in notation, with its fields, and its effect below."""
    console = _console()
    for folder in dict.fromkeys(item["folder"] for item in found):
        console.print(f"{folder}: {_sentence(folder)}", style="bold")
        for item in found:
            if item["folder"] == folder:
                fields = ", ".join(f"{k}={v}" for k, v in item["fields"].items())
                written = item["name"] + (f"({fields})" if fields else "")
                _wrapped(console, written, 2, 8)
                _wrapped(console, item["effect"], 4, 4)
        console.print()
    console.print("`strop parts NAME` shows one.")


def _wrapped(console: Console, text: str, first: int, others: int) -> None:
    """Print text wrapped at words, with `first` and `others` spaces of indentation."""
    lines = textwrap.wrap(
        text, console.width, initial_indent=" " * first, subsequent_indent=" " * others,
        break_on_hyphens=False,
    )  # fmt: skip
    for line in lines:
        console.print(line, soft_wrap=True)


def _sentence(folder: str) -> str:
    """The sentence of a folder's docstring."""
    text = (PARTS / folder / "__init__.py").read_text(encoding="utf-8")
    return " ".join((ast.get_docstring(ast.parse(text)) or "").split())


def part(page: dict[str, Any]) -> None:
    """Print the page of a part."""
    console = _console()
    folder = page["folder"] or "states no kind"
    console.print(f"{folder}/{page['name']}", style="bold")
    console.print(page["effect"])
    if page["equation"]:
        console.print(Padding(page["equation"], (1, 0, 1, 4), expand=False))
    for key, label in {"reads": "Reads", "writes": "Writes", **DOC_LINES}.items():
        if page[key]:
            console.print(f"{label}: {page[key]}.")
    if page["metrics"]:
        console.print(f"Metrics: {', '.join(page['metrics'])}.")
    _print_fields(console, "Fields", page["fields"])


def _section(console: Console, title: str, text: str) -> None:
    if not text:  # a user's recipe may leave it out
        return
    console.print(f"\n{title}", style="bold")
    console.print(Padding(f"{text}.", (0, 0, 0, 2), expand=False))


def _print_fields(console: Console, title: str, fields: list[dict[str, str]]) -> None:
    if fields:
        console.print(f"\n{title}", style="bold")
        named = any(field["meaning"] for field in fields)
        table = _table("name", "type", "default", *(["meaning"] if named else []))
        for field in fields:
            row = [field["name"], field["type"], field["default"]]
            table.add_row(*row, *([field["meaning"]] if named else []))
        console.print(Padding(table, (0, 0, 0, 2), expand=False))
