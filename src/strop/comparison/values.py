"""The values of a sweep: grids, equal factors, random draws; the settings that tuning tries."""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from strop.support.errors import UserError

SPREAD = re.compile(r"\s*([A-Za-z_][\w.]*)\s*=\s*(grid|log|random)\((.*)\)\s*", re.S)
END = r"([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)"  # a number: paths may have `..` too
RANGE = re.compile(rf"\s*([A-Za-z_][\w.]*)\s*=\s*{END}\.\.{END}(\s*,\s*log)?\s*")
Values = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Spread:
    """An option and the values that it takes, as text. drawn: whether at random."""

    name: str
    values: tuple[str, ...]
    drawn: bool


def spread(text: str, seed: int = 0) -> Spread | None:
    """An option's values from `name=grid(...)`, `log(...)` or `random(...)`; None for other text.

    seed: of random draws; two options have different draws. Raises UserError.
    """
    found = SPREAD.fullmatch(text)
    if found is None:
        return None
    name, kind, inside = found.groups()
    pieces = pieces_of(inside, lambda at: inside[at] == ",")
    if kind == "grid":
        if not pieces or "" in pieces:
            raise UserError(f"{name}=grid takes values with commas between them, not {inside!r}")
        return Spread(name, tuple(dict.fromkeys(pieces)), False)
    in_logs = kind == "log"
    if kind == "random" and pieces[3:] == ["log"]:
        pieces, in_logs = pieces[:3], True
    low, high, count = _range(f"{name}={kind}", pieces, in_logs)
    if kind == "random":
        share = np.random.default_rng([seed, *name.encode()]).random(count)
    else:
        share = np.linspace(0, 1, count)
    shown = _between(low, high, in_logs, share, pieces)
    return Spread(
        name, tuple(shown if kind == "random" else dict.fromkeys(shown)), kind == "random"
    )


def combinations(spreads: Sequence[Spread], given: Iterable[str] = ()) -> list[Values]:
    """Every combination of the grids, with each draw of the random options; duplicates count once.

    Random options are drawn together, so they need one count. given: names of options that have
    one value, which none of these may be. Raises UserError.
    """
    if not spreads:
        raise UserError(
            "nothing is swept: give an option values, such as training.lr=grid(1e-4,3e-4,1e-3)"
        )
    names, given = [each.name for each in spreads], {*given}
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"{name} is swept twice: give all its values in one")
        if name in given:
            raise UserError(f"{name} is swept and has one value too: leave that one out")
    drawn = [each for each in spreads if each.drawn]
    if len({len(each.values) for each in drawn}) > 1:
        counts = ", ".join(f"{each.name} {len(each.values)}" for each in drawn)
        raise UserError(f"random options are drawn together and need one count, not {counts}")
    together = list(zip(*(each.values for each in drawn), strict=True)) if drawn else [()]
    fixed = [each for each in spreads if not each.drawn]
    found = []
    for row in product(*(each.values for each in fixed)):
        for draw in together:
            given = {**_named(fixed, row), **_named(drawn, draw)}
            found.append(tuple((name, given[name]) for name in names))
    return list(dict.fromkeys(found))


def label_of_values(values: Values) -> str:
    """The name of a combination in tables."""
    return " ".join(f"{name}={value}" for name, value in values)


def is_range(text: str) -> bool:
    """Whether a word gives an option a range, as `training.lr=1e-4..1e-3,log`."""
    return RANGE.fullmatch(text) is not None


def settings_in(ranges: Sequence[str], count: int) -> list[Values]:
    """`count` settings inside ranges, each `name=LOW..HIGH` or `name=LOW..HIGH,log`.

    A Latin hypercube: the range of each option is cut into `count` equal pieces, in the logarithm
    with `log`, and the middle of each piece is taken once, in the option's own order. A name
    always has the same order, so that methods which share a range try the same values of it.
    Source: McKay, Beckman and Conover, Technometrics 21 (1979). Raises UserError.
    """
    columns = []
    for text in ranges:
        found = RANGE.fullmatch(text)
        assert found is not None
        name, *pieces, log = found.groups()
        low, high, _ = _range(f"{name}=LOW..HIGH", [*pieces, str(count)], bool(log))
        order = np.random.default_rng([*name.encode()]).permutation(count)
        shown = _between(low, high, bool(log), (order + 0.5) / count, pieces)
        columns.append([(name, value) for value in shown])
    names = [column[0][0] for column in columns]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"{name} has two ranges: give it one")
    rows = list(zip(*columns, strict=True))
    if len(set(rows)) < count:
        raise UserError(
            f"{' '.join(ranges)} holds fewer than {count} settings: widen it, or tune fewer"
        )
    return rows


def _between(
    low: float, high: float, in_logs: bool, share: Any, bounds: Sequence[str]
) -> list[str]:
    """Numbers at shares of the way between two; whole where both bounds are whole, else with as
    many digits, three or more, as keep them inside the bounds and apart.
    """
    numbers = low * (high / low) ** share if in_logs else low + (high - low) * share
    numbers = np.clip(numbers, low, high)  # rounding may pass a bound
    if all(re.fullmatch(r"[+-]?\d+", piece) for piece in bounds[:2]):
        return [f"{x:.0f}" for x in numbers]
    for digits in range(3, 18):
        shown = [f"{x:.{digits}g}" for x in numbers]
        inside = all(low <= float(text) <= high for text in shown)
        if inside and len({*shown}) == len({*numbers.tolist()}):
            break
    return shown


def _named(spreads: Iterable[Spread], values: Iterable[str]) -> dict[str, str]:
    return {each.name: value for each, value in zip(spreads, values, strict=True)}


def _range(where: str, pieces: Sequence[str], in_logs: bool) -> tuple[float, float, int]:
    try:
        low, high, count = float(pieces[0]), float(pieces[1]), int(pieces[2])
        if len(pieces) > 3:
            raise ValueError
    except (ValueError, IndexError):
        raise UserError(
            f"{where} takes LOW, HIGH and how many, such as {where}(1e-5,1e-3,4), not "
            f"{', '.join(pieces)!r}"
        ) from None
    if not (math.isfinite(low) and math.isfinite(high) and low < high and count >= 1):
        raise UserError(f"{where}: LOW must be below HIGH, and the count 1 or more")
    if in_logs and low <= 0:
        raise UserError(f"{where}: equal factors need LOW above 0")
    return low, high, count


def pieces_of(text: str, parts_at: Callable[[int], object]) -> list[str]:
    """The pieces of a text that is split at positions outside brackets and quotation marks."""
    pieces, depth, quote = [""], 0, ""
    for at, sign in enumerate(text):
        if quote or sign in "'\"":
            quote = "" if sign == quote else quote or sign
        elif depth == 0 and parts_at(at):
            pieces.append("")
            continue
        else:
            depth += (sign in "([{") - (sign in ")]}")
        pieces[-1] += sign
    return [piece.strip() for piece in pieces]
