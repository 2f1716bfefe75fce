"""What all pages of the catalogue share: composed recipes, users of parts, typeset equations."""

import ast
import functools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

import write_catalogue

from docsite import equations
from strop.catalogue import catalogue, families
from strop.catalogue.entries import Entry
from strop.catalogue.families import Family
from strop.method.algorithm import Method
from strop.support.about import SOURCE

DOCS = Path(__file__).parents[2] / "docs"


@dataclass
class Known:
    """The catalogue, in the form that pages need."""

    recipes: dict[str, Entry]
    parts: dict[str, Entry]
    composed: dict[str, Method]
    families: dict[Family, list[Entry]]
    users: dict[str, list[str]]
    # The stages at which a recipe differs from its parent (if it has one), and all its stages.
    changed: dict[str, list[str]]
    stages: dict[str, list[str]]
    # Recipes and parts whose equations are typeset, and the reasons why others are not.
    typeset: set[tuple[str, str]] = field(default_factory=set)
    refused: dict[tuple[str, str], str] = field(default_factory=dict)

    @classmethod
    def make(cls) -> "Known":
        recipes = {entry.name: entry for entry in catalogue.recipes()}
        composed = {name: entry.load()() for name, entry in recipes.items()}
        shown = {n: write_catalogue.differing(e, composed) for n, e in recipes.items()}
        return cls(
            recipes,
            {entry.name: entry for entry in catalogue.parts()},
            composed,
            families.grouped(recipes.values()),
            write_catalogue.users_of(composed),
            {
                name: _stages(other for other in of.items() if other[1][1])
                for name, of in shown.items()
                if recipes[name].line("Parent") in recipes
            },
            {
                name: _stages(there for there in of.items() if there[1][0])
                for name, of in shown.items()
            },
        )

    def family(self, recipe: str) -> Family:
        return next(f for f, members in self.families.items() if self.recipes[recipe] in members)

    def children(self, recipe: str) -> list[str]:
        return [name for name, e in self.recipes.items() if e.line("Parent") == recipe]

    def of_recipe(self, name: str) -> str:
        entry = self.recipes[name]
        return self.equation(entry, [(0, s) for s in equations.statements(entry.line("Equation"))])

    def of_part(self, name: str) -> str:
        entry = self.parts[name]
        block = "\n".join(line for line in entry.doc.splitlines() if line.startswith("    "))
        return self.equation(entry, equations.lines_of(block))

    def equation(self, entry: Entry, lines: list[tuple[int, str]]) -> str:
        """The equation of a recipe or part as HTML; as plain text if it cannot be parsed.

        A line holds its text, for readers without scripts, and the TeX that KaTeX typesets.
        """
        fields = frozenset(f.name for f in entry.fields)
        try:
            rows = [(indent, text, equations.to_tex(text, fields)) for indent, text in lines]
        except equations.Unreadable as why:
            self.refused[entry.kind, entry.name] = str(why)
            plain = "\n".join(" " * indent + text for indent, text in lines)
            return f'<pre class="equation plain">{escape(plain)}</pre>'
        self.typeset.add((entry.kind, entry.name))
        least = min((indent for indent, _, _ in rows), default=0)
        shown = (
            f'<p style="--in:{(indent - least) // 4}" data-tex="{escape(tex)}">{escape(text)}</p>'
            for indent, text, tex in rows
        )
        return f'<div class="equation" markdown="0">{"".join(shown)}</div>'

    def said(self) -> str:
        """The build's summary of the equations."""
        counts = {"recipe": len(self.recipes), "part": len(self.parts)}
        done = {kind: sum(k == kind for k, _ in self.typeset) for kind in counts}
        told = " and ".join(f"{done[kind]} of {n} {kind}s" for kind, n in counts.items())
        why = (f"{kind} {name}: {reason}" for (kind, name), reason in self.refused.items())
        return "\n".join([f"equations typeset: {told}", *why])


def _stages(shown: Iterable[tuple[str, Any]]) -> list[str]:
    """The stages of these rows, each once, even if phases have rows of their own."""
    return list(dict.fromkeys(write_catalogue.stage_of(stage) for stage, _ in shown))


def coded(text: str) -> str:
    """Text whose names are set as code; those of recipes and parts become links."""
    name = r"(?<![`\w./])[A-Za-z]\w*(?:\.\w+)*(?:_\w+)+(?![`\w/])"
    return re.sub(name, lambda found: f"`{found[0]}`", text)


def boost(name: str, names: Iterable[str], usual: float) -> float:
    """How much the search favours the page of this name over a page of the guide, which has 1.

    If the words of a name occur in longer names too, a search for them means this name.
    """
    words = set(name.split("_"))
    return usual * 2 if any(words < set(other.split("_")) for other in names) else usual


def facts(told: dict[str, str]) -> str:
    """The short facts under a page's title."""
    rows = (f'<div markdown="span"><b>{key}</b> {value}</div>' for key, value in told.items())
    return f'<div class="facts" markdown="1">{"".join(rows)}</div>\n'


@functools.cache
def tables(page: str) -> list[tuple[list[str], dict[str, list[str]]]]:
    """The tables of a page in docs/ that are by recipe: their heads, and rows by first cell."""
    found: list[tuple[list[str], dict[str, list[str]]]] = []
    for line in (DOCS / page).read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if line.startswith("| recipe |"):
            found.append((cells[1:], {}))
        elif found and line.startswith("| `"):
            found[-1][1][cells[0]] = cells[1:]
    return found


def numbers_of(heads: Sequence[str], cells: Sequence[str]) -> dict[str, float]:
    """The numbers of a row by column, without the intervals; cells without one are left out."""
    found = (re.match(r"-?\d[\d.]*", cell) for cell in cells)
    return {head: float(each[0]) for head, each in zip(heads, found, strict=True) if each}


@functools.cache
def ranges(module: str, attribute: str) -> dict[str, str]:
    """The allowed values of a part's fields, read from its own `require(self, "eps", low=0)`."""
    path = SOURCE / f"{module.removeprefix('strop.').replace('.', '/')}.py"
    found = {}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.ClassDef) or node.name != attribute:
            continue
        for call in (n for n in ast.walk(node) if isinstance(n, ast.Call)):
            name = call.func.id if isinstance(call.func, ast.Name) else ""
            if name in ("require", "require_one_of") and len(call.args) > 1:
                keys = call.args[1:] if name == "require" else call.args[1:2]
                text = _range(name, call)
                found |= {str(key.value): text for key in keys if isinstance(key, ast.Constant)}
    return {key: text for key, text in found.items() if text}


def _range(name: str, call: ast.Call) -> str:
    if name == "require_one_of":
        try:
            return ", ".join(repr(value) for value in ast.literal_eval(call.args[2]))
        except (ValueError, IndexError):
            return ""  # a name defined elsewhere
    bounds = {word.arg: ast.unparse(word.value) for word in call.keywords}
    low, high = bounds.get("low"), bounds.get("high")
    if low and high:
        return f"{low} to {high}"
    return f"at least {low}" if low else f"at most {high}" if high else ""
