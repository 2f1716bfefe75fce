"""`strop.reproduce`: tests papers' claims about their methods in small experiments."""

import dataclasses
import datetime
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from strop.api import tables
from strop.api.arguments import checked
from strop.api.folders import path_of
from strop.api.messages import messages_in_python
from strop.api.options import settings_of
from strop.api.tables import Table
from strop.auditing.estimate import Limits
from strop.auditing.vary import Setting, one
from strop.comparison.carry_out import carry_out
from strop.comparison.claims import AUDIT, MEANINGS, Claim, Verdict, claims_of
from strop.comparison.plan import Candidate, plan_of
from strop.comparison.scores import by_metric
from strop.comparison.verdict import Compared, judge
from strop.support.about import VERSION
from strop.support.errors import UserError
from strop.support.output import plain_console
from strop.training.settings.config import RunConfig

LIMITS = Limits(most=1500, draws=1000)


@dataclass(frozen=True)
class Outcome:
    """A claim and its result; ours and theirs: means over the seeds, and their difference."""

    claim: Claim
    verdict: Verdict
    ours: Compared | None = None
    theirs: Compared | None = None
    date: str = ""

    def row(self) -> dict[str, str | float | int]:
        """The record of this outcome."""
        claim = self.claim
        found: dict[str, str | float | int] = {
            "claim": claim.id, "text": claim.text, "source": claim.source, "verdict": self.verdict,
        }  # fmt: skip
        if self.ours is None or self.theirs is None or self.ours.difference is None:
            return {**found, "why": claim.untestable}
        gap = self.ours.difference
        numbers = {
            "ours": self.ours.mean.value, "theirs": self.theirs.mean.value, "difference": gap.value,
            "low": gap.low, "high": gap.high, "resolves": self.ours.resolves,
        }  # fmt: skip
        return {
            **found, "number": claim.number, "expected": claim.expect, **numbers,
            "seeds": gap.n_seeds, "date": self.date, "version": VERSION,
        }  # fmt: skip

    def lines(self) -> list[str]:
        """The printed lines of this outcome."""
        claim, head = self.claim, f"{self.claim.id}: {MEANINGS[self.verdict]}"
        lines = [head, f"  {claim.text} ({claim.source})"]
        if self.ours is None or self.theirs is None or self.ours.difference is None:
            return [*lines, f"  {claim.untestable}"]
        gap, what = self.ours.difference, "trees" if claim.audited else "seeds"
        lines.append(f"  expected: {claim.expected()}")
        known = math.isfinite(gap.low)
        limits = f"{gap.low:+.3g} to {gap.high:+.3g}" if known else "each time"
        lines.append(
            f"  found: {self.ours.mean.value:.4g} and {self.theirs.mean.value:.4g}, difference "
            f"{gap.value:+.3g} ({limits}, {gap.n_seeds} {what})"
        )
        # It is not finite where the difference is the same for all of them.
        if math.isfinite(self.ours.resolves) and self.verdict != "too few seeds":
            lines[-1] += f"; {self.ours.resolves:.2g} would be seen in 8 of 10 such experiments"
        return lines


@dataclass(frozen=True)
class Reproduced:
    """Claims with their results."""

    outcomes: tuple[Outcome, ...]

    @property
    def table(self) -> Table:
        """One row for each claim."""
        return tables.of_rows([outcome.row() for outcome in self.outcomes])

    def __repr__(self) -> str:
        return "\n\n".join("\n".join(each.lines()) for each in self.outcomes)


@checked
def reproduce(
    name: str,
    *,
    seeds: int = 0,
    steps: int = 0,
    jobs: int = 0,
    out: str | Path = "reproductions",
    progress: bool = True,
) -> Reproduced:
    """Run the experiments of a recipe's claims, or of one claim, and say what they show.

    name: a recipe, or RECIPE/CLAIM. seeds, steps: in place of the experiment's own (0). out: the
    folder for the comparison of each claim whose number comes from runs; the same call resumes it.
    Raises UserError, RunStopped where a run failed, and KeyboardInterrupt.
    """
    with messages_in_python():
        found = claims_of(name)
    place = path_of(out, "out")
    return Reproduced(tuple(outcomes(found, place, seeds, steps, jobs, progress)))


def outcomes(
    found: list[Claim], out: Path, seeds: int, steps: int, jobs: int, progress: bool
) -> Iterator[Outcome]:
    """The outcomes of the claims, one after the other. Raises UserError."""
    if seeds == 1:
        raise UserError("seeds is 1: a difference between seeds needs two or more, a verdict five")
    for name, number in (("seeds", seeds), ("steps", steps), ("jobs", jobs)):
        if number < 0:
            raise UserError(f"{name} is {number}: give 0 or more")
    if steps and found and all(claim.audited for claim in found):
        raise UserError(
            f"steps is {steps}: {found[0].id} is enumerated, not trained, and has no steps: leave "
            "them out"
        )
    for claim in found:
        given = dataclasses.replace(claim, seeds=seeds or claim.seeds, steps=steps or claim.steps)
        yield _outcome(given, out, jobs, progress)


def _outcome(claim: Claim, out: Path, jobs: int, progress: bool) -> Outcome:
    if claim.untestable:
        return Outcome(claim, "not testable")
    scores = _enumerated(claim) if claim.audited else _trained(claim, out, jobs, progress)
    rows = {row.label: row for row in judge({claim.number: scores}, claim.labels[1])}
    ours, theirs = (rows[label] for label in claim.labels)
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    return Outcome(claim, claim.verdict(ours), ours, theirs, today)


def _settings(claim: Claim, words: tuple[str, ...]) -> RunConfig:
    return settings_of([*words, *claim.options], {})


def _enumerated(claim: Claim) -> Mapping[str, Mapping[int, float]]:
    """A column of the audit by method and by the seed of tree and policy."""
    column, found = claim.number.removeprefix(AUDIT), dict[str, dict[int, float]]()
    for label, words in zip(claim.labels, (claim.ours, claim.theirs), strict=True):
        settings = _settings(claim, words)
        for shape in range(1, claim.seeds + 1):
            number = getattr(one(settings, Setting(**claim.at, shape=shape), LIMITS), column)
            found.setdefault(label, {})[shape] = getattr(number, "value", number)
    return found


def _trained(
    claim: Claim, out: Path, jobs: int, progress: bool
) -> Mapping[str, Mapping[int, float]]:
    """The claim's number in trained runs, by method and seed."""
    candidates = [
        Candidate(label, _settings(claim, words))
        for label, words in zip(claim.labels, (claim.ours, claim.theirs), strict=True)
    ]
    plan = plan_of(
        candidates, claim.scoring(), seeds=claim.seeds, steps=claim.steps, baseline=claim.labels[1]
    )
    folder = out / claim.id.replace("/", "-")
    plan.keep(folder)
    console = plain_console(soft_wrap=True, quiet=not progress)
    found = carry_out(plan, folder, jobs, console)
    found.check(f"look at {claim.id} again with the same out, {str(out)!r}")
    scores = by_metric(found.rows)
    by_method = scores.get(claim.number, {})
    if bare := [label for label in claim.labels if label not in by_method]:
        raise UserError(
            f"{claim.id}: the runs of {' and '.join(bare)} have no {claim.number}; the numbers of "
            f"this comparison are {', '.join(sorted(scores))}"
        )
    return by_method
