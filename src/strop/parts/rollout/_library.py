"""Functions that a policy wrote, kept over steps: searched, counted, pruned and merged.

A library is a plain dict, name -> function, as it is part of a part's state: text, freq (rollouts
that were shown it), utility (of these, those that succeeded), lifts, lift and square (number, sum
and sum of squares of outcome less expected success), step and version (of the weights) that wrote
it.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from strop.environments.tool_box import Corpus

PYTHON = r"(?m)^def (?P<name>\w+)\(.*\n(?:[ \t]+.*(?:\n|$)|[ \t]*\n)*"
HEAD = re.compile(r'def [^\n]*\n(?:[ \t]*("""|\'\'\').*?\1)?', re.DOTALL)

Library = dict[str, dict[str, Any]]


def skills_in(text: str, skill: str = PYTHON) -> dict[str, str]:
    """The skills that a text defines, by name."""
    return {match["name"]: match[0] for match in re.finditer(skill, text)}


def calls(text: str, name: str, call: str = "{name}(") -> bool:
    """Whether the call of a skill stands in the text, not as the end of a longer word."""
    return bool(re.search(r"(?<!\w)" + re.escape(call.replace("{name}", name)), text))


def head_of(code: str) -> str:
    """A function's signature and docstring."""
    found = HEAD.match(code)
    return found[0].rstrip() if found else code


def whole(name: str, known: Mapping[str, str]) -> str:
    """The code of a function behind that of the functions it calls, directly or not."""
    needed = [name]
    for each in needed:
        needed += [n for n in known if n not in needed and calls(known[each], n)]
    return "\n".join(known[each].rstrip() for each in reversed(needed)) + "\n"


def nearest(library: Library, query: str, top: int) -> list[str]:
    """The names of the functions that fit a text best, by BM25 over name, docstring and source.

    Functions without a word of the query are not among them. Raises UserError without bm25s.
    """
    names, words = sorted(library), _words(query)
    if not names or not words:
        return []
    corpus = Corpus([" ".join(_words(library[name]["text"])) for name in names], top)
    return [names[at] for at in corpus.places(" ".join(words))]


def _words(text: str) -> list[str]:
    """Lower-case words of two characters or more; a name in snake case is split."""
    return re.findall(r"[^\W_]{2,}", text.lower())


def add(library: Library, name: str, text: str, step: int, version: int) -> None:
    """Add a function that was written. Where one of the same words is there already, only the
    shorter text is kept (the naive merge of Yunjue Agent).
    """
    key = sorted(name.split("_"))
    same = next((n for n in library if sorted(n.split("_")) == key), None)
    if same is None:
        numbers = dict.fromkeys(("freq", "utility", "lifts"), 0) | {"lift": 0.0, "square": 0.0}
        library[name] = {"text": text, "step": step, "version": version, **numbers}
    elif len(text) < len(library[same]["text"]):
        library[name] = library.pop(same) | {"text": text, "step": step, "version": version}


def count(library: Library, shown: Sequence[str], outcome: float, expected: float | None) -> None:
    """Count the outcome of a rollout that was shown these functions. expected: mean of the prompt's
    earlier outcomes; None: it had none, so no lift is counted.
    """
    for each in (library[name] for name in shown if name in library):
        each["freq"] += 1
        each["utility"] += int(outcome >= 1)
        if expected is not None:
            gain = outcome - expected
            each["lifts"] += 1
            each["lift"] += gain
            each["square"] += gain**2


def is_useless(each: Mapping[str, Any], rule: str, least: int, share: float) -> bool:
    """Whether a function is to be dropped.

    utility (as ReMe): freq >= least and utility / freq < share. lift: over `least` lifts or more
    their mean is below 0 by more than its standard error. none: never.
    """
    if rule == "utility":
        return bool(each["freq"] >= least and each["utility"] < share * each["freq"])
    num = each["lifts"]
    if rule == "none" or num < max(least, 2):
        return False
    mean = each["lift"] / num
    error = math.sqrt(max(each["square"] / num - mean**2, 0.0) / (num - 1))
    return bool(mean < -error)
