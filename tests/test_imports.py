"""No file imports another that imports it back, on any path; lint-imports checks the layers."""

import ast
import functools
from pathlib import Path

from strop.support.about import SOURCE

MODULES = {
    ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(SOURCE.rglob("*.py"))
    if SOURCE / "cli/templates" not in path.parents  # a user's own files
}


def imported(text: str, known: frozenset[str]) -> set[str]:
    """The modules that a file names, inside functions and for type checkers too."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            inside = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= inside & known or {node.module}
    return found & known


def circles(files: dict[str, str]) -> list[list[str]]:
    """Groups of modules that import each other, by Tarjan's algorithm."""
    known = frozenset(files)
    arrows = {name: imported(text, known) - {name} for name, text in files.items()}
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    open_: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        number[name] = lowest[name] = len(number)
        open_.append(name)
        for other in sorted(arrows[name]):
            if other not in number:
                visit(other)
            if other in open_:
                lowest[name] = min(lowest[name], lowest[other])
        if lowest[name] == number[name]:
            place = open_.index(name)
            if len(open_) > place + 1:
                found.append(sorted(open_[place:]))
            del open_[place:]

    for name in sorted(files):
        if name not in number:
            visit(name)
    return found


@functools.cache
def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def test_no_file_imports_one_that_imports_it_again() -> None:
    assert circles({name: read(path) for name, path in MODULES.items()}) == []


def test_circles_are_found_wherever_they_hide() -> None:
    hidden = {
        "p.a": "def f():\n    from p import b\n",
        "p.b": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import p.c\n",
        "p.c": "from p.a import f\n",
        "p.d": "from p.a import f\nfrom p import c\n",
    }
    assert circles(hidden) == [["p.a", "p.b", "p.c"]]
    assert circles(hidden | {"p.b": ""}) == []
