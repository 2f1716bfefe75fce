"""The site's source files, before the generator reads them."""

import json
from pathlib import Path

import pytest
from docsite import notebooks, pages

DOCS = Path(__file__).parents[2] / "docs"


def test_every_page_of_docs_has_one_place(tmp_path: Path) -> None:
    placed = [name for names in pages.placed(DOCS).values() for name in names]
    there = {str(p.relative_to(DOCS)) for p in DOCS.rglob("*.md") if p.parent.name != "methods"}
    there |= {str(p.relative_to(DOCS).with_suffix(".md")) for p in DOCS.rglob("*.ipynb")}
    assert sorted(placed) == sorted(there - {*pages.INDEXES})
    for name in ("NEW.md", "SCALE.md", "evidence/new.md", "methods/new.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    found = {head: names for head, names in pages.placed(tmp_path).items() if names}
    assert found == {"Guide": ["NEW.md"], "Scale": ["SCALE.md"], "Evidence": ["evidence/new.md"]}


def notebook(folder: Path, *outputs: dict[str, object]) -> Path:
    cells = [
        {"cell_type": "markdown", "source": ["# Title\n", "words"]},
        {"cell_type": "code", "source": "a = 1\na < 2", "outputs": list(outputs)},
    ]
    path = folder / "one.ipynb"
    path.write_text(json.dumps({"cells": cells}))
    return path


def test_a_notebook_keeps_code_tables_pictures_and_printed_lines(tmp_path: Path) -> None:
    shown = [
        {"output_type": "stream", "text": ["<step>\n"]},
        {"output_type": "execute_result", "data": {"text/plain": "True", "text/html": "<b>T</b>"}},
        {"output_type": "display_data", "data": {"image/svg+xml": "<svg/>", "text/plain": "p"}},
    ]
    text, pictures = notebooks.page(notebook(tmp_path, *shown))
    assert text.startswith("# Title\nwords\n\n```python\na = 1\na < 2\n```\n")
    assert "<pre>&lt;step&gt;</pre>" in text
    assert '<div class="output" markdown="0"><b>T</b></div>' in text
    assert "![a < 2](one_0.svg)" in text
    assert pictures == {"one_0.svg": "<svg/>"}


def test_an_output_that_no_page_can_show_is_refused(tmp_path: Path) -> None:
    odd = {"output_type": "display_data", "data": {"video/mp4": ""}}
    with pytest.raises(ValueError, match="video/mp4"):
        notebooks.page(notebook(tmp_path, odd))
