"""Equal tuning: equally many settings of each method, chosen by validation and rerun to compare."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from strop.comparison.plan import Plan, Tuning
from strop.comparison.runs import Job
from strop.comparison.scores import EVALUATION, SETS, at_budget
from strop.comparison.values import Values, is_range, label_of_values, settings_in
from strop.evaluation.seeds import SeedEstimate, over_seeds, range_of
from strop.report.run_folder import Run, read_run
from strop.support.errors import UserError
from strop.support.tables import write_rows

NAME = "tuning.csv"
FIRST_SEED = 1000  # of the tuning runs; the seeds of the compared runs start at 0
Scores = Mapping[str, Mapping[int, float]]  # label -> seed -> score


class Tried(NamedTuple):
    """A setting of a method, its validation score in the tuning runs, and, for the chosen setting,
    its score in the compared runs.
    """

    of: str
    label: str
    score: SeedEstimate
    chosen: bool = False
    again: SeedEstimate | None = None


def tuning_of(num_settings: int, num_seeds: int, metric: str) -> Tuning | None:
    """How settings are chosen; None where none are tried. Raises UserError for choices then."""
    if num_settings:
        return Tuning(tuple(range(FIRST_SEED, FIRST_SEED + num_seeds)), metric)
    if (num_seeds, metric) != (1, "pass@1"):
        raise UserError(
            "--tune-seeds and --tune-by choose among tried settings: give --tune N too, or leave "
            "them out"
        )
    return None


def tried_settings(label: str, ranges: Sequence[str], count: int) -> list[tuple[str, Values]]:
    """Label and values of `count` settings of a method; the first is the method as written.

    Raises UserError for a method without a range, and for a range where nothing is tuned.
    """
    if count == 1:
        raise UserError("--tune 1 has nothing to choose from: give 2 settings or more")
    if not count:
        if ranges:
            raise UserError(
                f"{ranges[0].strip()} is a range: give --tune N too, how many settings of each "
                "method are tried"
            )
        return [(label, ())]
    if not ranges:
        raise UserError(
            f"{label} has nothing to tune: give one of its options a range, such as "
            "training.lr=1e-4..1e-3,log"
        )
    drawn = settings_in(ranges, count - 1)
    return [(label, ()), *((f"{label} {label_of_values(row)}", row) for row in drawn)]


def split_ranges(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words that give an option a range, and the others."""
    return [w for w in words if is_range(w)], [w for w in words if not is_range(w)]


def choosing(plan: Plan) -> Plan:
    """The plan of the tuning runs: all settings, of which only validations are used."""
    assert plan.tuning is not None
    scoring = dataclasses.replace(plan.scoring, at=(), start=False)
    return dataclasses.replace(plan, seeds=plan.tuning.seeds, scoring=scoring, tuning=None)


def validation_scores(plan: Plan, jobs: Sequence[Job], metric: str, needed: bool = True) -> Scores:
    """The score of each run's last validation, or at equal tokens, by label and seed. Raises
    UserError for one that is missing, or leaves it out where it is not needed.
    """
    runs: dict[str, dict[int, Run]] = {}
    for job in jobs:
        runs.setdefault(job.entry.label, {})[job.seed] = read_run(job.folder)
    if plan.scoring.by != "steps":
        rows = [(row.label, row.seed, row.found.get(metric)) for row in at_budget(plan, runs)]
    else:
        rows = [
            (label, seed, _last(run, metric))
            for label, by_seed in runs.items()
            for seed, run in by_seed.items()
        ]
    found: dict[str, dict[int, float]] = {}
    for label, seed, score in rows:
        if score is None or not math.isfinite(score):
            if not needed:
                continue
            named = [n.removeprefix(EVALUATION) for n in runs[label][seed].numbers
                     if n.startswith(SETS) and not n.endswith(("/low", "/high"))
                     and math.isfinite(_last(runs[label][seed], n))]  # fmt: skip
            raise UserError(
                f"--tune-by {metric}: {label} seed {seed} has no such number of its last "
                f"validation; it has {', '.join(sorted(named)) or 'none at all'}"
            )
        found.setdefault(label, {})[seed] = score
    return found


def _last(run: Run, metric: str) -> float:
    key = metric if metric.startswith(SETS) else f"{EVALUATION}{metric}"
    return run.last_validation(key)


def choose(plan: Plan, scores: Scores) -> list[Tried]:
    """Every setting with its score; the best of each method is chosen, the first of equal ones."""
    assert plan.tuning is not None
    found = [
        Tried(entry.of, entry.label, _score(scores[entry.label], plan.tuning.metric))
        for entry in plan.entries
    ]
    best = {
        of: max((each for each in found if each.of == of), key=lambda each: each.score.value).label
        for of in dict.fromkeys(each.of for each in found)
    }
    return [each._replace(chosen=best[each.of] == each.label) for each in found]


def _score(by_seed: Mapping[int, float], metric: str) -> SeedEstimate:
    return over_seeds(list(by_seed.values()), within=range_of(metric))


def judged_plan(plan: Plan, tried: Sequence[Tried]) -> Plan:
    """The comparison of the chosen settings."""
    chosen = {each.of: each.label for each in tried if each.chosen}
    entries = tuple(entry for entry in plan.entries if entry.label in chosen.values())
    baseline = next(entry.of for entry in plan.entries if entry.label == plan.baseline)
    return dataclasses.replace(plan, entries=entries, baseline=chosen[baseline], tuning=None)


def seen_again(tried: Sequence[Tried], scores: Scores, metric: str) -> list[Tried]:
    """The same, with the chosen settings' validation scores in the compared runs."""
    return [
        each._replace(again=_score(scores[each.label], metric))
        if each.chosen and each.label in scores
        else each
        for each in tried
    ]


def write_tried(scores: Scores, tried: Sequence[Tried], metric: str, folder: Path) -> None:
    """Write tuning.csv, one line for each setting and seed. Raises OSError."""
    chosen = {each.label: (each.of, each.chosen) for each in tried}
    rows = [
        {"method": chosen[label][0], "setting": label, "chosen": int(chosen[label][1]),
         "seed": seed, metric: f"{score:.6g}"}
        for label, by_seed in scores.items()
        for seed, score in by_seed.items()
    ]  # fmt: skip
    write_rows(folder / NAME, ("method", "setting", "chosen", "seed", metric), rows)


def lines_of(tried: Sequence[Tried]) -> list[tuple[str, str, str, str]]:
    """Method, setting, tuning score, and for the chosen ones the score in the compared runs."""
    return [
        (each.of, f"{each.label} (chosen)" if each.chosen else each.label,
         f"{each.score.value:.3f}", "" if each.again is None else f"{each.again.value:.3f}")
        for each in tried
    ]  # fmt: skip


HEAD = ("method", "setting", "validation, when it was chosen", "validation of the runs below")
TITLE = "How the settings were chosen"
MEANING = (
    "As many settings of each method were tried, with seeds that are not judged, and the one with "
    "the highest validation score was chosen, so the first number of the chosen one flatters it; "
    "the second is of the runs that are judged."
)
