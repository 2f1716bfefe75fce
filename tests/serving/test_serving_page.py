"""The examples of docs/SERVING.md print what it says."""

import contextlib
import io
import runpy
from pathlib import Path

import pytest
from test_examples import blocks

PAGE = "docs/SERVING.md"


@pytest.mark.parametrize("name", ["ask.py", "parrot.py"])
def test_examples_print_what_the_page_shows(name: str, tmp_path: Path) -> None:
    script = tmp_path / name
    script.write_text(blocks(PAGE, "file")[name], encoding="utf-8")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        runpy.run_path(str(script), run_name="__main__")
    assert printed.getvalue().rstrip("\n") == blocks(PAGE, "output")[name].rstrip("\n")
