"""What exists, read from the source files without importing them (and so without torch).

A part's name is its file's name inside its folder; a recipe's name is its function's name inside
`recipes/`. There is no registry: a new file is enough.
"""

import ast
import difflib
import functools
import importlib
import importlib.util
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strop.errors import UserError

ROOT = Path(__file__).parent
PART_FOLDERS = (
    "sampling", "rollout", "reward", "curation", "probe",
    "advantage/baseline", "advantage/scale", "advantage/credit", "advantage/weight",
    "selection", "loss/ratio", "loss/correction", "loss/bound", "loss/penalty", "loss/value",
    "loss/average", "plan", "control",
)  # fmt: skip


@dataclass(frozen=True)
class Field:
    """One hyperparameter: name, type and default as written, and the comment above it."""

    name: str
    annotation: str
    default: str
    comment: str


@dataclass(frozen=True)
class Entry:
    """One part or recipe as its source file describes it."""

    name: str
    kind: str
    folder: str
    module: str
    attribute: str
    doc: str
    fields: tuple[Field, ...]
    reads: tuple[str, ...] = ()

    @property
    def summary(self) -> str:
        """First line of the docstring."""
        return self.doc.strip().splitlines()[0] if self.doc.strip() else ""

    def line(self, label: str) -> str:
        """The docstring's sentence that starts with `label:`; empty if there is none."""
        ends = r"\.\s+[A-Z][a-z]+:|\.?\s*\n\s*[A-Z][^\n:]*:|\.?\s*\Z"
        found = re.search(rf"{label}:\s*(.+?)(?={ends})", self.doc, re.S)
        return " ".join(found.group(1).split()) if found else ""

    def load(self) -> Any:
        """The class or function itself."""
        return getattr(importlib.import_module(self.module), self.attribute)


def camel(name: str) -> str:
    """The class name of a file name: `divide_by_group_std` -> `DivideByGroupStd`."""
    return "".join(word[:1].upper() + word[1:] for word in name.split("_"))


@functools.cache
def parts(folder: str = "") -> tuple[Entry, ...]:
    """All built-in parts, or those of one folder ("advantage" holds its subfolders too)."""
    wanted = [f for f in PART_FOLDERS if f == folder or f.startswith(folder + "/") or not folder]
    if not wanted:
        raise UserError(f"no folder of parts {folder!r}{nearest(folder, PART_FOLDERS)}")
    found = []
    for name in wanted:
        for path in sorted((ROOT / name).glob("*.py")):
            entry = None if path.stem.startswith("_") else _read_part(path, name)
            if entry is not None:
                found.append(entry)
    return tuple(found)


@functools.cache
def recipes() -> tuple[Entry, ...]:
    """All built-in recipes, by name."""
    found = []
    for path in sorted((ROOT / "recipes").glob("*.py")):
        if not path.stem.startswith("_"):
            found.extend(_read_recipes(path))
    return tuple(sorted(found, key=lambda entry: entry.name))


def find(kind: str, name: str) -> Entry:
    """The part or recipe called `name`. Raises UserError with the nearest names."""
    entries = recipes() if kind == "recipe" else parts()
    for entry in entries:
        if entry.name == name:
            return entry
    raise UserError(
        f"no {kind} {name!r}{nearest(name, [e.name for e in entries])}; "
        f"`strop {kind}s` lists all of them"
    )


def load(kind: str, name: str) -> Any:
    """The class of a part or the function of a recipe.

    `name` is a built-in name, `package.module:Attribute` or `file.py:Attribute`. Raises UserError.
    """
    if ":" not in name:
        return find(kind, name).load()
    place, _, attribute = name.rpartition(":")
    module = _load_file(Path(place)) if place.endswith(".py") else _load_module(place)
    if not hasattr(module, attribute):
        public = [n for n in vars(module) if not n.startswith("_")]
        raise UserError(f"{place} has no {attribute}{nearest(attribute, public)}")
    return getattr(module, attribute)


def nearest(name: str, known: Any) -> str:
    """The words ", did you mean a or b?" for the closest known names; empty when none is close."""
    close = difflib.get_close_matches(name, list(known), n=3, cutoff=0.5)
    return f", did you mean {' or '.join(close)}?" if close else ""


def _load_file(path: Path) -> Any:
    if not path.is_file():
        raise UserError(f"no file {path}")
    spec = importlib.util.spec_from_file_location(f"strop_user_{path.stem}", path.resolve())
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise UserError(f"{path} cannot be loaded: {type(error).__name__}: {error}") from error
    return module


def _load_module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UserError(f"cannot import {name}: {error}") from error


def _read_part(path: Path, folder: str) -> Entry | None:
    text = path.read_text(encoding="utf-8")
    for node in ast.parse(text).body:
        if isinstance(node, ast.ClassDef) and node.name == camel(path.stem):
            call = next(
                (n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "__call__"),
                None,
            )
            reads = tuple(a.arg for a in call.args.args if a.arg != "self") if call else ()
            module = f"strop.{folder.replace('/', '.')}.{path.stem}"
            doc = ast.get_docstring(node) or ""
            fields = _class_fields(node, text.splitlines())
            return Entry(path.stem, "part", folder, module, node.name, doc, fields, reads)
    return None


def _class_fields(node: ast.ClassDef, lines: list[str]) -> tuple[Field, ...]:
    found = []
    for item in node.body:
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            annotation = ast.unparse(item.annotation)
            if annotation.startswith("ClassVar"):
                continue
            default = ast.unparse(item.value) if item.value else ""
            comment = _comment_above(lines, item.lineno)
            found.append(Field(item.target.id, annotation, default, comment))
    return tuple(found)


def _comment_above(lines: list[str], line: int) -> str:
    taken: list[str] = []
    at = line - 2
    while at >= 0 and lines[at].strip().startswith("#"):
        taken.insert(0, lines[at].strip().lstrip("# "))
        at -= 1
    return " ".join(taken)


def _read_recipes(path: Path) -> list[Entry]:
    text = path.read_text(encoding="utf-8")
    found = []
    for node in ast.parse(text).body:
        if not isinstance(node, ast.FunctionDef) or node.name.startswith("_"):
            continue
        if node.returns is None or ast.unparse(node.returns) != "Algorithm":
            continue
        lines = text.splitlines()
        fields = tuple(
            Field(
                arg.arg,
                ast.unparse(arg.annotation) if arg.annotation else "",
                ast.unparse(default) if default is not None else "",
                _comment_above(lines, arg.lineno),
            )
            for arg, default in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
        )
        doc = ast.get_docstring(node) or ""
        module = f"strop.recipes.{path.stem}"
        found.append(Entry(node.name, "recipe", "recipes", module, node.name, doc, fields))
    return found
