"""Executed notebooks as pages: their text, their code and its outputs."""

import html
import json
import re
from pathlib import Path
from typing import Any


def page(notebook: Path) -> tuple[str, dict[str, str]]:
    """The text of a page in Markdown, and its pictures by file name."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    pieces: list[str] = []
    pictures: dict[str, str] = {}
    for cell in cells:
        text = _joined(cell["source"])
        if cell["cell_type"] == "markdown":
            pieces.append(text)
            continue
        pieces.append(f"```python\n{text}\n```")
        for output in cell["outputs"]:
            data = output.get("data", {})
            if "image/svg+xml" in data:
                name = f"{notebook.stem}_{len(pictures)}.svg"
                pictures[name] = _joined(data["image/svg+xml"])
                pieces.append(f"![{_named(text)}]({name}){{ .output }}")
            else:
                pieces.append(f'<div class="output" markdown="0">{_shown(output)}</div>')
    return "\n\n".join(pieces) + "\n", pictures


def _joined(text: Any) -> str:
    return text if isinstance(text, str) else "".join(text)


def _named(code: str) -> str:
    """The alternative text of a picture: the call that drew it."""
    return re.sub(r"[\[\]\"]", "", code.strip().splitlines()[-1])


def _shown(output: dict[str, Any]) -> str:
    """An output as HTML. Raises ValueError for a kind that no page can show."""
    data = output.get("data", {})
    if output["output_type"] == "stream":
        return f"<pre>{html.escape(_joined(output['text']).strip())}</pre>"
    if "text/html" in data:
        found = re.sub(r"<style.*?</style>", "", _joined(data["text/html"]), flags=re.S)
        return re.sub(r"\n\s*", "", found) if "<pre" not in found else found.strip()
    if "text/plain" in data:
        return f"<pre>{html.escape(_joined(data['text/plain']))}</pre>"
    raise ValueError(f"an output of the kind {output['output_type']} with {sorted(data)}")
