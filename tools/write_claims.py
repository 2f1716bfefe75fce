"""Write docs/CLAIMS.md: what papers claim of their methods, and what small experiments show.

    strop reproduce all --csv src/strop/assets/claims.csv
    python tools/write_claims.py

The first line runs the experiments, for hours, and resumes where it was stopped; RECIPE or
RECIPE/CLAIM in place of `all` runs some of them. The second takes seconds.
"""

import argparse
import math
from collections import Counter
from pathlib import Path

from strop.comparison.claims import Claim, claims, difference, results
from strop.comparison.verdict import LEVEL, holm
from strop.support.students_t import central_probability, t_quantile

PAGE = Path(__file__).parents[1] / "docs" / "CLAIMS.md"
HEADER = """# What papers claim, tested in small experiments

    strop reproduce                 # all claims, in a sentence each
    strop reproduce clip_cov        # runs those of a recipe; clip_cov/entropy: one of them

**What this page does not show.** The models are the shipped ones, of 0.33 and 1.1 million weights,
on arithmetic puzzles and corridors, for some dozens of steps. A claim that holds here has held at
this scale. One that does not show may need a larger model, longer answers or more steps, which
nobody has tried. An experiment takes a recipe's defaults except for what its row says, and tunes
neither side. A verdict on runs rests on one number, which was chosen before them. An enumerated
number is that of one setting, of small trees; another setting can give another number.

An experiment compares two methods on equal seeds (of runs) or on equal trees and policies (of
numbers that begin with `audit/`, which `strop audit` [enumerates](AUDIT.md)). *Holds*: the interval
of the paired difference excludes 0 on the expected side, as
[compare](COMPARE.md#what-is-decided-and-how) decides; for "equal", the whole interval lies within
the stated distance. *Opposite*: it excludes 0 on the other side. *Not decided*: the interval
has values of both sides. *Resolves* is the difference that so many seeds find in 8 of 10 such
experiments; a smaller true difference can have been missed.

"""
NOTE = "Written by `python tools/write_claims.py` from src/strop/assets/claims.toml and .csv.\n"
PLURAL = {"holds": "hold", "opposite": "show the opposite", "not decided": "are not decided"}


def found(claim: Claim) -> str:
    """The result for a claim, as a table cell."""
    row = results().get(claim.id)
    if row is None:
        return "not run yet"
    what = "trees" if claim.audited else "seeds"
    numbers = f"{float(row['ours']):.3g} and {float(row['theirs']):.3g}"
    resolves = float(row["resolves"])
    return (
        f"{numbers}; {difference(row)}, {row['seeds']} {what}"
        f"{f', resolves {resolves:.2g}' if math.isfinite(resolves) else ''}; {row['date']}"
    )


def together() -> str:
    """How many decided claims stay decided when all that were tested are taken together."""
    decided, p_values = [], list[float]()
    bounds = {claim.id: claim.within for claim in claims()}
    for name, row in results().items():
        value, low, high = (float(row[key]) for key in ("difference", "low", "high"))
        df, half = int(row["seeds"]) - 1, (high - low) / 2
        away = abs(abs(value) - bounds[name])  # from 0, or from the distance that counts as equal
        t = math.inf if away else 0.0  # the same for all seeds: nothing is left to chance
        if half > 1e-9 * abs(value):
            t = away / half * t_quantile(0.975, df)
        p_values.append(1 - central_probability(math.atan(t / df**0.5), df))
        decided.append(row["verdict"] != "not decided")
    kept = sum(each and p < LEVEL for each, p in zip(decided, holm(p_values), strict=True))
    return (
        f"A verdict is of one claim alone: of {len(decided)} differences that are chance about "
        f"{LEVEL * len(decided):.0f} would be decided. By Holm's correction over all of them "
        f"{kept} of the {sum(decided)} decided ones stay so.\n"
    )


def page() -> str:
    """The page's text."""
    tested = [claim for claim in claims() if not claim.untestable]
    counts = Counter(row["verdict"] for row in results().values())
    told = ", ".join(f"{counts[verdict]} {text}" for verdict, text in PLURAL.items())
    lines = [
        f"{len(tested)} of {len(claims())} claims can be tested; {sum(counts.values())} were: "
        f"{told}. {together()}",
        "| claim | says | expected | found | verdict |", "| --- | --- | --- | --- | --- |",
    ]  # fmt: skip
    for claim in sorted(tested, key=lambda claim: claim.id):
        verdict = results().get(claim.id, {}).get("verdict", "")
        ours, theirs = (f"`{label}`" for label in claim.labels)
        than = f"within {claim.within:g} of" if claim.expect == "equal" else f"{claim.expect} than"
        expected = f"{claim.number} of {ours} {than} {theirs}"
        says = f"{claim.text} ({claim.source})"
        lines.append(f"| `{claim.id}` | {says} | {expected} | {found(claim)} | {verdict} |")
    lines += ["\n## Not testable here\n", "| claim | says | why |", "| --- | --- | --- |"]
    lines += [
        f"| `{claim.id}` | {claim.text} ({claim.source}) | {claim.untestable} |"
        for claim in sorted(claims(), key=lambda claim: claim.id)
        if claim.untestable
    ]
    return HEADER + NOTE + "\n" + "\n".join(lines) + "\n"


if __name__ == "__main__":
    argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0]).parse_args()
    PAGE.write_text(page(), encoding="utf-8")
