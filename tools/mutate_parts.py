"""Flip signs, comparisons and bounds in every part and see that a test notices.

    python tools/mutate_parts.py [--only NAME ...] [--folder FOLDER] [--reach part|recipes|all]

For every part, each `-`, `+`, comparison, `min`, `max`, `&` and `|` outside its `__post_init__` is
changed in turn. The part's own tests run first (those of its recipes where it has none), then those
of all parts for this one; unless --reach is `part` those of the recipes that have it, which takes
up to a minute a mutant, and with `all` the wider suite of parts and recipes, which takes minutes. A
mutant that all let pass is printed with its file and line, and the exit code is 1.

Tests are collected once. A mutant lives in a process forked from there, in which the functions of
the part have other code; what is computed while the part or a test is imported is the part's own.
One that takes five times as long as the part itself, and 20 seconds more, counts as noticed.
"""

import argparse
import ast
import copy
import inspect
import os
import re
import select
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from types import CodeType, FunctionType, ModuleType
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

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
WORDS = (
    "-q", "-s", "-n", "0", "-p", "no:cacheprovider",
    "-W", "ignore::pytest.PytestAssertRewriteWarning",
)  # fmt: skip
UNUSED = 77  # exit code of a process in which the mutant could not take the part's place
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


def codes(code: CodeType) -> Iterator[tuple[str, CodeType]]:
    """Names and code of what a module or class defines."""
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield inner.co_qualname, inner
            yield from codes(inner)


def functions(space: Any, module: str) -> Iterator[FunctionType]:
    """What a module defines, also what stands behind a decorator."""
    for value in list(vars(space).values()):
        for name in ("__func__", "fget", "func"):  # of class and static methods, and of properties
            value = getattr(value, name, value)
        value = inspect.unwrap(value) if callable(value) else value
        if isinstance(value, FunctionType) and value.__module__ == module:
            yield value
        elif isinstance(value, type) and value.__module__ == module:
            yield from functions(value, module)


def put(source: str, module: ModuleType) -> None:
    """Give the functions of a module the code that they have in another source."""
    found = dict(codes(compile(source, str(module.__file__), "exec")))
    for function in functions(module, module.__name__):
        if function.__qualname__ in found:
            function.__code__ = found[function.__qualname__]


class Unsteady(Exception):
    """Tests fail where nothing was changed."""


class Mutants:
    """Runs all mutants, in place of the tests that pytest has collected."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.seconds: dict[str, float] = {}  # of tests on the parts as they are
        self.survivors: list[str] = []
        self.total = self.unsteady = 0

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """All parts."""
        for part in catalogue.parts(self.options.folder):
            if not self.options.only or part.name in self.options.only:
                self.mutate(session, part)
        return True

    def mutate(self, session: pytest.Session, part: Any) -> None:
        """All mutants of a part."""
        path = ROOT / "src/strop" / part.folder / f"{part.name}.py"
        name = ".".join(("strop", *path.relative_to(ROOT / "src/strop").with_suffix("").parts))
        module, text = import_module(name), path.read_text(encoding="utf-8")
        stages, found, before = self.stages(session, part), 0, len(self.survivors)
        try:
            for line, change, source in mutants(text):
                found += 1
                if not any(self.caught(stage, module, source) for stage in stages):
                    self.survivors.append(f"{path.relative_to(ROOT)}:{line}: {change}")
        except Unsteady as error:
            self.unsteady += 1
            print(f"{part.name}: nothing can be said of its mutants: {error}", flush=True)
            return
        self.total += found
        print(f"{part.name}: {found} mutants, {len(self.survivors) - before} survived", flush=True)
        for survivor in self.survivors[before:]:
            print(f"  {survivor}", flush=True)

    def stages(self, session: pytest.Session, part: Any) -> list[list[pytest.Item]]:
        """Tests that run one after the other, by their reach."""
        files = sorted((ROOT / "tests" / part.folder).glob("test_*.py"))
        recipes = tuple(
            f"tests/recipes/{test.name}::"
            for recipe in (ROOT / "src/strop/recipes").glob("*.py")
            if part.attribute in recipe.read_text(encoding="utf-8")
            for test in (ROOT / "tests/recipes").glob("test_*.py")
            if re.search(rf"\b{recipe.stem}\b", test.read_text(encoding="utf-8"))
        )
        own = tuple(
            f"tests/{part.folder}/{test.name}::"
            for test in files
            if test.stem == f"test_{part.name}" or part.attribute in test.read_text("utf-8")
        )
        chosen = [
            lambda name: name.startswith(own or recipes),
            lambda name: name.startswith("tests/every_part/") and part.name in name,
            lambda name: name.startswith(recipes),
            lambda name: name.startswith(WIDER),
        ]
        reach = {"part": 2, "recipes": 3, "all": 4}[self.options.reach]
        found = [[i for i in session.items if choose(i.nodeid)] for choose in chosen[:reach]]
        return [items for items in found if items]

    def caught(self, items: list[pytest.Item], module: ModuleType, source: str) -> bool:
        """Whether a test fails with `source` in place of the module's own."""
        new = [item for item in items if item.nodeid not in self.seconds]
        begun = time.monotonic()
        if new and failed(new, module, None, 3600):
            names = ", ".join(sorted({item.nodeid.partition("::")[0] for item in new}))
            raise Unsteady(f"{names}: fail as it is")
        self.seconds |= {item.nodeid: (time.monotonic() - begun) / len(new) for item in new}
        limit = 20 + 5 * sum(self.seconds[item.nodeid] for item in items)
        return failed(items, module, source, limit)


def failed(items: list[pytest.Item], module: ModuleType, source: str | None, limit: float) -> bool:
    """Whether one of the tests fails in a process of its own, or they take longer than that."""
    child = os.fork()
    if child == 0:
        os.setsid()
        null = os.open(os.devnull, os.O_WRONLY)
        for number in (1, 2):
            os.dup2(null, number)
        session, code = items[0].session, 1
        try:
            if source is not None:
                code = UNUSED
                put(source, module)
                code = 1
            for item, following in zip(items, [*items[1:], None], strict=True):
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                if session.testsfailed:
                    break
            code = int(session.testsfailed > 0)
        finally:
            os._exit(code)
    ended = os.pidfd_open(child)
    in_time, _, _ = select.select([ended], [], [], limit)
    os.close(ended)
    if not in_time:
        os.kill(child, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # what its tests have left
    if code == UNUSED:
        raise RuntimeError(f"a mutant of {module.__name__} could not take its place")
    return code != 0


def main() -> int:
    """Run all mutants and print the survivors."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", default=[], help="these parts")
    parser.add_argument("--folder", default="", help="one folder of parts, such as loss")
    parser.add_argument("--reach", choices=("part", "recipes", "all"), default="all")
    options = parser.parse_args()
    os.chdir(ROOT)
    torch.set_num_threads = lambda number: None  # it fails in a copy of a copy; there is one thread
    print(f"torch {torch.__version__}, numpy {numpy.__version__}, "
          f"hypothesis {hypothesis.__version__}")  # fmt: skip
    begun, runner = time.time(), Mutants(options)
    folders = {f"tests/{part.folder}" for part in catalogue.parts(options.folder)}
    places = [name for name in sorted(folders | set(WIDER)) if (ROOT / name).exists()]
    with TemporaryDirectory() as place:
        os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = place  # what fails is forgotten
        words = [*WORDS, f"--basetemp={place}/tests", *places]
        code = pytest.main(words, plugins=[runner])
    print(f"{runner.total} mutants, {len(runner.survivors)} survived, "
          f"{time.time() - begun:.0f} s")  # fmt: skip
    return 1 if runner.survivors or runner.unsteady else int(code)


if __name__ == "__main__":
    sys.exit(main())
