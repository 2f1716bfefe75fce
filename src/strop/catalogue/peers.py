"""Translates words of TRL and verl to ours.

The two tables of docs/COMING_FROM_TRL_AND_VERL.md are in `assets/peers.md`: ours, TRL's, verl's.
Messages about an unknown option, parameter or recipe use the same rows.
"""

import functools
import re
from collections.abc import Iterable
from difflib import get_close_matches
from importlib.resources import files

from strop.support.errors import nearest

WHOLE = 4  # fit of a word that is the whole name of a peer's option
NEARLY = 0.85  # likeness from which a word counts as a misspelled one of ours
MOST = 3  # options that a message names
FIRST = 8  # options of a section that a message names
_ASIDE = re.compile(r" \([^)]*\)")  # a default or a remark
_NAME = re.compile(r"[A-Za-z][\w.]*")


@functools.cache
def table(name: str) -> str:
    """The table "options" or "methods" as Markdown."""
    text = (files("strop.assets") / "peers.md").read_text(encoding="utf-8")
    return text.split(f"# {name}\n")[1].split("\n# ")[0].strip()


def hint(word: str, known: Iterable[str]) -> str:
    """A hint about an unknown option: our option for a peer's, those of a section of this name,
    ours that is spelled nearly so, ours for the end of a peer's name, the nearest known names, or
    all names of its section.
    """
    known = list(known)
    near = ours(word, least=WHOLE) or _inside(word, known) or _nearly_ours(word, known)
    return near or ours(word) or _of_section(word, known) or nearest(word, known)


def _inside(section: str, known: list[str]) -> str:
    """The first options of a section that is written without one of them; empty for others."""
    names = [name for name in known if name.startswith(f"{section}.")]
    more = f" and {len(names) - FIRST} more" if len(names) > FIRST else ""
    return f": it is a section, with {', '.join(names[:FIRST])}{more}" if names else ""


def _of_section(word: str, known: list[str]) -> str:
    """The nearest names of the section that the word names, or all of them; empty for none."""
    section, _, last = word.rpartition(".")
    ends = {name: name.rpartition(".")[2] for name in known if name.startswith(f"{section}.")}
    close = [name for name, end in ends.items() if nearest(last, [end])]
    return nearest(word, close) or (f"; {section} has {', '.join(ends.values())}" if ends else "")


def _nearly_ours(word: str, known: Iterable[str]) -> str:
    """The words ", did you mean ...?" for options with nearly this spelling; for a word without a
    section, only the options' last names are compared.
    """
    names = list(dict.fromkeys([*known, *_common()]))
    if "." in word:
        close = [name for name in get_close_matches(word, names, cutoff=NEARLY) if name != word]
    else:
        ends = {name: name.rpartition(".")[2] for name in names}
        nearly = get_close_matches(word, ends.values(), n=1, cutoff=NEARLY)
        close = [name for name in names if ends[name] in nearly][:MOST]
    return f", did you mean {' or '.join(close)}?" if close else ""


@functools.cache
def _common() -> tuple[str, ...]:
    """Our options that the table names first in a row, including those of stages."""
    first = (_NAME.match(mine) for mine, _ in _rows("options"))
    return tuple(name[0] for name in first if name is not None and "." in name[0])


def ours(word: str, kind: str = "options", least: int = 1) -> str:
    """The words ": what TRL or verl call beta is here ..."; empty for a word that no peer has, and
    for one that fits less than `least` (see `_fit`).

    A Python keyword arrives with a dot for its first underscore: `loss.type` is `loss_type`.
    """
    word = word.lstrip("-").replace("-", "_")
    for each in (word, word.replace(".", "_")):
        fits = [(m, [_fit(each.lower(), names) for names in theirs]) for m, theirs in _rows(kind)]
        best = max((fit for _, both in fits for fit in both), default=0)
        if best >= least:
            spelled = ", or ".join(mine for mine, both in fits if best in both)
            return f": what TRL or verl call {each} is here {spelled}"
    return ""


def of_loss_type(value: str) -> str:
    """Our recipe whose loss TRL calls by this `loss_type`; empty where the table has none."""
    for line in table("methods").splitlines()[2:]:
        mine, *theirs = line.strip("| ").split(" | ")
        if any(f'`loss_type="{value}"`' in cell for cell in theirs):
            return mine.strip("`")
    return ""


def _fit(word: str, names: tuple[str, ...]) -> int:
    """How well a word fits a peer's names, or the end of one (`batch_size`, `rollout.n`); 0: not at
    all. The first name of a row is its main one.
    """
    whole = [word == name or word.endswith(f".{name}") for name in names]
    ending = [name.endswith(f".{word}") for name in names]
    if any(whole):
        return WHOLE + 1 if whole[0] else WHOLE
    if any(ending):
        return 3 if ending[0] else 2
    return int("_" in word and names[:1] != () and names[0].endswith(f"_{word}"))


@functools.cache
def _rows(kind: str) -> tuple[tuple[str, tuple[tuple[str, ...], ...]], ...]:
    """Our text of each row, and the names of TRL and verl for it, in lower case."""
    found = []
    for line in table(kind).splitlines()[2:]:
        mine, *theirs = (_ASIDE.sub("", cell.strip()) for cell in line.strip("| ").split(" | "))
        found.append((mine.replace("`", ""), tuple(map(_names, theirs))))
    return tuple(found)


def _names(cell: str) -> tuple[str, ...]:
    """The names in backticks, without the values that they are set to."""
    words = (text.partition("=")[0] for text in re.findall(r"`([^`]+)`", cell))
    return tuple(word.lower() for word in words if _NAME.fullmatch(word))
