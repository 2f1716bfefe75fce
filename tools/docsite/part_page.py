"""A part's page: its effect, equation, columns, fields, users and source."""

import re
from pathlib import Path
from typing import Any

import write_catalogue

from docsite.known import Known, boost, coded, facts, ranges
from strop.catalogue import catalogue
from strop.catalogue.seams import SEAM_OF, SPECIAL
from strop.cli import listing

ROOT = Path(__file__).parents[2]
table = write_catalogue.table


def page(name: str, known: Known) -> str:
    """The page in Markdown."""
    entry = known.parts[name]
    told: dict[str, Any] = listing.part_page(entry)
    effect = told["effect"].replace('"', "'")
    return "\n".join(
        [
            f'---\ntitle: {name}\ndescription: "{effect}"\n'
            f"search:\n  boost: {boost(name, known.parts, 0.2)}\n---\n",
            f"# {name}\n\n{told['effect']}\n{{ .lead }}\n",
            facts(
                {
                    "kind": f"`{entry.folder}`",
                    "stands at": _places(entry.folder),
                    "used by": _count(name, known),
                }
            ),
            "## Equation\n",
            known.of_part(name),
            _words(entry.doc),
            "\n## Columns\n",
            _columns(entry.reads, "reads", told["reads"]),
            _columns(entry.writes, "writes", told["writes"]),
            _fields(name, told, known),
            _users(name, known),
            _source(name, told, known),
        ]
    )


def _places(folder: str) -> str:
    return ", ".join(f"`{place}`" for place in SEAM_OF[folder].places)


def _count(name: str, known: Known) -> str:
    users = len(known.users.get(name, ()))
    return f"{users} recipe{'s' * (users != 1)}" if users else "no recipe by default"


def _words(doc: str) -> str:
    """What the docstring says after the equation and before the columns."""
    found = re.search(r"\n    [^\n]*\n\n(?=\S)(.*?)\n(?:\n)?Reads:", doc, re.S)
    text = found[1] if found else ""
    return "\n" + coded(" ".join(text.split())) + "\n" if text and "    " not in text else ""


def _columns(names: tuple[str, ...], verb: str, line: str) -> str:
    """A table of columns with their meanings, or only the sentence if there are none."""
    standard = catalogue.columns()
    rows = []
    for name in (n for n in names if n not in SPECIAL):
        column = standard.get(name)
        if column is not None:
            rows.append((f"`{name}`", column.dtype, column.unit, column.meaning))
    head = f"**It {verb}:** {coded(line) or 'no column'}.\n"
    heads = ("column", "dtype", "unit", "meaning")
    return head.replace("..", ".") + (f"\n{table(heads, rows)}" if rows else "")


def _fields(name: str, told: dict[str, Any], known: Known) -> str:
    entry = known.parts[name]
    allowed = ranges(entry.module, entry.attribute)
    rows = [
        (f"`{f['name']}`", f"`{f['default']}`", allowed.get(f["name"], f["type"]), f["meaning"])
        for f in told["fields"]
    ]
    if not rows:
        return "## Fields\n\nThis part has no fields.\n"
    return "## Fields\n\n" + table(("field", "default", "values", "meaning"), rows)


def _users(name: str, known: Known) -> str:
    users = known.users.get(name, [])
    text = ", ".join(f"[`{user}`](../recipes/{user}.md)" for user in users)
    none = "No recipe uses it with default parameters; a parameter or the notation reaches it."
    many = f"{len(users)} of {len(known.recipes)}. "
    return f"## Used by {{ data-search-exclude }}\n\n{many + text if users else none}\n"


def _source(name: str, told: dict[str, Any], known: Known) -> str:
    entry = known.parts[name]
    path = f"src/{entry.module.replace('.', '/')}.py"
    source = re.sub(
        r"arXiv (\d{4}\.\d{4,5})", r"[arXiv \1](https://arxiv.org/abs/\1)", told["source"]
    )
    nearest = coded(told["nearest_part"])
    code = (ROOT / path).read_text(encoding="utf-8").rstrip()
    shown = "\n".join("    " + line if line else "" for line in code.splitlines())
    return (
        f"## Source\n\n{source}.\n\n"
        f"- **Differs from the source:** {coded(told['differs_from_source'])}.\n"
        f"- **Nearest part:** {nearest}.\n"
        f"- **Edges:** {coded(told['edges'])}.\n\n"
        f'??? note "{path}"\n\n    ```{{ .python data-search-exclude }}\n{shown}\n    ```\n'
    )
