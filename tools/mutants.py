"""Mutants of the code, which show whether a test notices a change, and the tests to run on them.

A mutant is a function with one `-`, `+`, comparison, `min`, `max`, `&` or `|` changed. mutate.py
runs mutants in forked processes, and mutate_files.py writes them into files.
"""

import argparse
import ast
import copy
import functools
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
SWAPS = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd}
TURNS = {
    ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
}  # fmt: skip
NAMES = {"minimum": "maximum", "maximum": "minimum", "amin": "amax", "amax": "amin",
         "min": "max", "max": "min"}  # fmt: skip
SOURCE = ROOT / "src" / "strop"
# Parts have mutants of their own (mutate.py --only), recipes only compose, templates are a user's.
APART = {"parts", "recipes", "templates"}
ELSEWHERE = ("tests/vllm", "tests/site")  # tests that need what is not installed, or add nothing


class Mutant(NamedTuple):
    """A single change: where it is, and the module's source with it."""

    line: int
    column: int
    change: str
    function: str  # the function that has it, by its qualified name
    tree: ast.Module
    node: ast.AST

    @property
    def source(self) -> str:
        return _with(self.tree, self.node, self.change)


def mutants(source: str) -> Iterator[Mutant]:
    """Every single change of a function's code."""
    tree = ast.parse(source)
    yield from _inside(tree, tree, "", "")


def _inside(tree: ast.Module, node: ast.AST, function: str, prefix: str) -> Iterator[Mutant]:
    types = [getattr(node, name, None) for name in ("annotation", "returns")]  # no arithmetic
    for child in ast.iter_child_nodes(node):
        if any(child is each for each in types):
            continue
        inner, below = function, prefix
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            if child.name == "__post_init__":
                continue
            below = f"{prefix}{child.name}."
            if not isinstance(child, ast.ClassDef):
                inner, below = below[:-1], f"{below}<locals>."
        if function:
            for change in _changes(child):
                yield Mutant(child.lineno, child.col_offset, change, function, tree, child)
        yield from _inside(tree, child, inner, below)


def _changes(node: ast.AST) -> list[str]:
    if isinstance(node, ast.BinOp) and type(node.op) in SWAPS:
        return [] if _is_text(node.left) or _is_annotation(node) else ["operator"]
    if isinstance(node, ast.AugAssign) and type(node.op) in SWAPS:
        return [] if _is_text(node.value) else ["operator"]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.Invert):
        return ["sign"]
    if isinstance(node, ast.Compare):
        names = ("comparison", *(f"comparison {n}" for n in range(2, len(node.ops) + 1)))
        return [name for name, op in zip(names, node.ops, strict=True) if type(op) in TURNS]
    if isinstance(node, ast.Attribute) and node.attr in NAMES:
        return ["bound"]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in NAMES:
        return ["bound"]
    return []


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _is_annotation(node: ast.BinOp) -> bool:
    """`Tensor | None` is a type, not arithmetic."""
    return any(isinstance(n, ast.Constant) and n.value is None for n in ast.walk(node)) or any(
        isinstance(n, ast.Name) and n.id in ("Schedule", "Tensor") for n in (node.left, node.right)
    )


def _with(tree: ast.Module, node: ast.AST, change: str) -> str:
    memo: dict[int, object] = {}
    changed = copy.deepcopy(tree, memo)
    twin = memo[id(node)]
    if change == "operator":
        twin.op = SWAPS[type(twin.op)]()
    elif change == "sign":
        twin.op = ast.UAdd()
        if isinstance(node.op, ast.Invert):  # ~mask -> mask
            twin.operand = ast.BinOp(twin.operand, ast.Mult(), ast.Constant(1))
    elif change.startswith("comparison"):  # "comparison 2" is the second one of a < b < c
        at = int(change.partition(" ")[2] or 1) - 1
        twin.ops[at] = TURNS[type(twin.ops[at])]()
    elif isinstance(twin, ast.Attribute):
        twin.attr = NAMES[twin.attr]
    else:
        twin.func.id = NAMES[twin.func.id]
    return ast.unparse(ast.fix_missing_locations(changed))


def module_names() -> list[str]:
    """All modules outside the folders APART."""
    return [
        ".".join(("strop", *path.relative_to(SOURCE).with_suffix("").parts))
        for path in sorted(SOURCE.rglob("*.py"))
        if not APART & {*path.relative_to(SOURCE).parts} and not path.name.startswith("__")
    ]


def chosen_of(options: argparse.Namespace) -> dict[str, list[Mutant]]:
    """The mutants to run, by module: all of some modules, or a share of a sample of all."""
    names = options.module or module_names()
    found = [
        (name, mutant)
        for name in names
        for mutant in mutants((SOURCE.parent / (name.replace(".", "/") + ".py")).read_text("utf-8"))
    ]
    if options.sample:
        number = min(options.sample, len(found))
        found = random.Random(options.seed).sample(found, number)
        print(f"a sample of {number} mutants of {len(names)} modules", flush=True)
    part, of = map(int, options.shard.split("/"))
    # Neighbouring modules stay together, as tests are measured by room.
    mine = [entry for entry in found if names.index(entry[0]) * of // len(names) == part - 1]
    chosen: dict[str, list[Mutant]] = {}
    for name, mutant in sorted(mine, key=lambda entry: (entry[0], entry[1].line)):
        chosen.setdefault(name, []).append(mutant)
    return chosen


@functools.cache
def imports() -> dict[str, frozenset[str]]:
    """The full names that every test file imports."""
    found = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        names = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        found[path.relative_to(ROOT).as_posix()] = frozenset(names)
    return found


def key_of(module: str, mutant: Mutant) -> str:
    """The name of a mutant where its result is stored."""
    return f"{module}:{mutant.line}:{mutant.column}: {mutant.change}"


def tests_of(module: str) -> list[str]:
    """The test files that import a module, and the folder of its room."""
    folder = f"tests/{module.split('.')[1]}/"
    own = [path for path, names in imports().items() if module in names]
    own = [path for path in own if not path.startswith((*ELSEWHERE, folder))]
    return [*own, folder] if (ROOT / folder).exists() else own


def lines_of(path: Path) -> list[dict[str, Any]]:
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return [json.loads(line) for line in text.splitlines()]


def append(path: Path, row: dict[str, Any]) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
