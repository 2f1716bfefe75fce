"""Reads parts and recipes from their source files without importing anything."""

import ast
import contextlib
import re
import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from strop.catalogue.seams import KINDS, SEAM_OF
from strop.catalogue.source import Source, read
from strop.support.about import PARTS_MODULE
from strop.support.errors import UserError
from strop.support.loading import attribute, camel


class Unread(UserError):
    """What the source of a user's part or recipe computes, or takes from a module beside it."""


@dataclass(frozen=True)
class Field:
    """One hyperparameter: name, type and default as written, and the comment above it."""

    name: str
    annotation: str
    default: str
    comment: str


@dataclass(frozen=True)
class Regime:
    """A setting in which a recipe's own part changes the step, and the metric that shows it.

    words: as typed after `strop train`, the method first; the recipe alone where no setting but an
    event in the run makes the difference. sign: <, > or !=, of the metric and `level` in some step.
    """

    words: tuple[str, ...]
    metric: str
    sign: str
    level: float

    def shown_by(self, value: float) -> bool:
        """Whether a step's metric differs from `level` on that side by more than rounding."""
        apart = value - self.level
        return {"<": apart < -1e-7, ">": apart > 1e-7, "!=": abs(apart) > 1e-7}[self.sign]


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
    reads: tuple[str, ...] = ()  # parameters of a part's call
    writes: tuple[str, ...] = ()  # columns, by the part's own names for them
    # Parts that a recipe's own file adds to those of its parent.
    brings: tuple[str, ...] = ()
    declares: tuple[str, ...] = ()  # names of a part's own columns
    also: tuple[str, ...] = ()  # further names of a recipe in `strop.functional`

    @property
    def summary(self) -> str:
        """First paragraph of the docstring."""
        return " ".join(self.doc.strip().split("\n\n")[0].split())

    def line(self, label: str) -> str:
        """The docstring's sentence that starts with `label:`; empty if there is none."""
        ends = r"\.\s+[A-Z][a-z]+:|\.?\s*\n\s*[A-Z][A-Za-z ]*:|\.?\s*\Z"
        found = re.search(rf"{label}:\s*(.+?)(?={ends})", self.doc, re.S)
        return " ".join(found.group(1).split()) if found else ""

    @property
    def regime(self) -> Regime | None:
        """The setting in which a recipe differs from its parent, by its line "Differs once" or "In
        full once"; None: in every setting.

        The first words in backquotes are the setting, the last brackets the metric. Raises
        UserError for a quote that is not closed and a level that is no number.
        """
        line = self.line("Differs once") or self.line("In full once")
        found = re.search(r"\((\S+) (<|>|!=) (\S+)\)$", line)
        if found is None:
            return None
        typed = re.search(r"`(.+?)`", line)
        try:
            words, level = shlex.split(typed[1]) if typed else [], float(found[3])
        except ValueError as error:
            raise UserError(
                f"{self.name}: its line {line!r} cannot be read, {error}: a setting stands in "
                "backquotes, and the line ends with (metric > number)"
            ) from error
        if not words or not words[0].startswith(f"{self.name}("):
            words = [self.name, *words]
        return Regime(tuple(words), found[1], found[2], level)

    @property
    def arxiv(self) -> str:
        """The number of the paper that a recipe cites first."""
        found = re.search(r"arXiv (\d{4}\.\d{4,5})", self.doc)
        return found.group(1) if found else ""

    def load(self) -> Any:
        """Load the class or function. Raises UserError where a user's file cannot be loaded."""
        return attribute(f"{self.module}:{self.attribute}")


def read_part(path: Path, folder: str) -> Entry | None:
    """The part in a file of a folder of strop; None where the file has no part."""
    source = read(path)
    node = source.defined.get(camel(path.stem))
    module = f"{PARTS_MODULE}.{folder.replace('/', '.')}.{path.stem}"
    if not isinstance(node, ast.ClassDef):
        return None
    return part_entry(source, node, path.stem, module, folder)


def stated_kind(node: ast.ClassDef) -> str:
    """The text in `kind: ClassVar[str] = "advantage/baseline"`; empty without one."""
    value = _stated(node, "kind")
    return str(value.value) if isinstance(value, ast.Constant) else ""


def part_entry(source: Source, node: ast.ClassDef, name: str, module: str, folder: str) -> Entry:
    """The entry of a part's class."""
    functions = ast.FunctionDef | ast.AsyncFunctionDef
    methods = {item.name: item for item in node.body if isinstance(item, functions)}
    call = methods.get("__call__")
    reads = tuple(a.arg for a in call.args.args if a.arg != "self") if call else ()
    doc = ast.get_docstring(node) or ""
    fields = tuple(_class_fields(source, node).values())
    stated, seam = _stated(node, "writes"), SEAM_OF.get(folder)
    writes = seam.writes if seam is not None else ()
    if stated is not None:
        try:
            writes = _texts(source, stated)
        except Unread:
            writes = (ast.unparse(stated),)  # as it is written
    return Entry(
        name,
        "part",
        folder,
        module,
        node.name,
        doc,
        fields,
        reads,
        writes,
        declares=_declared(node),
    )


def _stated(node: ast.ClassDef, name: str) -> ast.expr | None:
    """The value of a class attribute, `writes: ClassVar[...] = ("cut_T",)`; None without one."""
    for item in node.body:
        target = item.targets[0] if isinstance(item, ast.Assign) else getattr(item, "target", None)
        if isinstance(target, ast.Name) and target.id == name:
            value: ast.expr | None = getattr(item, "value", None)
            return value
    return None


def _declared(node: ast.ClassDef) -> tuple[str, ...]:
    """The names in `declares = (Column("budget_B", ...), ...)`."""
    value = _stated(node, "declares")
    calls = [call for call in ast.walk(value) if isinstance(call, ast.Call)] if value else []
    names = [call.args[0] for call in calls if call.args]
    return tuple(str(name.value) for name in names if isinstance(name, ast.Constant))


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


def read_recipes(path: Path) -> list[Entry]:
    """The recipes of a file of strop."""
    source = read(path)
    module = f"strop.recipes.{path.stem}"
    return [recipe_entry(source, node, name, module) for name, node in recipes_in(source).items()]


def recipes_in(source: Source) -> dict[str, ast.FunctionDef]:
    """The functions of a file that are recipes, by name."""
    functions = {n: node for n, node in source.defined.items() if isinstance(node, ast.FunctionDef)}
    return {
        name: node
        for name, node in functions.items()
        if not name.startswith("_") and node.returns is not None
        and ast.unparse(node.returns) in ("Algorithm", "Phases")
    }  # fmt: skip


def parts_in(source: Source) -> dict[str, ast.ClassDef]:
    """The classes of a file that state a kind of part, by name."""
    classes = {n: node for n, node in source.defined.items() if isinstance(node, ast.ClassDef)}
    return {name: node for name, node in classes.items() if stated_kind(node)}


def recipe_entry(source: Source, node: ast.FunctionDef, name: str, module: str) -> Entry:
    """The entry of a recipe's function."""
    fields = tuple(_parameters(source, node).values())
    doc = ast.get_docstring(node) or ""
    brings = tuple(dict.fromkeys(_parts_named(source, node)))
    entry = Entry(name, "recipe", "recipes", module, node.name, doc, fields, brings=brings)
    return replace(entry, also=_also(source, node))


def _also(source: Source, node: ast.FunctionDef) -> tuple[str, ...]:
    """The names in `@door(also=("gpg_loss",), ...)` of `recipes/_door.py`."""
    calls = (d for d in node.decorator_list if isinstance(d, ast.Call))
    doors = [call for call in calls if ast.unparse(call.func) == "door"]
    given = (word.value for call in doors for word in call.keywords if word.arg == "also")
    return tuple(text for value in given for text in _texts(source, value))


def _parts_named(source: Source, function: ast.FunctionDef) -> list[str]:
    """The parts that a recipe and the helpers in its file use."""
    found, waiting, seen = [], [function], set()
    while waiting:
        for node in ast.walk(waiting.pop(0)):
            if not isinstance(node, ast.Name) or node.id in seen:
                continue
            seen.add(node.id)
            module, _ = source.imported.get(node.id, ("", ""))
            inside = module.removeprefix(f"{PARTS_MODULE}.").replace(".", "/")
            folder, _, name = inside.rpartition("/")
            helper = source.defined.get(node.id)
            if folder in KINDS:
                found.append(name)
            elif isinstance(helper, ast.FunctionDef) and node.id.startswith("_"):
                waiting.append(helper)
    return found


def _parameters(source: Source, node: ast.FunctionDef) -> dict[str, Field]:
    """The parameters of a recipe by name: its own, then those that it inherits."""
    given = node.args
    bare = [None] * (len(given.args) - len(given.defaults))
    fields = {
        arg.arg: Field(
            arg.arg,
            ast.unparse(arg.annotation) if arg.annotation else "",
            ast.unparse(default) if default is not None else "",
            source.comment_above(arg.lineno),
        )
        for arg, default in zip(
            [*given.args, *given.kwonlyargs],
            [*bare, *given.defaults, *given.kw_defaults],
            strict=True,
        )
    }
    for decorator in node.decorator_list:
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "inherits":
            with contextlib.suppress(Unread):  # then the page shows the recipe's own parameters
                inherited = _inherited(source, decorator)
                fields |= {k: field for k, field in inherited.items() if k not in fields}
    return fields


def _inherited(source: Source, call: ast.Call) -> dict[str, Field]:
    """The parameters that `inherits(parent, without=..., name=default)` of `recipes/_inherit.py`
    passes on.
    """
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
    if not isinstance(node, ast.Constant):
        raise Unread(f"{ast.unparse(node)} is computed")
    return (str(node.value),)


def _definition(source: Source, name: ast.expr) -> tuple[Source, ast.AST]:
    found = source.find(ast.unparse(name))
    if found is None:
        raise Unread(f"{ast.unparse(name)} is defined neither in this file nor in strop")
    return found
