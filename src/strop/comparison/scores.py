"""Results of a comparison's runs: held-out scores, their course, tokens and seconds."""

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from strop.comparison.names import HELDOUT, LATE, TRAINING
from strop.comparison.plan import NO_SCORE, START, Plan, Scoring
from strop.comparison.runs import Job
from strop.evaluation.samples import Floats
from strop.report.run_folder import Run, Series, read_run
from strop.support.errors import UserError, nearest_first
from strop.tracking.metrics_file import NAME as METRICS
from strop.tracking.metrics_file import SETS, lines_of

EVALUATION = f"{SETS}validation/"


class RequestedMetrics:
    """Requested numbers, checked while runs train, so that none turns out to be missing at the end.

    validated: numbers of validation, by option. means: numbers of training.
    """

    def __init__(self, validated: Mapping[str, str], means: Sequence[str]) -> None:
        self.validated, self.means = validated, means
        self.seen = set[str]()  # runs that have validated
        self.complete = not means

    def check(self, jobs: Sequence[Job]) -> None:
        """Raise UserError for a number that neither the first validation of a run nor its first
        step has, and for one that no run has, once a run of every method is done.
        """
        for job in jobs if self.validated else ():
            if job.name in self.seen or not (job.folder / METRICS).is_file():
                continue
            lines = [*itertools.islice(lines_of(job.folder), 2)]  # before training, and step 1
            numbers = {name for line in lines for name in line}
            for option, name in self.validated.items() if len(lines) > 1 else ():
                whole = option != "--tune-by" or name.startswith(SETS)  # only validation chooses
                if not {EVALUATION + name, *([name] if whole else [])} & numbers:
                    known = [n.removeprefix(EVALUATION) for n in lines[0] if n.startswith(SETS)]
                    raise _unknown(f"{option} {name}", f"{job.name} does not have", name, known)
            self.seen |= {job.name} if len(lines) > 1 else set()
        done = [job for job in jobs if job.state == "done"]
        if self.complete or {j.entry.label for j in done} != {j.entry.label for j in jobs}:
            return
        numbers = {name for job in done for line in lines_of(job.folder) for name in line}
        for name in self.means:
            if name not in numbers:
                raise _unknown(f"--mean {name}", "no run has", name, [*numbers])
        self.complete = True


def _unknown(what: str, who: str, name: str, known: Sequence[str]) -> UserError:
    plain = [each for each in known if not NO_SCORE.search(each)]
    return UserError(
        f"{what}: {who} that number; there are {nearest_first(name, plain)}: give one of "
        "these, and another --out"
    )


class Row(NamedTuple):
    """The results of one run at one scored step; by_prompt: scores of each held-out prompt;
    unscored: share of the held-out answers that have none.
    """

    label: str
    seed: int
    step: int
    found: dict[str, float]
    by_prompt: Mapping[str, Floats] = MappingProxyType({})
    unscored: float = 0.0


def collect(plan: Plan, jobs: Sequence[Job]) -> tuple[list[Row], dict[str, dict[int, Run]]]:
    """Rows of all complete runs, and the runs by label and seed."""
    rows, runs = list[Row](), dict[str, dict[int, Run]]()
    scoring = plan.scoring
    for job in jobs:
        if job.state != "done":
            continue
        run = read_run(job.folder)
        runs.setdefault(job.entry.label, {})[job.seed] = run
        if scoring.start and not rows and (path := job.scores_file(0)).exists():
            found, _, unscored = _heldout(path, scoring.ks)
            rows += [Row(START, job.seed, step, found, unscored=unscored) for step in scoring.at]
        for step in scoring.at:
            found, by_prompt, unscored = _heldout(job.scores_file(step), scoring.ks)
            found |= _course(scoring, run, step)
            rows.append(Row(job.entry.label, job.seed, step, found, by_prompt, unscored))
    if scoring.by != "steps" and runs:
        rows = at_budget(plan, runs)
    return rows, runs


def _heldout(path: Path, ks: Sequence[int]) -> tuple[dict[str, float], dict[str, Floats], float]:
    """The scores from `strop eval`, overall and of each prompt, and the share of answers without
    one.
    """
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {path}: {error}; remove it to score again") from error
    names = [f"pass@{k}" for k in ks]
    names += [f"{kind}@{k}" for kind in ("maj", "distinct") for k in ks if k > 1]
    each = {n: np.array(x, dtype=np.float64) for n, x in found.get("by_prompt", {}).items()}
    scores = {n: float(found[n]) for n in (*names, *HELDOUT) if found.get(n) is not None}
    without, scored = (found.get(f"num_{what}", 0.0) for what in ("unscored", "rollouts"))
    return scores, each, without / max(without + scored, 1.0)


def _course(scoring: Scoring, run: Run, step: int) -> dict[str, float]:
    """Training up to a step: means of the last steps, the share inside a band, tokens, seconds."""
    found = {}
    for key in TRAINING:
        values = _until(run, key, step, step - LATE)
        if len(values):
            found[f"late/{key}"] = float(values.mean())
    found |= _in_band(scoring, run, step)
    for key in scoring.means:
        values = _until(run, key, step)
        if len(values):
            found[f"mean/{key}"] = float(values.mean())
    return {**found, **_spent(run, step), **_to_target(scoring, run, step)}


def _until(run: Run, key: str, step: int, after: int = 0) -> Any:
    """A number at every training step after one and up to another that has it."""
    steps, values = run.series(key)
    return values[(steps > max(after, 0)) & (steps <= step)]


def _spent(run: Run, step: int) -> dict[str, float]:
    """Tokens and seconds until a step."""
    found = {}
    for by in ("sampled", "trained", "seconds"):
        steps, total = axis(run, by)
        if len(upto := total[steps <= step]):
            found[by] = float(upto[-1])
    return found


def _in_band(scoring: Scoring, run: Run, step: int) -> dict[str, float]:
    """Shares of the steps whose entropy lies inside and below the band; nothing without one."""
    steps, values = run.series("entropy")
    late = (steps > step // 4) & (steps <= step)
    steps, values = steps[late], values[late]
    if scoring.band is None:
        nan = math.nan
        low = _at(run, "entropy_control/low", steps, nan)
        high = _at(run, "entropy_control/high", steps, nan)
        known = np.isfinite(low) & np.isfinite(high)
        values, low, high = values[known], low[known], high[known]
    else:
        low, high = np.full_like(values, scoring.band[0]), np.full_like(values, scoring.band[1])
    if not len(values):
        return {}
    inside = (low <= values) & (values <= high)
    return {"band": float(inside.mean()), "below": float((values < low).mean())}


def _to_target(scoring: Scoring, run: Run, step: int) -> dict[str, float]:
    """Steps, tokens and seconds until a validation score is first reached, and whether it is; only
    the latter where it never is.
    """
    if scoring.target is None:
        return {}
    metric, wanted = scoring.target
    key = metric if metric in run.numbers else f"{EVALUATION}{metric}"
    steps, values = run.series(key)
    reached = steps[(values >= wanted) & (steps <= step)]
    name = f"{metric} {wanted:g}"
    if not len(reached):
        return {f"reached to {name}": 0.0}
    first = int(reached[0])
    spent = {"sampled": 0.0, "seconds": 0.0, **_spent(run, first)}
    return {
        f"reached to {name}": 1.0,
        f"steps to {name}": float(first),
        f"sampled to {name}": spent["sampled"],
        f"seconds to {name}": spent["seconds"],
    }


def axis(run: Run, by: str) -> Series:
    """Steps, and the cost after each of them: steps, seconds, or answers' tokens.

    sampled: those of all answers, where forked answers share some once, those of probes and those
    that strategies discarded; trained: mean length of the kept answers times the number of answers
    with a gradient.
    """
    steps, _ = run.series("step_time")
    steps = steps[steps > 0]
    if by == "steps":
        return steps, steps.astype(float)
    if by == "seconds":
        return steps, np.cumsum(_at(run, "step_time", steps))
    length = _at(run, "completions/mean_length", steps)
    if by == "trained":
        share = _at(run, "groups/frac_rollouts_with_gradient", steps, 1.0)
        return steps, np.cumsum(length * share * _at(run, "data/rollouts_kept", steps))
    drawn = _at(run, "data/tokens_sampled", steps, np.nan)
    # Runs from before this number was logged; theirs is of the kept answers' mean length.
    older = length * _at(run, "data/rollouts_sampled", steps)
    older -= _at(run, "rollout/tokens_shared", steps)
    drawn = np.where(np.isnan(drawn), older, drawn)
    beside = ("services/tokens_sampled", "rollout/tokens_thrown_away")
    return steps, np.cumsum(drawn + sum(_at(run, name, steps) for name in beside))


def _at(run: Run, key: str, steps: "np.ndarray[Any, Any]", missing: float = 0.0) -> Any:
    """A number at each of the steps; `missing` where it is not recorded."""
    known = dict(zip(*(column.tolist() for column in run.series(key)), strict=True))
    return np.array([known.get(step, missing) for step in steps.tolist()])


def at_budget(plan: Plan, runs: dict[str, dict[int, Run]]) -> list[Row]:
    """Validation scores of all runs at the largest cost that every run has reached.

    Between two validations the score is interpolated; a run has none where one of the two has none.
    """
    by = plan.scoring.by
    spent = {
        (label, seed): axis(run, by)
        for label, by_seed in runs.items()
        for seed, run in by_seed.items()
    }
    budget = min(float(total[-1]) for _, total in spent.values())
    if budget <= 0:
        none = next(label for (label, _), (_, total) in spent.items() if total[-1] <= 0)
        raise UserError(f"{none} has spent no tokens {by}: compare it by another yardstick")
    rows = []
    for label, by_seed in runs.items():
        for seed, run in by_seed.items():
            steps, total_S = spent[label, seed]
            found = {}
            for key in sorted(run.numbers, key=_rank):
                if key.startswith(SETS) and not NO_SCORE.search(key):
                    at, values = run.validations(key)
                    where = np.interp(at, np.r_[0, steps], np.r_[0.0, total_S])
                    if math.isfinite(score := float(np.interp(budget, where, values))):
                        found[key.removeprefix(EVALUATION)] = score
            last = int(steps[np.searchsorted(total_S, budget * (1 - 1e-12))])
            found = {**found, **_course(plan.scoring, run, last), by: budget}
            rows.append(Row(label, seed, last, found))
    return rows


def _rank(key: str) -> tuple[int, int]:
    """Scores in the order of the held-out ones: pass@k by k, maj@k, distinct@k, others."""
    kind, _, k = key.removeprefix(EVALUATION).partition("@")
    kinds = ("pass", "maj", "distinct")
    return (kinds.index(kind) if kind in kinds else len(kinds), int(k) if k.isdigit() else 0)


def by_metric(
    rows: Sequence[Row], step: int | None = None
) -> dict[str, dict[str, dict[int, float]]]:
    """metric -> label -> seed -> value, at a scored step (None: whatever step they have)."""
    found: dict[str, dict[str, dict[int, float]]] = {}
    for row in rows:
        if step is not None and row.step != step:
            continue
        for name, value in row.found.items():
            if math.isfinite(value):
                found.setdefault(name, {}).setdefault(row.label, {})[row.seed] = value
    return found


def each_prompt(rows: Sequence[Row], step: int) -> dict[str, dict[str, dict[int, Floats]]]:
    """metric -> label -> seed -> the scores of all held-out prompts, at a scored step."""
    found: dict[str, dict[str, dict[int, Floats]]] = {}
    for row in rows:
        for name, value_P in row.by_prompt.items() if row.step == step else ():
            found.setdefault(name, {}).setdefault(row.label, {})[row.seed] = value_P
    return found
