"""Lists parts and recipes from the source files without importing them (and so without torch).

A part's name is its file's name inside its folder; a recipe's name is its function's name inside
`recipes/`. There is no registry: a new file is enough. Other packages add theirs through entry
points, and a file of your own is read in the same way.
"""

import ast
import dataclasses
import functools
import importlib
import importlib.metadata
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from strop.catalogue import peers
from strop.catalogue.entries import (
    Entry,
    part_entry,
    parts_in,
    read_part,
    read_recipes,
    recipe_entry,
    recipes_in,
    stated_kind,
)
from strop.catalogue.seams import KINDS
from strop.catalogue.source import Source, read
from strop.rewards.source import BUILT_IN
from strop.support.about import PARTS, SOURCE
from strop.support.errors import UserError, in_words, nearest
from strop.support.loading import attribute, spec_of

if TYPE_CHECKING:
    from strop.batch.columns import Column

One = TypeVar("One")
LONGEST = 100  # characters of a name; file systems accept no name that is much longer


@functools.cache
def parts(folder: str = "") -> tuple[Entry, ...]:
    """All parts, or those of one folder ("advantage" includes its subfolders)."""
    wanted = [f for f in KINDS if f == folder or f.startswith(folder + "/") or not folder]
    if not wanted:
        raise UserError(f"no folder of parts {folder!r}{nearest(folder, KINDS)}")
    found = []
    for name in wanted:
        for path in sorted((PARTS / name).glob("*.py")):
            entry = None if path.stem.startswith("_") else read_part(path, name)
            if entry is not None:
                found.append(entry)
    theirs = (entry for entry in brought("part") if entry.folder in wanted)
    return _distinct(found, theirs)


@functools.cache
def recipes() -> tuple[Entry, ...]:
    """All recipes, by name."""
    found: list[Entry] = []
    for path in sorted((SOURCE / "recipes").glob("*.py")):
        if not path.stem.startswith("_"):
            found.extend(read_recipes(path))
    return tuple(sorted(_distinct(found, brought("recipe")), key=lambda entry: entry.name))


def brought(kind: str) -> tuple[Entry, ...]:
    """The parts or recipes of other installed packages, by the entry points that name them.

    The groups are `strop.parts` and `strop.recipes`. One that cannot be read is left out, with a
    note on the error stream.
    """
    return _from_packages(kind)[0]


@functools.cache
def _from_packages(kind: str) -> tuple[tuple[Entry, ...], dict[str, str]]:
    """The entries of other packages, and why some of theirs are left out, by name."""
    found: list[Entry] = []
    left_out: dict[str, str] = {}
    for point in sorted(_points(kind), key=lambda p: p.name):
        try:
            entry = read_from(kind, point.value, point.name)
            if kind == "part" and entry.folder not in KINDS:
                raise UserError(_of_no_kind(entry))
            found.append(entry)
        except (Exception, SystemExit) as error:  # importing their package runs their code
            why = str(error) if isinstance(error, UserError) else in_words(error)
            package = point.dist.name if point.dist else "an installed package"
            left_out[point.name] = (
                f"{kind} {point.name} of {package} (entry point {point.value} in strop.{kind}s) is "
                f"left out: {why}"
            )
            print(f"note: {left_out[point.name]}", file=sys.stderr)
    return tuple(found), left_out


def _of_no_kind(entry: Entry) -> str:
    """Why a part whose class states no kind, or none that exists, can be listed nowhere."""
    stated = f"the kind {entry.folder!r}, which does not exist" if entry.folder else "no kind"
    return (
        f"its class states {stated}: give it "
        f'`kind: ClassVar[str] = "advantage/baseline"`, or another of {", ".join(KINDS)}'
    )


def packages() -> tuple[str, ...]:
    """The installed packages that bring parts or recipes, with their versions, sorted."""
    points = [p for kind in ("part", "recipe") for p in _points(kind)]
    return tuple(sorted({f"{p.dist.name} {p.dist.version}" for p in points if p.dist}))


def _points(kind: str) -> importlib.metadata.EntryPoints:
    return importlib.metadata.entry_points(group=f"strop.{kind}s")


def _distinct(own: list[Entry], theirs: Iterable[Entry]) -> tuple[Entry, ...]:
    """All entries; of several with one name the first, with a note about a package's other one."""
    places = {entry.name: entry.module for entry in own}
    found = list(own)
    for entry in theirs:
        if entry.name in places:
            print(
                f"note: {entry.kind} {entry.name} of {entry.module} is left out: "
                f"{places[entry.name]} has one of this name, so the package has to rename its own",
                file=sys.stderr,
            )
        else:
            found.append(entry)
            places[entry.name] = entry.module
    return tuple(found)


def read_from(kind: str, place: str, name: str = "") -> Entry:
    """Read the part or recipe at `package.module:Attribute` or `file.py:Attribute`.

    The file is not imported. Raises UserError where there is none.
    """
    module, _, attribute = (place if ":" in place else f"{place}:").rpartition(":")
    path = Path(module) if module.endswith(".py") else _file_of(module)
    if not path.is_file():
        raise UserError(f"no file {path}: it does not exist, seen from {Path.cwd()}")
    try:
        source = read(path.resolve())
    except SyntaxError as error:
        raise UserError(f"{path}, line {error.lineno}: {error.msg}") from error
    except ValueError as error:
        raise UserError(f"{path} is no Python source in UTF-8: {error}") from error
    node = source.defined.get(attribute)
    is_class = kind == "part"
    if not isinstance(node, ast.ClassDef if is_class else ast.FunctionDef):
        raise UserError(_absent(kind, module, attribute, source))
    name = name or attribute
    if isinstance(node, ast.ClassDef):
        return part_entry(source, node, name, module, stated_kind(node))
    assert isinstance(node, ast.FunctionDef)
    return recipe_entry(source, node, name, module)


def _absent(kind: str, module: str, attribute: str, source: Source) -> str:
    """The error for a file that was named without one of its parts or recipes, or with an absent
    one.
    """
    found = parts_in(source) if kind == "part" else recipes_in(source)
    there = ", ".join(f"{module}:{name}" for name in found) or "none"
    if not attribute:
        return f"{module} is a file: name one of its {kind}s, {there}"
    what = "class" if kind == "part" else "function"
    near = nearest(attribute, found)
    return f"{module} has no {what} {attribute}{near}; its {kind}s: {there}"


def _file_of(module: str) -> Path:
    try:
        spec = spec_of(module)
    except (ImportError, ValueError) as error:
        raise UserError(f"cannot import {module}: {error}") from error
    if spec is None or spec.origin is None:
        raise UserError(f"cannot import {module}: there is no such module")
    return Path(spec.origin)


def is_place(name: str) -> bool:
    """Whether this names a file or a module, with or without what is meant in it, and no listed
    part or recipe.
    """
    return ":" in name or name.endswith(".py")


def find(kind: str, name: str) -> Entry:
    """The part or recipe called `name`, or at that place. Raises UserError with nearest names."""
    if is_place(name):
        return read_from(kind, name)
    if entry := _in_its_file(kind, name):
        return entry
    if kind == "recipe" and (own := spelled(name)) != name:
        return find(kind, own)
    entries = recipes() if kind == "recipe" else parts()
    for entry in entries:
        if entry.name == name:
            return entry
    if why := _from_packages(kind)[1].get(name):
        raise UserError(why)
    names = [entry.name for entry in entries]
    other = "part" if kind == "recipe" else "recipe"
    hint = f": it is a {other}" if _in_its_file(other, name) else ""
    hint = hint or (peers.ours(name, "methods") if kind == "recipe" else "")
    hint = hint or (f": it is a reward function, --reward {name}" if name in BUILT_IN else "")
    raise UserError(
        f"no {kind} {name!r}{hint or nearest(name, names)}; `strop {kind}s` lists all of them"
    )


@functools.cache
def _in_its_file(kind: str, name: str) -> Entry | None:
    """The built-in part or recipe whose file has its name, so that a run reads only a few files;
    None where there is none.
    """
    if not name.isidentifier() or len(name) > LONGEST:
        return None
    above, folders = (SOURCE, ("recipes",)) if kind == "recipe" else (PARTS, KINDS)
    paths = {folder: above / folder / f"{name}.py" for folder in folders}
    for folder, path in paths.items():
        if path.is_file() and not name.startswith("_"):
            entries = read_recipes(path) if kind == "recipe" else [read_part(path, folder)]
            return next((entry for entry in entries if entry and entry.name == name), None)
    return None


def spelled(line: str) -> str:
    """A recipe's line with the name in strop's spelling: `dr-GRPO(beta=0)` is `dr_grpo(beta=0)`;
    unchanged where there is no such recipe.
    """
    found = re.match(r"[A-Za-z][\w-]*", line)
    name = found.group() if found else ""
    own = name.lower().replace("-", "_")
    if own == name or all(entry.name != own for entry in recipes()):
        return line
    return own + line[len(name) :]


def recipe_called(name: str) -> str:
    """The name of the recipe for which `strop.functional` also takes this name; else the name."""
    return next((entry.name for entry in recipes() if name in entry.also), name)


def model_of(text: str) -> str:
    """The shipped model that a recipe's docstring names (`Model: tiny-worked`), or "".

    text: the recipe in one line, or phases, of which one names it.
    """
    words, found = re.findall(r"\b[A-Za-z]\w*|\W", spelled(text)), ""
    for name in filter(str.isidentifier, words[1:] if words[:1] == ["until"] else words[:1]):
        own = _in_its_file("recipe", name)
        entries = recipes() if own is None else (own,)
        found = found or next((entry.line("Model") for entry in entries if entry.name == name), "")
    return found


def declarer(column: str) -> Entry | None:
    """The part that declares a column with this name; None where no part does."""
    return next((entry for entry in parts() if column in entry.declares), None)


@functools.cache
def columns() -> dict[str, "Column"]:
    """All columns, by name: the standard ones and those that parts declare."""
    from strop.batch.columns import together  # this import needs torch

    return together(of_each((entry for entry in parts() if entry.declares), Entry.load).values())


def of_each(entries: Iterable[Entry], make: Callable[[Entry], One]) -> dict[Entry, One]:
    """What `make` gives for each entry, which runs its code. One of another package that fails is
    left out, with a note, so that it costs itself alone.
    """
    found: dict[Entry, One] = {}
    for entry in entries:
        try:
            found[entry] = make(entry)
        except Exception as error:
            if entry.module.startswith("strop."):
                raise
            why = str(error) if isinstance(error, UserError) else in_words(error)
            print(f"note: {entry.kind} {entry.name} of {entry.module} is left out: {why}",
                  file=sys.stderr)  # fmt: skip
    return found


def load(kind: str, name: str) -> Any:
    """Load the class of a part or the function of a recipe.

    `name` is a listed name, `package.module:Attribute` or `file.py:Attribute`. Raises UserError,
    also for an object that is no part's class or not declared to return an Algorithm.
    """
    thing = attribute(name) if ":" in name else find(kind, name).load()
    if kind == "part" and not (isinstance(thing, type) and _is_part(thing)):
        raise UserError(f"{name} is no part: a part is a frozen dataclass with a __call__")
    if kind == "part" and (bare := _without_default(thing)):
        raise UserError(f"{name}: its field {bare[0]} has no default; give every field one")
    if kind == "recipe":
        declared = getattr(thing, "__annotations__", {}).get("return")
        named = getattr(declared, "__name__", declared)  # as text where a file postpones them
        if not inspect.isfunction(thing) or named not in ("Algorithm", "Phases"):
            raise UserError(
                f"{name} is no recipe: declare the function to return one, -> Algorithm"
            )
    return thing


@functools.lru_cache(maxsize=1024)
def _is_part(kind: type) -> bool:
    is_frozen = dataclasses.is_dataclass(kind) and getattr(kind, "__dataclass_params__").frozen  # noqa: B009
    return is_frozen and "__call__" in dir(kind)


@functools.lru_cache(maxsize=1024)
def _without_default(kind: type) -> list[str]:
    """The fields that must be given."""
    given = inspect.signature(kind).parameters.values()
    return [field.name for field in given if field.default is field.empty]
