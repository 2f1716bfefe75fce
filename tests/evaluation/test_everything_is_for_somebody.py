"""Functions that strop does not call itself are for users, so a page documents each."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_a_function_that_strop_does_not_call_is_on_a_page():
    sources = {path: path.read_text() for path in (ROOT / "src" / "strop").rglob("*.py")}
    pages = "".join(path.read_text() for path in (ROOT / "docs").glob("*.md"))
    unread, counted = [], 0
    for path in sorted((ROOT / "src" / "strop" / "evaluation").glob("*.py")):
        for node in ast.parse(sources[path]).body:
            if not isinstance(node, ast.FunctionDef) or node.name.startswith("_"):
                continue
            counted += 1
            word = re.compile(rf"\b{node.name}\b")
            with_it = (t for other, t in sources.items() if other != path and node.name in t)
            called = any(map(word.search, with_it))
            if not called and not word.search(pages):
                unread.append(f"{path.stem}.{node.name}")
    assert counted > 20
    assert unread == []
