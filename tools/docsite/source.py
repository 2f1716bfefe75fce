"""The folder that the generator reads: docs/ as it is, and beside it what only the site has."""

import re
import shutil
from pathlib import Path
from typing import Any

from docsite import notebooks, pages

ROOT = Path(__file__).parents[2]
COPIED = ("CONTRIBUTING.md", "CHANGELOG.md")


def write(folder: Path) -> list[Any]:
    """Write all pages into a new folder; returns the navigation."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "docs", folder / "docs", ignore=shutil.ignore_patterns("*.ipynb"))
    for name in COPIED:
        shutil.copy(ROOT / name, folder / name)
    for notebook in sorted((ROOT / "docs/notebooks").glob("*.ipynb")):
        text, pictures = notebooks.page(notebook)
        (folder / f"docs/notebooks/{notebook.stem}.md").write_text(text, encoding="utf-8")
        for name, picture in pictures.items():
            (folder / f"docs/notebooks/{name}").write_text(picture, encoding="utf-8")
    for path in folder.rglob("*.md"):
        path.write_text(_of_the_site(path.read_text(encoding="utf-8")), encoding="utf-8")
    (folder / "index.md").write_text("# strop\n", encoding="utf-8")
    return [
        {"Home": "index.md"},
        *({head: [f"docs/{name}" for name in names]} for head, names in pages.WRITTEN.items()),
        {"Contribute": list(COPIED)},
    ]


def _of_the_site(text: str) -> str:
    """Links to what has another name here: the repository's first page, and notebooks."""
    text = re.sub(r"\]\(\.\./README\.md\)", "](../index.md)", text)
    return re.sub(r"(\]\(notebooks/\w+)\.ipynb\)", r"\1.md)", text)
