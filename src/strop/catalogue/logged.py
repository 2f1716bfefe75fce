"""Finds the metrics that a part logs, by name, in its source without running it."""

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

from strop.catalogue.entries import Entry
from strop.catalogue.seams import KINDS
from strop.catalogue.source import read
from strop.support.about import PARTS_MODULE, SOURCE
from strop.support.loading import spec_of

METRIC = re.compile(r"[a-z][a-z_]*(/[a-z_{}]+)+")
# Metrics that a run counts by the reason that a part gives: the argument's index, and the name.
REASONS = {"Selected": (2, "selection/dropped"), "Curated": (1, "data/dropped")}


def logged_by(entry: Entry) -> tuple[str, ...]:
    """The metrics of a part, sorted: of strop's from its file and the helpers of parts it imports,
    of one in a user's file or package from its class.

    A name that is formatted at run time has braces in it: `turns/peers_{key}`.
    """
    if entry.module.startswith(f"{PARTS_MODULE}."):
        return _logged_in(entry.module)
    spec = None if entry.module.endswith(".py") else spec_of(entry.module)
    file = Path((spec.origin if spec is not None else None) or entry.module)
    node = read(file.resolve()).defined.get(entry.attribute)
    return tuple(sorted(metrics_in(ast.unparse(node)) - {*KINDS})) if node is not None else ()


@functools.cache
def _logged_in(module: str) -> tuple[str, ...]:
    """The metrics that the part of a module of strop logs."""
    found, waiting = set[str](), [module]
    seen = set(waiting)
    while waiting:
        text = _file_of(waiting.pop()).read_text(encoding="utf-8")
        found |= metrics_in(text)
        new = [module for module in helpers_in(text) if module not in seen]
        waiting += new
        seen |= {*new}
    return tuple(sorted(found))


def _file_of(module: str) -> Path:
    return SOURCE / f"{module.removeprefix('strop.').replace('.', '/')}.py"


@functools.lru_cache(maxsize=1)  # both functions below look at a file before the next one
def nodes_in(text: str) -> tuple[ast.AST, ...]:
    """The syntax tree of a file, node by node."""
    return tuple(ast.walk(ast.parse(text)))


@functools.cache
def helpers_in(text: str) -> tuple[str, ...]:
    """The modules of helpers of parts that a file imports: their names begin with an underscore."""
    imported = [node.module or "" for node in nodes_in(text) if isinstance(node, ast.ImportFrom)]
    places = [module.rpartition(".") for module in imported]
    return tuple(
        f"{folder}.{name}"
        for folder, _, name in places
        if name.startswith("_") and folder.startswith(f"{PARTS_MODULE}.")
    )


@functools.cache
def metrics_in(text: str) -> frozenset[str]:
    """The names of metrics in a source: texts of the right form, keys of `metrics={...}`, and
    counts by reason.
    """
    nodes = nodes_in(text)
    joined = [node for node in nodes if isinstance(node, ast.JoinedStr)]
    inner = {id(value) for node in joined for value in node.values}
    found = {"".join(map(_text, node.values)) for node in joined}
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inner:
            found.add(node.value)
    named = {name for node in nodes for name in _named(node)}
    return frozenset({name for name in found if METRIC.fullmatch(name)} | named)


def _text(value: ast.expr) -> str:
    """A piece of a formatted text, with placeholders in braces."""
    if isinstance(value, ast.Constant):
        return str(value.value)
    inside = value.value if isinstance(value, ast.FormattedValue) else value
    word = ast.unparse(inside).rpartition(".")[2]
    return f"{{{word if word.isidentifier() else 'x'}}}"


def _named(node: ast.AST) -> Iterator[str]:
    """Names of metrics in a call that do not have a metric's usual form."""
    if not isinstance(node, ast.Call):
        return
    for keyword in node.keywords:
        if keyword.arg == "metrics" and isinstance(keyword.value, ast.Dict):
            keys = [k.value for k in keyword.value.keys if isinstance(k, ast.Constant)]
            yield from (str(key) for key in keys)
    called = node.func.id if isinstance(node.func, ast.Name) else ""
    place, prefix = REASONS.get(called, (0, ""))
    if prefix and len(node.args) > place and isinstance(node.args[place], ast.Constant):
        yield f"{prefix}/{ast.literal_eval(node.args[place])}"
