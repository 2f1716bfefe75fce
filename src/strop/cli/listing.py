"""`strop recipes` and `strop parts`: what there is, read from the source files.

The lists import neither torch nor any recipe; the page of one recipe composes it.
"""

import ast
import inspect
import json
import re
from collections.abc import Iterable
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.padding import Padding
from rich.table import Table

from strop import catalogue, families
from strop._entries import Entry, Field
from strop._source import ROOT
from strop.errors import UserError, nearest
from strop.seams import KINDS

Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
RECIPE_LINES = {
    "equation": "Equation",
    "differs_from_parent": "Differs from the parent",
    "differs_from_paper": "Differs from the paper",
    "try": "Try",
}
STATUSES = ("exact", "partial", "abstract")
PART_LINES = {
    "reads": "Reads",
    "writes": "Writes",
    "source": "Source",
    "differs_from_source": "Differs from the source",
    "nearest_part": "Nearest part",
    "edges": "Edges",
}


def recipes(
    words: Annotated[
        list[str] | None,
        typer.Argument(help="A recipe, or words to search for; without them all are listed."),
    ] = None,
    family: Annotated[
        str | None, typer.Option(help="Only those of one family (baselines, entropy, ...).")
    ] = None,
    status: Annotated[
        str | None, typer.Option(help=f"Only those of one status: {', '.join(STATUSES)}.")
    ] = None,
    as_json: Json = False,
    as_toml: Annotated[
        bool, typer.Option("--toml", help="Print a recipe's stages as a file for `--config`.")
    ] = False,
) -> None:
    """List the published methods by family, search them, or show one with equation and parts.

    Words are looked for in names, titles, families, when to choose it, and the parts it brings.
    """
    text = " ".join(words or ())
    named = ":" in text or text in {entry.name for entry in catalogue.recipes()}
    if named and not (family or status):
        if as_toml:
            print(_file_of(text), end="")
            return
        page = _recipe_page(catalogue.find("recipe", text), text)
        _print_json(page) if as_json else _print_recipe(page)
    elif as_toml:
        raise UserError("--toml prints one recipe's stages: give its name")
    else:
        found = _matching(text, family, status)
        _print_json([_citation(e) for e in found]) if as_json else _print_recipes(found)


def _file_of(name: str) -> str:
    """The configuration of a method that stands in the file alone, stage by stage."""
    import tomli_w

    from strop import notation

    stages = notation.written(notation.build_recipe(name, {}))
    return (
        f"# {name}, stage by stage: change any, then strop train --config FILE\n"
        + tomli_w.dumps({"recipe": "", "stages": stages})
    )


def _matching(text: str, family: str | None, status: str | None) -> list[Entry]:
    """The recipes in which words begin so, of that family and status. Raises UserError."""
    if family:
        families.find(family)
    if status and status not in STATUSES:
        near = nearest(status, STATUSES)
        raise UserError(f"no status {status!r}{near}; they are {', '.join(STATUSES)}")
    starts = [re.compile(rf"(?<![a-z0-9]){re.escape(word)}") for word in text.lower().split()]
    told = [e for e in catalogue.recipes() if all(start.search(_told(e)) for start in starts)]
    if not told:
        catalogue.find("recipe", text)  # raises, with the nearest names
    found = [
        e for e in told if family in (None, e.line("Family")) and status in (None, e.line("Status"))
    ]
    if not found:
        asked = {"words": text, "family": family, "status": status}
        both = ", ".join(f"{key} {value!r}" for key, value in asked.items() if value)
        raise UserError(f"no recipe has all of: {both}; leave one out")
    return found


def _told(entry: Entry) -> str:
    """What a recipe is searched by, in small letters."""
    labels = ("Family", "In short", "Choose it when")
    own = (entry.name, entry.summary, *map(entry.line, labels), *entry.brings)
    return "\n".join(own).lower()


def parts(
    folder_or_name: Annotated[
        str | None, typer.Argument(help="A folder of parts (advantage, loss/bound) or a part.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List the parts, those of a folder, or show one: its equation, columns, source and fields."""
    if folder_or_name is None or _is_folder(folder_or_name):
        folder = (folder_or_name or "").strip("/")
        found = [_part_line(entry) for entry in catalogue.parts(folder)]
        _print_json(found) if as_json else _print_parts(found)
    else:
        page = _part_page(_find_part(folder_or_name))
        _print_json(page) if as_json else _print_part(page)


def _is_folder(text: str) -> bool:
    text = text.strip("/")
    return any(folder == text or folder.startswith(text + "/") for folder in KINDS)


def _find_part(name: str) -> Entry:
    if ":" in name:
        return catalogue.find("part", name)
    entries = {entry.name: entry for entry in catalogue.parts()}
    if name in entries:
        return entries[name]
    if name in {entry.name for entry in catalogue.recipes()}:
        raise UserError(f"{name} is a recipe; see `strop recipes {name}`")
    folders = {folder.split("/")[0] for folder in KINDS} | set(KINDS)
    raise UserError(
        f"no part or folder {name!r}{nearest(name, [*entries, *sorted(folders)])}; "
        "`strop parts` lists all of them"
    )


# -- what is said of an entry, as plain data ----------------------------------------------------


def _first(pattern: str, text: str) -> str:
    found = re.search(pattern, text)
    return found.group(1) if found else ""


def _citation(entry: Entry) -> dict[str, str]:
    return {
        "name": entry.name,
        "title": entry.summary.rstrip("."),
        "arxiv": entry.arxiv,
        "status": entry.line("Status"),
        "parent": entry.line("Parent"),
        "family": entry.line("Family"),
        "in_short": entry.line("In short"),
        "choose_it_when": entry.line("Choose it when"),
    }


# Parameters that are no field of a part, in the words of VOCABULARY.
COMMON = {
    "aggregation": "How token losses become one number.",
    "beta": "Weight of the divergence from the reference policy; 0: no reference.",
    "normalize_std": "Divide by the group's standard deviation.",
    "refill": "Sample more prompts until enough groups have answers of different outcome.",
    "length": "Constant that sums are divided by, tokens; 0: the most tokens of an answer.",
}


def _fields(fields: Iterable[Field]) -> list[dict[str, str]]:
    return [
        {"name": f.name, "type": f.annotation, "default": f.default, "meaning": f.comment}
        for f in fields
    ]


def _recipe_page(entry: Entry, name: str) -> dict[str, Any]:
    from strop import notation  # composing imports the parts, and so torch
    from strop.cost import costs

    lines = {key: entry.line(label) for key, label in RECIPE_LINES.items()}
    function = entry.load()
    algorithm = notation.build_recipe(name, {})
    meanings = _meanings(algorithm)
    stages = {stage: texts for stage, texts in notation.describe(algorithm).items() if texts}
    defaults = {p.name: p.default for p in inspect.signature(function).parameters.values()}
    return {
        **_citation(entry),
        "where": _first(r"arXiv \d{4}\.\d{4,5}, ([^.]+(?:\.\s\d[^.]*)*)\.", entry.doc),
        "code": entry.line("Code"),
        **lines,
        "stages": stages,
        "costs": list(costs(algorithm)),
        "parameters": [
            {
                **f,
                "default": notation.value_text(defaults[f["name"]]),
                "meaning": f["meaning"] or meanings.get(f["name"], ""),
            }
            for f in _fields(entry.fields)
        ],
    }


def _meanings(algorithm: Any) -> dict[str, str]:
    """What recipe parameters mean: words of the trade, else the comment of the field they set."""
    from strop import part as parts

    found = dict(COMMON)
    for _, use in algorithm.uses():
        name = parts.name_of(use.part)
        known = {entry.name: entry for entry in catalogue.parts(parts.kind_of(use.part))}
        for field in known[name].fields if name in known else ():
            found.setdefault(field.name, f"{field.comment.split(' Default:')[0]} ({name})")
    return found


def _part_line(entry: Entry) -> dict[str, Any]:
    return {
        "name": entry.name,
        "folder": entry.folder,
        "effect": entry.summary,
        "fields": {field.name: field.default for field in entry.fields},
    }


def _part_page(entry: Entry) -> dict[str, Any]:
    equation = [line.strip() for line in entry.doc.splitlines() if line.startswith("    ")]
    return {
        **_part_line(entry),
        "equation": "\n".join(equation),
        **{key: entry.line(label) for key, label in PART_LINES.items()},
        "fields": _fields(entry.fields),
    }


# -- printing -----------------------------------------------------------------------------------


def _console() -> Console:
    return Console(markup=False, highlight=False)


def _print_json(data: Any) -> None:
    print(json.dumps(data, indent=2))


def _table(*headings: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for place, heading in enumerate(headings):
        table.add_column(heading, no_wrap=place == 0)
    return table


def _print_recipes(entries: list[Entry]) -> None:
    """One line a recipe, none longer than 80 columns, whatever the terminal's width."""
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
        "`strop recipes WORD` searches, --family and --status choose."
    )


def _print_recipe(page: dict[str, Any]) -> None:
    console = _console()
    where = f", {page['where']}" if page["where"] else ""
    console.print(f"{page['name']}: {page['title']}", style="bold")
    if page["arxiv"]:
        console.print(f"arXiv {page['arxiv']}{where} (https://arxiv.org/abs/{page['arxiv']})")
    for keys in (("code", "parent", "status"), ("family", "in_short")):
        said = [f"{key.replace('_', ' ').capitalize()}: {page[key]}." for key in keys if page[key]]
        if said:
            console.print(" ".join(said))
    _section(console, "Choose it when", page["choose_it_when"])
    _section(console, "Equation", page["equation"])
    console.print("\nParts, stage by stage", style="bold")
    table = _table("stage", "parts")
    for stage, texts in page["stages"].items():
        table.add_row(stage, "\n".join(texts))
    console.print(Padding(table, (0, 0, 0, 2), expand=False))
    extra = "; ".join(page["costs"]) or "none"
    _section(console, "Work beside the rollouts and one update", extra)
    _section(console, "Differs from the parent", page["differs_from_parent"])
    _section(console, "Differs from the paper", page["differs_from_paper"])
    _section(console, "Try", page["try"])
    _print_fields(console, "Parameters", page["parameters"])


def _print_parts(found: list[dict[str, Any]]) -> None:
    console = _console()
    for folder in dict.fromkeys(item["folder"] for item in found):
        console.print(f"{folder}: {_sentence(folder)}", style="bold")
        table = _table("part", "effect", "fields")
        for item in found:
            if item["folder"] == folder:
                fields = ", ".join(f"{k}={v}" for k, v in item["fields"].items())
                table.add_row(item["name"], item["effect"], fields)
        console.print(Padding(table, (0, 0, 1, 2), expand=False))
    console.print("`strop parts NAME` shows one.")


def _sentence(folder: str) -> str:
    """What the folder writes, in its own words."""
    text = (ROOT / folder / "__init__.py").read_text(encoding="utf-8")
    return " ".join((ast.get_docstring(ast.parse(text)) or "").split())


def _print_part(page: dict[str, Any]) -> None:
    console = _console()
    folder = page["folder"] or "states no kind"
    console.print(f"{folder}/{page['name']}", style="bold")
    console.print(page["effect"])
    if page["equation"]:
        console.print(Padding(page["equation"], (1, 0, 1, 4), expand=False))
    for key, label in PART_LINES.items():
        if page[key]:
            console.print(f"{label}: {page[key]}.")
    _print_fields(console, "Fields", page["fields"])


def _section(console: Console, title: str, text: str) -> None:
    if not text:  # a recipe of your own need not say it
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
