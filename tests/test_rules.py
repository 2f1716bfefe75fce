"""The rules of CONTRIBUTING.md for every file; tests/every_part/ has those for parts."""

import ast
import functools
from pathlib import Path
from typing import NamedTuple

from strop.catalogue import catalogue
from strop.support.about import SOURCE

TOP = SOURCE.parents[1]
CODE = {
    path.relative_to(TOP): path.read_text(encoding="utf-8")
    for folder in ("src", "tools", "benchmarks", "labs")
    for path in sorted(TOP.glob(f"{folder}/**/*.py"))
}
TESTS = {
    path.relative_to(TOP): path.read_text(encoding="utf-8")
    for path in sorted((TOP / "tests").glob("**/*.py"))
}


class Seen(NamedTuple):
    """What the rules ask of a file."""

    functions: list[tuple[str, int]]  # every one's name and its lines, the docstring's too
    defined: set[str]  # names that it has: what it defines, assigns or imports, wherever it does
    swallowed: list[int]  # lines of handlers that name no exception, or do nothing about it
    words: set[str]  # texts of it that are one word


@functools.cache
def seen(text: str) -> Seen:
    """All of it, in one walk."""
    found = Seen([], set(), [], set())
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            found.functions.append((node.name, node.end_lineno - node.lineno + 1))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.defined.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.defined.add(node.id)
        elif isinstance(node, ast.alias):
            found.defined.add(node.asname or node.name)
        elif isinstance(node, ast.ExceptHandler) and (
            node.type is None or all(isinstance(each, ast.Pass) for each in node.body)
        ):
            found.swallowed.append(node.lineno)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.words.update({node.value} if node.value.isidentifier() else ())
    return found


def test_a_file_has_at_most_600_lines() -> None:
    assert len(CODE) > 300
    assert not [path for path, text in (CODE | TESTS).items() if len(text.splitlines()) > 600]


def test_a_function_has_at_most_60_lines() -> None:
    every = [(path, each) for path, text in CODE.items() for each in seen(text).functions]
    assert len(every) > 5000
    assert not [(path, each) for path, each in every if each[1] > 60]


def test_no_exception_is_swallowed() -> None:
    assert not [(path, at) for path, text in CODE.items() if (at := seen(text).swallowed)]


def test_lines_and_handlers_are_found() -> None:
    text = 'def f():\n    """One.\n\n    Two.\n    """\n    return 1\n'
    assert seen(text).functions == [("f", 6)]
    quiet = "try:\n    f()\nexcept ValueError:\n    pass\n"
    assert seen(quiet).swallowed == [3]
    assert seen(quiet.replace("ValueError", "")).swallowed == [3]
    assert seen(quiet.replace("pass", "raise SystemExit from None")).swallowed == []


def test_tools_and_benchmarks_import_what_is_there() -> None:
    """No other test runs most of them, so a move would break them unseen."""
    for path, text in CODE.items():
        if path.parts[0] == "src":
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("strop"):
                place = Path("src", *str(node.module).split("."))
                known = {one.stem for one in (TOP / place).glob("*")}  # modules of a package
                text = CODE.get(place.with_suffix(".py")) or CODE.get(place / "__init__.py", "")
                known |= seen(text).defined
                lacking = [each.name for each in node.names if each.name not in known]
                assert not lacking, f"{path}:{node.lineno}: {node.module} has no {lacking}"


def test_every_recipe_has_a_test() -> None:
    """Some test of tests/recipes/ imports it or calls it by its name."""
    said: set[str] = set()
    for path, text in TESTS.items():
        if path.match("tests/recipes/test_*.py"):
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.ImportFrom):
                    said |= {alias.name for alias in node.names}
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    said.add(node.value.partition("(")[0])
    assert {entry.name for entry in catalogue.recipes()} - said == set()


def test_no_recipe_is_named_outside_of_recipes() -> None:
    """Nothing does something else because a method has a certain name; the first one is grpo, and
    every run is compared with three (`relatives.py`).
    """
    names = {entry.name for entry in catalogue.recipes()}
    named = [
        (path, name)
        for path, text in CODE.items()
        if path.parts[0] == "src" and "recipes" not in path.parts
        for name in seen(text).words & names
    ]
    kept = {"config.py": {"grpo"}, "relatives.py": {"grpo", "rloo", "gae"}}
    assert [each for each in named if each[1] not in kept.get(each[0].name, ())] == []
    assert {name for _, name in named} == {"grpo", "rloo", "gae"}


def test_no_two_test_files_share_a_name() -> None:
    """pytest imports them by it."""
    names = [path.name for path in TESTS if path.name.startswith("test_")]
    assert len(names) == len(set(names))
