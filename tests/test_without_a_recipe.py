"""docs/WITHOUT_A_RECIPE.md: the code that it names for an idea exists, and no idea has a recipe."""

import re
from pathlib import Path

import pytest

from strop.catalogue import catalogue
from strop.support.loading import attribute

PAGE = (Path(__file__).parents[1] / "docs/WITHOUT_A_RECIPE.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| (`.+?) \| (none|\d{4}\.\d{4,5}) \| (.+) \|$", PAGE, re.M)
NAMED = sorted({name for row in ROWS for name in re.findall(r"`(labs/[\w.]+|[\w.:]+)`", row[2])})
LABS = Path(__file__).parents[1] / "labs"


def names_of(kind: str) -> set[str]:
    listed = catalogue.recipes() if kind == "recipe" else catalogue.parts()
    return {entry.name for entry in listed}


def test_an_idea_stands_there_once_and_is_no_recipe() -> None:
    ideas = [name for row in ROWS for name in re.findall(r"`(\w+)`", row[0])]
    assert len(ideas) == 59
    assert len(set(ideas)) == 59
    assert not names_of("recipe") & set(ideas)
    assert len(ROWS) == PAGE.count("\n| `")  # every row was read


@pytest.mark.parametrize("name", NAMED)
def test_what_has_it_is_there(name: str) -> None:
    if name.startswith("labs/"):
        assert (LABS.parent / name).is_file()
    elif ":" in name:
        assert callable(attribute(name))
    else:
        assert name in names_of("recipe") | names_of("part")


def test_every_laboratory_has_a_section_and_a_line_in_the_table() -> None:
    page = (LABS.parent / "docs/LABS.md").read_text(encoding="utf-8")
    for path in LABS.glob("*.py"):
        assert f"\n| [`{path.stem}`](#{path.stem}) |" in page
        assert f"\n## {path.stem}\n" in page
