"""The names of docs/METRICS.md, and the names of metrics that stand in the sources."""

import ast
import functools
import re
from collections.abc import Iterable

from strop.catalogue.entries import Entry
from strop.support.about import PARTS, SOURCE

PAGE = SOURCE.parents[1] / "docs" / "METRICS.md"
METRIC = re.compile(r"[a-z][a-z_]*(/[a-z_{}]+)+")
HOLE = "{x}"  # what is put into a name only when it runs


def keys_of(text: str) -> list[str]:
    """The keys in the first column of every table with a formula."""
    found = []
    for table in re.findall(r"\| key \| formula .*?\n\n", text + "\n\n", re.S):
        found += re.findall(r"^\| `([^`]+)` \|", table, re.M)
    return found


def pattern_of(key: str) -> re.Pattern[str]:
    """`rewards/{name}/mean` as a pattern; keys of evaluations also with their intervals' ends."""
    plain = re.sub(r"\\{(\w+)\\}", lambda m: r"\d+" if m[1] == "k" else r"[^/]+", re.escape(key))
    return re.compile(plain + ("(/low|/high)?" if key.startswith("eval/") else ""))


def in_runs(text: str) -> list[str]:
    """The keys that a run logs: all but those of `strop eval` alone."""
    return keys_of(text.split("`strop eval` prints")[0])


def undocumented(keys: Iterable[str]) -> list[str]:
    """The keys of a run's line that the page does not explain."""
    patterns = [pattern_of(key) for key in in_runs(PAGE.read_text(encoding="utf-8"))]
    return [k for k in keys if k != "step" and not any(p.fullmatch(k) for p in patterns)]


@functools.cache
def metrics_in(text: str) -> set[str]:
    """Every text in a source that has the form of a metric's name, with a hole for what varies."""
    tree = ast.parse(text)
    joined = [node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)]
    inner = {id(value) for node in joined for value in node.values}
    found = {"".join(map(_text, node.values)) for node in joined}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inner:
            found.add(node.value)
    return {text for text in found if METRIC.fullmatch(text)}


def _text(value: ast.expr) -> str:
    return str(value.value) if isinstance(value, ast.Constant) else HOLE


def metrics_of(entry: Entry) -> set[str]:
    """The metrics of a part: in its file, and in the helpers of its folder that it imports."""
    folder = PARTS / entry.folder
    text = (folder / f"{entry.name}.py").read_text(encoding="utf-8")
    top = entry.module.rpartition(".")[0]
    helpers = [
        node.module.rpartition(".")[2]
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{top}._")
    ]
    texts = [text, *((folder / f"{name}.py").read_text(encoding="utf-8") for name in helpers)]
    return set().union(*map(metrics_in, texts))


def same_metric(written: str, key: str) -> bool:
    """Whether a name in a source, holes and all, is the one that the page calls `key`."""
    filled = re.escape(written).replace(re.escape(HOLE), r"[^/]+")
    return bool(re.fullmatch(filled, key) or pattern_of(key).fullmatch(written))
