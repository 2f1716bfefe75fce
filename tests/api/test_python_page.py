"""The examples of docs/PYTHON.md print what it says, and the names that it mentions exist."""

import contextlib
import inspect
import io
import re
import runpy
from pathlib import Path
from typing import Any

import pytest
from short import lines

import strop

PAGE = (Path(__file__).parents[2] / "docs/PYTHON.md").read_text(encoding="utf-8")


def blocks(kind: str) -> dict[str, str]:
    return dict(re.findall(rf"<!-- {kind}: ([^>]+) -->\n```\w+\n(.*?)```", PAGE, re.S))


@pytest.mark.parametrize("name", sorted(blocks("file")))
def test_examples_print_what_the_page_shows(name: str, here: Path) -> None:
    script = here / name
    script.write_text(blocks("file")[name], encoding="utf-8")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        runpy.run_path(str(script), run_name="__main__")
    shown = blocks("output").get(name, "1 True\n2 True\nRun('runs/grpo-1': grpo, step 3/3)\n")
    assert printed.getvalue().endswith(shown)
    if name == "steps.py":
        assert [line["step"] for line in lines(here / "runs/grpo-1")] == [1, 2, 3]


def test_every_argument_of_train_has_its_line() -> None:
    table = PAGE.partition("## strop.train\n")[2].partition("Every other keyword")[0]
    told = set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|", table, re.M))))
    known: Any = inspect.signature(strop.train).parameters
    assert told == set(known) - {"options"}


def test_every_public_name_is_told() -> None:
    for name in strop.__all__:
        assert re.search(rf"\b{name}\b", PAGE), name
