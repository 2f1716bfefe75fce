"""Flip signs, comparisons and bounds in every part and see that a test notices.

    python tools/mutate_parts.py [--only NAME] [--folder FOLDER] [--near]

For every part, each `-`, `+`, comparison, `min`, `max`, `&` and `|` outside its `__post_init__` is
changed in turn. The part's own test runs first, then those of all parts for this one and those of
the recipes that have it, then the wider suite of parts and recipes, which takes minutes a mutant
(not with --near). A mutant that all let pass is printed with its file and line, and the exit code
is 1. One process per mutant and stage, forked from one that has imported the heavy libraries.
"""

import argparse
import ast
import copy
import importlib.abc
import importlib.util
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import numpy
import pytest
import torch

from strop import catalogue

ROOT = Path(__file__).parents[1]
SWAPS = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd}
TURNS = {
    ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
}  # fmt: skip
NAMES = {"minimum": "maximum", "maximum": "minimum", "amin": "amax", "amax": "amin",
         "min": "max", "max": "min"}  # fmt: skip
# What this process has imported already is no fault.
PLAIN = ("-W", "ignore::pytest.PytestAssertRewriteWarning")
WIDER = ("tests/recipes", "tests/every_part", "tests/every_recipe", "tests/test_kernel.py")


def mutants(source: str) -> Iterator[tuple[int, str, str]]:
    """(line, what was changed, new source) of every single change."""
    tree = ast.parse(source)
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef) and function.name != "__post_init__":
            for node in ast.walk(function):
                for change in _changes(node):
                    yield node.lineno, change, _with(tree, node, change)


def _changes(node: ast.AST) -> list[str]:
    if isinstance(node, ast.BinOp) and type(node.op) in SWAPS:
        text = isinstance(node.left, ast.Constant) and isinstance(node.left.value, str)
        return [] if text or _is_annotation(node) else ["operator"]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.Invert):
        return ["sign"]
    if isinstance(node, ast.Compare) and type(node.ops[0]) in TURNS:
        return ["comparison"]
    if isinstance(node, ast.Attribute) and node.attr in NAMES:
        return ["bound"]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in NAMES:
        return ["bound"]
    return []


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
        twin.op = ast.UAdd() if isinstance(twin.op, ast.USub) else ast.Not()
        if isinstance(node.op, ast.Invert):  # ~mask -> mask
            twin.op = ast.UAdd()
            twin.operand = ast.BinOp(twin.operand, ast.Mult(), ast.Constant(1))
    elif change == "comparison":
        twin.ops[0] = TURNS[type(twin.ops[0])]()
    elif isinstance(twin, ast.Attribute):
        twin.attr = NAMES[twin.attr]
    else:
        twin.func.id = NAMES[twin.func.id]
    return ast.unparse(ast.fix_missing_locations(changed))


class Loader(importlib.abc.MetaPathFinder, importlib.abc.SourceLoader):
    """Gives one module another source."""

    def __init__(self, module: str, path: str, source: str) -> None:
        self.module, self.path, self.source = module, path, source

    def find_spec(self, name, path=None, target=None):
        if name != self.module:
            return None
        return importlib.util.spec_from_file_location(name, self.path, loader=self)

    def get_filename(self, fullname):
        return self.path

    def get_data(self, path):
        return self.source.encode()

    def path_stats(self, path):
        raise OSError  # never take or leave a byte-code file


def caught(module: str, path: Path, source: str, tests: list[str]) -> bool:
    """Whether the tests fail with `source` in place of the module's own."""
    child = os.fork()
    if child == 0:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        sys.dont_write_bytecode = True
        sys.meta_path.insert(0, Loader(module, str(path), source))
        code = pytest.main(["-x", "-q", "-n", "0", "-p", "no:cacheprovider", *PLAIN, *tests])
        os._exit(int(code))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0


def recipes_with(name: str) -> list[str]:
    """Tests of the recipes whose file has the part."""
    having = [
        path for path in (ROOT / "src/strop/recipes").glob("*.py") if name in path.read_text()
    ]
    tests = [ROOT / "tests/recipes" / f"test_{path.stem}.py" for path in sorted(having)]
    return [str(test) for test in tests if test.exists()]


def main() -> int:
    """Run all mutants and print the survivors."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="one part")
    parser.add_argument("--folder", default="", help="one folder of parts, such as loss")
    parser.add_argument("--near", action="store_true", help="leave the wider suite out")
    options = parser.parse_args()
    os.chdir(ROOT)
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, numpy {numpy.__version__}, "
          f"hypothesis {hypothesis.__version__}")  # fmt: skip
    begun, survivors, total = time.time(), [], 0
    wider = [] if options.near else [name for name in WIDER if (ROOT / name).exists()]
    for part in catalogue.parts(options.folder):
        path = ROOT / "src/strop" / part.folder / f"{part.name}.py"
        test = ROOT / "tests" / part.folder / f"test_{part.name}.py"
        if options.only and part.name != options.only:
            continue
        module = ".".join(("strop", *path.relative_to(ROOT / "src/strop").with_suffix("").parts))
        own = [str(test)] if test.exists() else []
        near = (own, ["tests/every_part", "-k", part.name], recipes_with(part.name))
        asked, found = [tests for tests in (*near, wider) if tests], 0
        for tests in filter(None, near):
            if caught(module, path, path.read_text(), tests):
                raise SystemExit(f"{' '.join(tests)}: fails as the part is, or has no tests; "
                                 "nothing can be said of its mutants")  # fmt: skip
        for line, change, source in mutants(path.read_text()):
            found += 1
            if not any(caught(module, path, source, tests) for tests in asked):
                survivors.append(f"{path.relative_to(ROOT)}:{line}: {change}")
        total += found
        print(f"{path.stem}: {found} mutants", flush=True)
    print(f"{total} mutants, {len(survivors)} survived, {time.time() - begun:.0f} s")
    for survivor in survivors:
        print(f"  {survivor}")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
