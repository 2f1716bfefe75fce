"""Parts have tests at their place under tests/, or with the one recipe that uses them."""

import ast
import functools
from pathlib import Path

from every import every

from strop.catalogue import catalogue
from strop.catalogue.entries import Entry
from strop.support.about import SOURCE

TESTS = SOURCE.parents[1] / "tests"
ENTRIES = catalogue.parts()


def imported(path: Path) -> frozenset[str]:
    """All names that a file imports from somewhere."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    return frozenset(alias.name for node in nodes for alias in node.names)


@functools.cache
def imported_by_tests() -> dict[Path, frozenset[str]]:
    return {path: imported(path) for path in TESTS.rglob("test_*.py")}


@functools.cache
def imported_by_recipes() -> dict[str, frozenset[str]]:
    return {path.stem: imported(path) for path in (SOURCE / "recipes").glob("*.py")}


@functools.cache
def files_in(folder: Path) -> list[Path]:
    return [path for path in imported_by_tests() if path.parent == folder]


def places(entry: Entry) -> list[Path]:
    """The files of the part's own folder of tests that import it."""
    own = files_in(TESTS / "parts" / entry.folder)
    return [path for path in own if entry.attribute in imported_by_tests()[path]]


@every("entry", ENTRIES)
def test_a_part_is_tested_at_its_place_or_by_its_one_recipe(entry: Entry) -> None:
    """A file that several recipes share, `recipes/_base.py` say, is no recipe."""
    users = [name for name, names in imported_by_recipes().items() if entry.attribute in names]
    one_recipe = len(users) == 1 and not users[0].startswith("_")
    assert places(entry) or one_recipe, (
        f"add tests/parts/{entry.folder}/test_{entry.name}.py: "
        f"{', '.join(users) or 'no recipe'} uses it"
    )


def test_a_file_of_tests_with_a_parts_name_is_of_that_part() -> None:
    named: dict[str, list[Path]] = {}
    for path in imported_by_tests():
        named.setdefault(path.name, []).append(path)
    for entry in ENTRIES:
        found = named.get(f"test_{entry.name}.py", [])
        assert found == [path for path in places(entry) if path in found]
