"""The names of docs/METRICS.md, compared with those in the sources."""

import functools
import re
from collections.abc import Iterable

from strop.support.about import SOURCE

PAGE = SOURCE.parents[1] / "docs" / "METRICS.md"


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
    explained = any_of(PAGE.read_text(encoding="utf-8"))
    return [k for k in keys if k != "step" and not explained.fullmatch(k)]


@functools.cache
def any_of(text: str) -> re.Pattern[str]:
    """All keys that a run logs as one pattern."""
    return re.compile("|".join(f"(?:{pattern_of(key).pattern})" for key in in_runs(text)))


def same_metric(written: str, key: str) -> bool:
    """Whether a name in a source, holes and all, is the one that the page calls `key`."""
    return bool(pattern_in(written).fullmatch(key) or pattern_of(key).fullmatch(written))


def pattern_in(written: str) -> re.Pattern[str]:
    """A name in a source as a pattern: `bins/loss_{b}` is any that begins so."""
    return re.compile(re.sub(r"\\\{\w+\\\}", r"[^/]+", re.escape(written)))
