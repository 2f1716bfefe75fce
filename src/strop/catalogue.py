"""What exists, read from the source files without importing them (and so without torch).

A part's name is its file's name inside its folder; a recipe's name is its function's name inside
`recipes/`. There is no registry: a new file is enough.
"""

import ast
import difflib
import functools
import importlib
import importlib.util
import inspect
import re
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from strop._source import ROOT, Source, read
from strop.errors import UserError
from strop.seams import KINDS

if TYPE_CHECKING:
    from strop.columns import Column


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
    # Parts that a recipe's own file puts in, beside those of its parent.
    brings: tuple[str, ...] = ()
    declares: tuple[str, ...] = ()  # names of its own columns

    @property
    def summary(self) -> str:
        """First line of the docstring."""
        return self.doc.strip().splitlines()[0] if self.doc.strip() else ""

    def line(self, label: str) -> str:
        """The docstring's sentence that starts with `label:`; empty if there is none."""
        ends = r"\.\s+[A-Z][a-z]+:|\.?\s*\n\s*[A-Z][^\n:]*:|\.?\s*\Z"
        found = re.search(rf"{label}:\s*(.+?)(?={ends})", self.doc, re.S)
        return " ".join(found.group(1).split()) if found else ""

    @property
    def arxiv(self) -> str:
        """The number of the paper that a recipe cites first."""
        found = re.search(r"arXiv (\d{4}\.\d{4,5})", self.doc)
        return found.group(1) if found else ""

    def load(self) -> Any:
        """The class or function itself."""
        return getattr(importlib.import_module(self.module), self.attribute)


def camel(name: str) -> str:
    """The class name of a file name: `divide_by_group_std` -> `DivideByGroupStd`."""
    return "".join(word[:1].upper() + word[1:] for word in name.split("_"))


@functools.cache
def parts(folder: str = "") -> tuple[Entry, ...]:
    """All built-in parts, or those of one folder ("advantage" holds its subfolders too)."""
    wanted = [f for f in KINDS if f == folder or f.startswith(folder + "/") or not folder]
    if not wanted:
        raise UserError(f"no folder of parts {folder!r}{nearest(folder, KINDS)}")
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


def declarer(column: str) -> Entry | None:
    """The part that declares a column of its own by this name; None where no built-in part does."""
    return next((entry for entry in parts() if column in entry.declares), None)


@functools.cache
def columns() -> dict[str, "Column"]:
    """All columns that there are, by name: the standard ones and those that parts declare."""
    from strop.columns import together  # which needs torch

    return together(entry.load() for entry in parts() if entry.declares)


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


def name_to_load(thing: Any) -> str:
    """The name by which `load` finds a part's class or a recipe's function again."""
    module, name = thing.__module__, thing.__qualname__
    if module.startswith("strop."):
        return module.rpartition(".")[2] if inspect.isclass(thing) else name
    place = getattr(sys.modules.get(module), "__strop_place__", module)
    return f"{place}:{name}"


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
    module.__strop_place__ = str(path)  # type: ignore[attr-defined]  # as it was given
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
    source = read(path)
    node = source.defined.get(camel(path.stem))
    if not isinstance(node, ast.ClassDef):
        return None
    methods = {item.name: item for item in node.body if isinstance(item, ast.FunctionDef)}
    call = methods.get("__call__")
    reads = tuple(a.arg for a in call.args.args if a.arg != "self") if call else ()
    module = f"strop.{folder.replace('/', '.')}.{path.stem}"
    doc = ast.get_docstring(node) or ""
    fields = tuple(_class_fields(source, node).values())
    return Entry(
        path.stem, "part", folder, module, node.name, doc, fields, reads, declares=_declared(node)
    )


def _declared(node: ast.ClassDef) -> tuple[str, ...]:
    """The names in `declares = (Column("budget_B", ...), ...)`."""
    values = [
        item.value
        for item in node.body
        if isinstance(item, ast.AnnAssign) and ast.unparse(item.target) == "declares" and item.value
    ]
    calls = [call for value in values for call in ast.walk(value) if isinstance(call, ast.Call)]
    return tuple(ast.literal_eval(call.args[0]) for call in calls)


def _class_fields(source: Source, node: ast.ClassDef) -> dict[str, Field]:
    """The fields of a dataclass by name, those of its bases first."""
    fields: dict[str, Field] = {}
    for base in node.bases:
        found = source.find(ast.unparse(base))
        if found and isinstance(found[1], ast.ClassDef):
            fields |= _class_fields(found[0], found[1])
    for item in node.body:
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            annotation = ast.unparse(item.annotation)
            if not annotation.startswith("ClassVar"):
                default = ast.unparse(item.value) if item.value else ""
                comment = source.comment_above(item.lineno)
                fields[item.target.id] = Field(item.target.id, annotation, default, comment)
    return fields


def _read_recipes(path: Path) -> list[Entry]:
    source = read(path)
    module = f"strop.recipes.{path.stem}"
    found = []
    for name, node in source.defined.items():
        if not isinstance(node, ast.FunctionDef) or name.startswith("_"):
            continue
        if node.returns is None or ast.unparse(node.returns) != "Algorithm":
            continue
        fields = tuple(_parameters(source, node).values())
        doc = ast.get_docstring(node) or ""
        brings = tuple(dict.fromkeys(_parts_named(source, node)))
        found.append(Entry(name, "recipe", "recipes", module, name, doc, fields, brings=brings))
    return found


def _parts_named(source: Source, function: ast.FunctionDef) -> list[str]:
    """The parts that a recipe and the helpers in its file put in."""
    found, waiting, seen = [], [function], set()
    while waiting:
        for node in ast.walk(waiting.pop(0)):
            if not isinstance(node, ast.Name) or node.id in seen:
                continue
            seen.add(node.id)
            module, _ = source.imported.get(node.id, ("", ""))
            folder, _, name = module.removeprefix("strop.").replace(".", "/").rpartition("/")
            helper = source.defined.get(node.id)
            if folder in KINDS:
                found.append(name)
            elif isinstance(helper, ast.FunctionDef) and node.id.startswith("_"):
                waiting.append(helper)
    return found


def _parameters(source: Source, node: ast.FunctionDef) -> dict[str, Field]:
    """The parameters of a recipe by name: its own, then those that it inherits."""
    fields = {
        arg.arg: Field(
            arg.arg,
            ast.unparse(arg.annotation) if arg.annotation else "",
            ast.unparse(default) if default is not None else "",
            source.comment_above(arg.lineno),
        )
        for arg, default in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
    }
    for decorator in node.decorator_list:
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "inherits":
            inherited = _inherited(source, decorator)
            fields |= {k: field for k, field in inherited.items() if k not in fields}
    return fields


def _inherited(source: Source, call: ast.Call) -> dict[str, Field]:
    """What `inherits(parent, without=..., name=default)` of `recipes/_inherit.py` hands on."""
    place, parent = _definition(source, call.args[0])
    assert isinstance(parent, ast.FunctionDef)
    changed = {keyword.arg: keyword.value for keyword in call.keywords}
    without = _texts(source, changed.pop("without")) if "without" in changed else ()
    return {
        name: replace(field, default=ast.unparse(changed[name])) if name in changed else field
        for name, field in _parameters(place, parent).items()
        if name not in without
    }


def _texts(source: Source, node: ast.AST) -> tuple[str, ...]:
    """A tuple of texts, written out or by the names of constants: `("beta", *CLIP)`."""
    if isinstance(node, ast.Name):
        return _texts(*_definition(source, node))
    if isinstance(node, ast.Starred):
        return _texts(source, node.value)
    if isinstance(node, ast.Tuple):
        return tuple(text for item in node.elts for text in _texts(source, item))
    return (str(ast.literal_eval(ast.unparse(node))),)


def _definition(source: Source, name: ast.expr) -> tuple[Source, ast.AST]:
    found = source.find(ast.unparse(name))
    assert found is not None, f"{ast.unparse(name)} is defined in no file of strop"
    return found
