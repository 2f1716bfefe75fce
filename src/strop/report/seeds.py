"""Merges runs of one method with several seeds into one: the mean, and the interval of the mean."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strop.evaluation.samples import COVERAGE
from strop.evaluation.seeds import ANYTHING, Within, limits, range_of
from strop.report.about import parsed
from strop.report.recorded import Recorded
from strop.report.run_folder import Band, Run, Series
from strop.support.files import flat
from strop.support.students_t import t_quantile

Points = tuple[NDArray[Any], NDArray[np.float64]]


def mean_and_band(drawn: Sequence[Points], within: Within = ANYTHING) -> tuple[NDArray[Any], ...]:
    """x, and low, mean and high over seeds at each x between first and last values of every seed.
    The band is the 95% interval of the mean, cut to the number's range; for one seed its width is
    0. Where the curves share no stretch, there is one x: the first end.

    drawn: one curve for each seed, with increasing x; curves are interpolated linearly.
    """
    begin, end = max(x[0] for x, _ in drawn), min(x[-1] for x, _ in drawn)
    grid = max((x for x, _ in drawn), key=len)
    inside = (grid >= begin) & (grid <= end)
    grid = grid[inside] if inside.any() else np.array([end])
    values = np.stack([np.interp(grid, x, y) for x, y in drawn])
    mean, count = values.mean(0), len(drawn)
    half = np.zeros_like(mean)
    if count > 1:
        quantile = t_quantile((1 + COVERAGE) / 2, count - 1)
        half = quantile * values.std(0, ddof=1) / np.sqrt(count)
    low, high = limits(mean, half, within)
    return grid, low, mean, high


def by_method(runs: Sequence[Run]) -> list[Run]:
    """The runs; those that differ only in their seed become one: their mean with its interval.

    Runs without a configuration, and runs of a method that has a seed twice, stay single.
    """
    groups: dict[str, list[Run]] = {}
    for index, run in enumerate(runs):
        groups.setdefault(_method(run) or f"run {index}", []).append(run)
    recipes = [_recipe(members[0]) for members in groups.values()]
    found: list[Run] = []
    for members in groups.values():
        seeds = [seed_of(run) for run in members]
        if len(members) == 1 or len(set(seeds)) < len(seeds):
            found += members
        else:
            names = ", ".join(run.name for run in members)
            alone = recipes.count(_recipe(members[0])) == 1  # then its recipe names it uniquely
            name = f"{_recipe(members[0])} ({len(members)} seeds){'' if alone else f': {names}'}"
            found.append(mean_of(members, name))
    return found


def seed_of(run: Run) -> Any:
    """The seed in a run's configuration; None when there is none."""
    return parsed(run.config).get("seed")


def _method(run: Run) -> str:
    """All settings except the seed; empty without a configuration."""
    settings = sorted(flat(parsed(run.config)), key=lambda pair: pair[0])
    return repr([pair for pair in settings if pair[0] != "seed"]) if settings else ""


def _recipe(run: Run) -> str:
    return str(parsed(run.config).get("recipe") or "composed")


def mean_of(members: Sequence[Run], name: str) -> Run:
    """One run with the mean of every number of several runs, which differ in their seed."""
    numbers: dict[str, Series] = {}
    spread: dict[str, Band] = {}
    for key in dict.fromkeys(key for run in members for key in run.numbers):
        if key.startswith("eval/") and key.endswith(("/low", "/high")):
            continue  # intervals over prompts; those over seeds take their place
        drawn = [run.numbers[key] for run in members if key in run.numbers]
        steps, low, mean, high = mean_and_band(drawn, range_of(key))
        numbers[key] = (steps, mean)
        if len(drawn) > 1:
            spread[key] = (steps, low, high)
    return Run(
        name=name,
        numbers=numbers,
        num_steps=min(run.num_steps for run in members),
        config=members[0].config,
        rollouts=_pooled(members),
        notes=(),
        charts=tuple(dict.fromkeys(chart for run in members for chart in run.charts)),
        members=tuple(members),
        spread=spread,
    )


def _pooled(members: Sequence[Run]) -> tuple[Recorded, ...]:
    """Rewards and lengths of the steps that all runs have recorded."""
    by_step = [{recorded.step: recorded for recorded in run.rollouts} for run in members]
    common = [step for step in by_step[0] if all(step in steps for steps in by_step)]
    return tuple(
        Recorded(
            step,
            (),
            np.concatenate([steps[step].rewards for steps in by_step]),
            np.concatenate([steps[step].lengths for steps in by_step]),
        )
        for step in common
    )
