"""Claims of papers, each with an experiment that is small enough for a laptop.

`assets/claims.toml` has them by recipe. A claim says that a number of one method is higher or lower
than that of another, or that the two are equal within a bound. The number comes from runs (any
number of a comparison, see names.py) or, as "audit/NAME", from the enumeration of `strop audit` on
several trees and policies. A claim that cannot be tested here says why.
"""

import csv
import dataclasses
import functools
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any, Literal

from strop.comparison.plan import K_OF, Scoring
from strop.comparison.verdict import FEWEST_SEEDS, Compared
from strop.support.errors import UserError, nearest

Verdict = Literal["holds", "opposite", "not decided", "too few seeds", "not testable"]
AUDIT = "audit/"  # before a column of `strop audit`: the number is enumerated
EXPECTED = ("higher", "lower", "equal")
MEANINGS: Mapping[str, str] = {
    "holds": "seen here",
    "opposite": "does not hold at this scale: the opposite is seen",
    "not decided": "does not show at this scale",
    "too few seeds": f"fewer than {FEWEST_SEEDS} seeds decide nothing",
    "not testable": "not testable here",
}


@dataclass(frozen=True)
class Claim:
    """A paper's claim about a method, and how it is tested here.

    recipe: of the paper; name: among the recipe's claims; text: the claim in a sentence; source:
    its place in the paper. number: expected to be higher or lower for `ours` than for `theirs`, or
    equal `within` a bound; both are methods in words of `strop train`, and `options` apply to both.
    at: the setting of an audit. untestable: why it cannot be tested here, in place of all that.
    """

    recipe: str
    name: str
    text: str
    source: str
    number: str = ""
    expect: str = ""
    ours: tuple[str, ...] = ()
    theirs: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    steps: int = 100
    seeds: int = 10
    within: float = 0.0
    at: Mapping[str, Any] = field(default_factory=dict)
    untestable: str = ""

    def __post_init__(self) -> None:
        tested = (self.number, self.expect, self.ours, self.theirs)
        if any(tested) if self.untestable else not all(tested):
            raise UserError(
                f"{self.id}: give number, expect, ours and theirs, or say why it is untestable"
            )
        if not self.untestable and self.expect not in EXPECTED:
            raise UserError(f"{self.id}: expect is {self.expect!r}, not {', '.join(EXPECTED)}")
        if (self.expect == "equal") != (self.within > 0):
            raise UserError(f"{self.id}: `within` belongs to expect = 'equal', and only to that")

    @property
    def id(self) -> str:
        """Its name on the command line."""
        return f"{self.recipe}/{self.name}"

    @property
    def audited(self) -> bool:
        """Whether its number is enumerated."""
        return self.number.startswith(AUDIT)

    @property
    def labels(self) -> tuple[str, str]:
        """The labels of the two methods, one line each."""
        return " ".join(self.ours), " ".join(self.theirs)

    def scoring(self) -> Scoring:
        """A scoring of runs that includes the number."""
        wanted, mean = K_OF.fullmatch(self.number), self.number.removeprefix("mean/")
        ks = {1, int(wanted[1])} if wanted else {1}
        means = (mean,) if mean != self.number else ()
        return Scoring(ks=tuple(sorted(ks)), samples=max(16, *ks), means=means)

    def expected(self) -> str:
        """The expected result, in one line."""
        ours, theirs = self.labels
        if self.expect == "equal":
            return f"{self.number} of {ours} within {self.within:g} of that of {theirs}"
        return f"{self.number} of {ours} {self.expect} than of {theirs}"

    def verdict(self, found: Compared) -> Verdict:
        """The verdict of a comparison on the claim.

        equal: whether the interval of the difference lies inside -+ `within`, or outside of it. A
        number that is the same for all seeds has no interval; then the difference itself decides.
        """
        gap = found.difference
        assert gap is not None
        if gap.n_seeds < FEWEST_SEEDS:
            return "too few seeds"
        low, high = (gap.low, gap.high) if math.isfinite(gap.low) else (gap.value, gap.value)
        if self.expect == "equal":
            if -self.within <= low and high <= self.within:
                return "holds"
            return "opposite" if low > self.within or high < -self.within else "not decided"
        if found.verdict not in EXPECTED:
            return "not decided"
        return "holds" if found.verdict == self.expect else "opposite"


def _tables() -> dict[str, Any]:
    return tomllib.loads((files("strop.assets") / "claims.toml").read_text(encoding="utf-8"))


def shared_settings() -> Mapping[str, list[str]]:
    """The options of the settings that several experiments share, by name."""
    return _tables()["settings"]


@functools.cache
def claims() -> tuple[Claim, ...]:
    """All claims, by recipe. Raises UserError for an incomplete one."""
    known = {each.name for each in dataclasses.fields(Claim)} - {"recipe"}
    tables, found = _tables(), []
    settings = tables.pop("settings")
    for recipe, entries in tables.items():
        for entry in entries:
            shared = [word for name in entry.pop("on", ()) for word in settings[name]]
            entry["options"] = [*shared, *entry.get("options", ())]
            if unknown := sorted(entry.keys() - known):
                raise UserError(f"{recipe}: a claim has no {', '.join(unknown)}")
            several: dict[str, Any] = {
                k: tuple(v) if isinstance(v, list) else v for k, v in entry.items()
            }
            found.append(Claim(recipe=recipe, **several))
    return tuple(found)


def claims_of(name: str) -> list[Claim]:
    """The claims of a recipe, or the one named RECIPE/NAME. Raises UserError."""
    found = [claim for claim in claims() if name in (claim.recipe, claim.id)]
    if not found:
        names = sorted({word for claim in claims() for word in (claim.recipe, claim.id)})
        raise UserError(
            f"no claim of {name!r} is recorded{nearest(name, names)}; `strop reproduce` lists all"
        )
    return found


@functools.cache
def results() -> Mapping[str, Mapping[str, str]]:
    """Results of the experiments from `strop reproduce --csv`, by claim; claims.csv."""
    text = (files("strop.assets") / "claims.csv").read_text(encoding="utf-8")
    return {row["claim"]: row for row in csv.DictReader(text.splitlines())}


def difference(row: Mapping[str, str]) -> str:
    """The difference of a result with its interval, or in words where it is always the same."""
    value, low, high = (float(row[name]) for name in ("difference", "low", "high"))
    if math.isfinite(low) and math.isfinite(high):
        return f"{value:+.2g} ({low:+.2g} to {high:+.2g})"
    return f"{value:+.2g} each time" if value else "they are equal"


def summaries(recipe: str) -> list[str]:
    """One line for each claim of a recipe: its text, and the result here."""
    lines = []
    for claim in claims():
        if claim.recipe != recipe:
            continue
        found = claim.untestable
        if row := results().get(claim.id):
            found = f"{difference(row)} in {claim.number}, {row['date']}"
        verdict = row["verdict"] if row else "not testable here" if claim.untestable else "not run"
        lines.append(f"{claim.text} {verdict.capitalize()}{f': {found}' if found else ''}.")
    return lines
