"""Write the parts of the documentation that follow from the code.

    python tools/write_catalogue.py [--check]

docs/METHODS.md and docs/PARTS.md are written whole, from the recipes and parts. In
docs/NOTATION.md and docs/BATCH.md the tables between `<!-- table: NAME -->` and `<!-- end -->` are
replaced. With --check nothing is written, and the exit code is 1 where a file is out of date.
"""

import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from strop import catalogue, notation
from strop import part as parts
from strop.algorithm import Algorithm
from strop.batch import COLUMNS, DERIVED, LEVELS, SIZES, level_of
from strop.catalogue import Entry
from strop.cost import costs
from strop.schedule import SCHEDULES
from strop.seams import KINDS
from strop.training import config

DOCS = Path(__file__).parents[1] / "docs"
HEADER = """# Methods and the parts they are made of

Written by `python tools/write_catalogue.py` from the recipes' docstrings and compositions; change
those, not this file. `strop recipes NAME` prints the same and more. The parts are listed in
[PARTS.md](PARTS.md).

Status: `exact` follows the paper's equations, but for the differences named; `partial` had to infer
something and says what under "differs from the paper"; `abstract` rests on a paper's abstract or
description. Seam: the stages that differ from the parent's. Cost: work of a step beside sampling
its rollouts and one update on them, with the default parameters.
"""
PARTS_HEADER = """# Parts, why each exists and which recipes use it

Written by `python tools/write_catalogue.py` from the parts' docstrings; change those, not this
file. `strop parts NAME` prints a part's equation, columns, fields and edge cases. Users are the
recipes with their default parameters; a part without users is reached by a parameter or the
notation.

Beside each part stands its nearest other one, and what tells them apart or makes them equal: that
difference is why it exists.
"""
DERIVED_MEANING = {
    "rollout_T": "row of the token's rollout",
    "group_T": "row of the token's prompt group",
    "group_K": "row of the turn's prompt group",
    "length_B": "tokens that the policy generated",
    "size_B": "all tokens, prompt included",
    "index_B": "the rollout's own row",
    "num_turns": "turns of the batch, an int",
    "num_rollouts": "rollouts of the batch, an int",
    "num_groups": "prompt groups of the batch, an int",
}


def main(arguments: Sequence[str]) -> int:
    """Write what is out of date, or say so; returns the exit code."""
    stale = {path: text for path, text in wanted().items() if _now(path) != text}
    for path, text in stale.items():
        print(f"{'out of date' if arguments else 'wrote'}: docs/{path.name}")
        if not arguments:
            path.write_text(text, encoding="utf-8")
    return int(bool(stale and arguments))


def wanted() -> dict[Path, str]:
    """Every file that this script writes, with the text it should have."""
    found = {DOCS / "METHODS.md": methods(), DOCS / "PARTS.md": parts_page()}
    for name in ("NOTATION.md", "BATCH.md"):
        path = DOCS / name
        text = _now(path)
        for table, make in TABLES.items():
            block = f"<!-- table: {table} -->\n{make()}\n<!-- end -->"
            pattern = rf"<!-- table: {table} -->.*?<!-- end -->"
            text = re.sub(pattern, lambda _, block=block: block, text, flags=re.S)
        found[path] = text
    return found


def methods() -> str:
    """The text of METHODS.md."""
    entries = _family_order(catalogue.recipes())
    composed = {entry.name: entry.load()() for entry in entries}
    rows = [
        (
            f"[`{e.name}`](#{e.name})", _arxiv(e), _parent(e), _status(e),
            _seam(e, composed), _cost(composed[e.name]), e.summary.rstrip("."),
        )
        for e in entries
    ]  # fmt: skip
    heads = ("recipe", "arXiv", "parent", "status", "seam", "cost", "title")
    pieces = [HEADER, _table(heads, rows), *(_section(entry, composed) for entry in entries)]
    return "\n".join(pieces) + "\n"


def parts_page() -> str:
    """The text of PARTS.md."""
    composed = {entry.name: entry.load()() for entry in catalogue.recipes()}
    users: dict[str, list[str]] = {}
    for recipe, algorithm in composed.items():
        for name in dict.fromkeys(parts.name_of(use.part) for _, use in algorithm.uses()):
            users.setdefault(name, []).append(recipe)
    pieces = [PARTS_HEADER]
    for folder in KINDS:
        entries = catalogue.parts(folder)
        rows = [
            (f"`{e.name}`", e.summary, e.line("Nearest part"), _users(users, e.name, len(composed)))
            for e in entries
        ]
        heads = ("part", "effect", "nearest part", "recipes")
        pieces.append(f"## {folder} ({len(entries)})\n\n{_table(heads, rows)}")
    return "\n".join(pieces)


def _users(users: dict[str, list[str]], part: str, num_recipes: int) -> str:
    names = users.get(part, [])
    if len(names) > num_recipes // 2:
        return "all" if len(names) == num_recipes else f"{len(names)} of {num_recipes}"
    return ", ".join(sorted(names)) or "none"


def _differing(
    entry: Entry, composed: dict[str, Algorithm]
) -> dict[str, tuple[Sequence[str], bool]]:
    """The parts of each stage that has some, and whether the parent has others there."""
    parent = composed.get(_parent(entry))
    theirs = notation.describe(parent) if parent else {}
    ours = notation.describe(composed[entry.name])
    return {stage: (texts, theirs.get(stage) != texts) for stage, texts in ours.items()}


def _seam(entry: Entry, composed: dict[str, Algorithm]) -> str:
    if _parent(entry) not in composed:
        return "all"
    found = _differing(entry, composed)
    return ", ".join(stage for stage, (_, differs) in found.items() if differs) or "none"


def _cost(algorithm: Algorithm) -> str:
    return "; ".join(costs(algorithm)) or "none"


def _section(entry: Entry, composed: dict[str, Algorithm]) -> str:
    """One recipe: its equation, its parts and the columns that they read."""
    algorithm = composed[entry.name]
    rows = [
        (stage, "<br>".join(f"`{text}`" for text in texts), "" if differs else "as the parent")
        for stage, (texts, differs) in _differing(entry, composed).items()
        if texts
    ]
    reads = ", ".join(f"`{name}`" for name in sorted(algorithm.reads() - SIZES.keys()))
    return "\n".join(
        [
            f"## {entry.name}\n",
            f"{entry.summary} arXiv {_arxiv(entry)}. Code: {entry.line('Code')}. "
            f"Parent: {_parent(entry)}. Status: {_status(entry)}.\n",
            f"- Equation: `{entry.line('Equation')}`",
            f"- Differs from the parent: {entry.line('Differs from the parent')}.",
            f"- Differs from the paper: {entry.line('Differs from the paper')}.",
            f"- Try: {entry.line('Try')}.\n",
            _table(("stage", "parts", ""), rows),
            f"Reads: {reads}. Cost: {_cost(algorithm)}.\n",
        ]
    )


def _family_order(entries: Iterable[Entry]) -> list[Entry]:
    """Parents before their children, children by name."""
    waiting = sorted(entries, key=lambda entry: entry.name)
    names = {entry.name for entry in waiting}
    done: list[Entry] = []
    while waiting:
        known = {entry.name for entry in done}
        free = [e for e in waiting if _parent(e) in known or _parent(e) not in names]
        assert free, "recipes name each other as parents"
        done += free
        waiting = [entry for entry in waiting if entry not in free]
    return done


def _first(pattern: str, entry: Entry) -> str:
    found = re.search(pattern, entry.doc)
    return found.group(1) if found else ""


def _arxiv(entry: Entry) -> str:
    return _first(r"arXiv (\d{4}\.\d{4,5})", entry)


def _parent(entry: Entry) -> str:
    return _first(r"Parent: (\w+)", entry)


def _status(entry: Entry) -> str:
    return _first(r"Status: (\w+)", entry)


def settings_table() -> str:
    """Every setting outside the method, its default and meaning."""
    plain = config.RunConfig().model_dump(mode="json")
    rows = []
    for path, meaning in config.settings().items():
        value: Any = plain
        for piece in path.split("."):
            value = value[piece]
        rows.append((f"`{path}`", f"`{_toml(value)}`", meaning))
    return _table(("setting", "default", "meaning"), rows).rstrip()


def shipped_table() -> str:
    """The settings whose default is another for the shipped model."""
    plain = config.RunConfig().model_dump(mode="json")
    rows = [
        (f"`{section}.{key}`", f"`{_toml(value)}`")
        for section, values in config.defaults("tiny").items()
        for key, value in values.items()
        if plain[section][key] != value
    ]
    return _table(("setting", "default with `tiny`"), rows).rstrip()


def schedules_table() -> str:
    """Every schedule with its fields and formula."""
    rows = []
    for name, kind in SCHEDULES.items():
        fields = ", ".join(kind.__dataclass_fields__)
        rows.append((f"`{name}({fields})`", (kind.__doc__ or "").strip().rstrip(".")))
    return _table(("schedule", "value at `step` of `num_steps`"), rows).rstrip()


def columns_table() -> str:
    """Every standard column, by table."""
    levels = {"": "run", **LEVELS}
    ordered = sorted(
        COLUMNS, key=lambda column: ["T", "K", "B", "P", ""].index(level_of(column[0]))
    )
    rows = [
        (f"`{c.name}`", levels[level_of(c.name)], c.dtype, c.unit, c.writer, c.meaning)
        for c in ordered
    ]
    return _table(("column", "table", "dtype", "unit", "written by", "meaning"), rows).rstrip()


def derived_table() -> str:
    """The columns that follow from others."""
    rows = [(f"`{name}`", DERIVED_MEANING[name]) for name in DERIVED]
    return _table(("column", "meaning"), rows).rstrip()


TABLES = {
    "settings": settings_table,
    "shipped": shipped_table,
    "schedules": schedules_table,
    "columns": columns_table,
    "derived": derived_table,
}


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "{}"
    return f'"{value}"' if isinstance(value, str) else str(value)


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    escaped = [[cell.replace("|", "\\|").replace("\n", " ") for cell in line] for line in lines]
    return "\n".join("| " + " | ".join(line) + " |" for line in escaped) + "\n"


def _now(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
