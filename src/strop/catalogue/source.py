"""Follows names in strop's source files through imports without importing anything."""

import ast
import functools
from pathlib import Path

from strop.support.about import SOURCE


class Source:
    """One file: its text, and the definitions of its top-level names."""

    def __init__(self, path: Path) -> None:
        text = path.read_text(encoding="utf-8")
        self.lines = text.splitlines()
        # A class or function by its name, the value of a constant by the constant's.
        self.defined: dict[str, ast.AST] = {}
        self.imported: dict[str, tuple[str, str]] = {}
        for node in ast.parse(text).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                self.defined[node.name] = node
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                self.defined[node.targets[0].id] = node.value
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    self.imported[alias.asname or alias.name] = (node.module or "", alias.name)

    def find(self, name: str) -> "tuple[Source, ast.AST] | None":
        """The definition of a name, with its file; None if that file is not strop's."""
        if name in self.defined:
            return self, self.defined[name]
        module, original = self.imported.get(name, ("", ""))
        package, _, inside = module.partition(".")
        if package != "strop" or not inside:
            return None
        return read(SOURCE / f"{inside.replace('.', '/')}.py").find(original)

    def comment_above(self, line: int) -> str:
        """The comment that ends on the line before `line`, as one text."""
        taken: list[str] = []
        at = line - 2
        while at >= 0 and self.lines[at].strip().startswith("#"):
            taken.insert(0, self.lines[at].strip().lstrip("# "))
            at -= 1
        return " ".join(taken)


def read(path: Path) -> Source:
    """The source file at `path`, as it is now."""
    about = path.stat()
    return _read(path, about.st_mtime_ns, about.st_size)


@functools.cache
def _read(path: Path, changed: int, size: int) -> Source:
    return Source(path)
