"""Whether a run's method has done what its parent, or `grpo`, `rloo` or `gae`, would have done.

With one update a step every ratio is 1, so a method whose idea is a ratio is then its parent. Such
a run says so once, from the rows of its first step (`learner/same_rows.py`), with the setting
that would separate the two: the line "Differs once" of the recipe's docstring.
"""

import dataclasses
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from strop.catalogue import catalogue
from strop.catalogue.entries import Entry
from strop.catalogue.seams import STAGES
from strop.method import notation, writing
from strop.method import part as parts
from strop.method.algorithm import Algorithm, Method, Phases, phase_at
from strop.method.chains import RngOf
from strop.method.part import OUTSIDE
from strop.method.schedule import Schedule
from strop.parts.plan.split_into_minibatches import SplitIntoMinibatches
from strop.support.errors import UserError
from strop.training.learner.same_rows import SameRows
from strop.training.record.likeness import Likeness
from strop.training.settings.config import RunConfig

LESS = ("clip_low", "clip_high", "beta")  # often without effect, or with another meaning
USUAL = ("grpo", "rloo", "gae")
ON_FRESH_ROWS = ("ratio", "objective", "correction")  # slots that see ratios of 1 in a first update


@dataclass(frozen=True)
class Relative:
    """Another method under the settings of the run. shown: as one would type it."""

    name: str
    shown: str
    algorithm: Algorithm


def step_to_look_at(config: RunConfig) -> int:
    """The first step whose rollouts are as old as the run's usually are."""
    return 1 + int(getattr(config.engine, "staleness", 0))


def watching(run: Any, step: int, rng_of: RngOf) -> SameRows | None:
    """The spectator of a step that decides; None in other steps and other processes, and with
    several adapters, whose updates are separate.
    """
    looks = step == step_to_look_at(run.config) and run.ranks.first and not run.config.roles.play
    world = run.world
    return SameRows(rng_of, dict(run.state), world.services, world.pool) if looks else None


def look(
    rows: SameRows, config: RunConfig, method: Method, step: int, metrics: Mapping[str, float]
) -> Likeness | None:
    """Compare the run's method with its relatives; None where the step taught nothing."""
    number = phase_at(rows.state)["number"]
    own = method.in_phase(number)
    knobs = method.knobs_in(number, rows.state.get("knobs", {}))
    now = own.with_knobs({k: v for k, v in knobs.items() if k not in OUTSIDE})
    now = now.at_step(step, config.training.steps)
    learns = rows.learns(now)
    name = _name_of(config)  # of a recipe; empty for a method of stages, or of several recipes
    entry = catalogue.find("recipe", name) if name else None
    equal: dict[str, Relative] = {}
    apart: dict[str, str] = {}
    for other in relatives(config, method, entry):
        if other.name in equal:
            continue
        then = other.algorithm.at_step(step, config.training.steps)
        with torch.random.fork_rng(devices=[]):
            stage = rows.first_difference(now, then, metrics)
        if stage:
            apart[other.name] = max(apart.get(other.name, stage), stage, key=_late)
        else:
            equal[other.name] = other
            apart.pop(other.name, None)
    if equal and not (learns and _moves(rows, config, step)):
        return None
    lasting = not isinstance(method, Phases) and all(
        _lasts(config, own, other.algorithm) for other in equal.values()
    )
    once = entry.line("Differs once") if entry is not None else ""
    if config.training.max_staleness and "engine.staleness" in once:  # they exclude each other
        once = "answers come from older weights, as they do from step 2 on"
    shown = tuple(other.shown for other in equal.values())
    return Likeness(name, step, shown, lasting, once, apart)


def _moves(rows: SameRows, config: RunConfig, step: int) -> bool:
    """Whether later updates of a step see other ratios than 1; True where it has one update."""
    lr = config.lr()
    return len(rows.updates) < 2 or bool(lr(step, config.training.steps) if callable(lr) else lr)


def _late(stage: str) -> tuple[int, str]:
    """How late in a step a difference shows; where columns are missing, it may be anywhere."""
    return ("columns", *STAGES, "loss").index(stage.partition(" ")[0]), stage


def _lasts(config: RunConfig, own: Algorithm, other: Algorithm) -> bool:
    """Whether methods that are equal on fresh rows stay so: they differ in parts that see a ratio
    of 1, keep no state and follow no schedule, and no critic distinguishes tokens later.
    """
    if own.value_columns():
        return False
    if getattr(getattr(own.plan, "part", None), "num_updates", 0) != 1:
        return False
    if step_to_look_at(config) > 1 or config.training.max_staleness:
        return False
    theirs = dict(other.uses())
    for path, use in own.uses():
        if theirs.get(path) != use:
            ratio = path.startswith("terms.") and path.endswith(ON_FRESH_ROWS)
            lasting = any(hasattr(use.part, hook) for hook in ("init", "update", "observe"))
            if not ratio or lasting:
                return False
    return not any(isinstance(value, Schedule) for value in own.paths().values())


def relatives(config: RunConfig, method: Method, entry: Entry | None) -> Iterator[Relative]:
    """The parent, `grpo`, `rloo` and `gae` under the run's settings: each as it is, and each with
    the plan, the average and the numbers that the run's recipe has in common with it, at first
    without clip and penalty.

    Methods that cannot be built so, or equal the run's method part by part, are left out.
    """
    given, default, common = _own(config, entry)
    parent = entry.line("Parent") if entry is not None else ""
    names = [parent] if parent not in ("", "none") else []
    own = method.in_phase(1)
    for name in dict.fromkeys([*names, *USUAL]):
        if name == _name_of(config):
            continue
        seen: list[Algorithm] = []
        fewer = {k: v for k, v in common.items() if k in given or k not in LESS}
        for arguments, plan in ((given, False), (fewer, True), (common, True)):
            other = _under(config, own, default, name, arguments, plan)
            if other is None or other.algorithm in (own, *seen):
                continue
            seen.append(other.algorithm)
            yield other


def _own(
    config: RunConfig, entry: Entry | None
) -> tuple[dict[str, Any], Algorithm | None, dict[str, Any]]:
    """The parameters that the run's recipe was given, its algorithm before any option, and all its
    parameters with their values.
    """
    if entry is None:
        return {}, None, {}
    name, given = notation.named(config.recipe)
    recipe = notation.build_recipe(name, given)
    try:
        default = _for_task(config, recipe)
    except UserError:  # its own rollout does not go with the task, and the run has another
        default = recipe.in_phase(1)
    signature = inspect.signature(entry.load()).parameters
    return given, default, {p.name: given.get(p.name, p.default) for p in signature.values()}


def _under(
    config: RunConfig, own: Algorithm, default: Algorithm | None, name: str,
    arguments: Mapping[str, Any], closer: bool,
) -> Relative | None:  # fmt: skip
    """A recipe with those of the arguments that it has, under the run's options; closer: with the
    plan and the average of the run's method. None where it cannot be built, or is no recipe.
    """
    try:
        known = inspect.signature(catalogue.load("recipe", name)).parameters
        taken = {k: v for k, v in arguments.items() if k in known and v != known[k].default}
        other = _for_task(config, notation.build_recipe(name, taken))
        other = _with_options(own, default, other)
    except UserError:
        return None
    inside = ", ".join(f"{k}={writing.value_text(v)}" for k, v in taken.items())
    shown, numbers = f"{name}({inside})" if inside else name, list[str]()
    if closer:
        other, numbers = _closer(own, other)
    return Relative(name, " with ".join([shown, *filter(None, [", ".join(numbers)])]), other)


def _closer(own: Algorithm, other: Algorithm) -> tuple[Algorithm, list[str]]:
    """The other method with the plan and the average of the run's, and these as options."""
    numbers = list[str]()
    plan = own.plan
    if plan is not None and isinstance(plan.part, SplitIntoMinibatches) and plan != other.plan:
        plain = parts.fields_of(SplitIntoMinibatches())
        moved = {k: v for k, v in parts.fields_of(plan.part).items() if v != plain[k]}
        numbers += [f"plan.{key}={value}" for key, value in moved.items()]
        other = dataclasses.replace(other, plan=plan)
    mine = {term.name: term.average for term in own.terms if term.learner == "policy"}
    for term in other.terms:
        if mine.get(term.name, term.average) != term.average:
            numbers.append(f"average={writing.use_text(mine[term.name])}")
    terms = tuple(
        dataclasses.replace(term, average=mine.get(term.name, term.average)) for term in other.terms
    )
    return dataclasses.replace(other, terms=terms), numbers


def _for_task(config: RunConfig, method: Method) -> Algorithm:
    return method.each(config.for_task).in_phase(1)


def _with_options(own: Algorithm, default: Algorithm | None, other: Algorithm) -> Algorithm:
    """The other method with the stages, slots and numbers in which the run's method differs from
    its recipe's default, as far as the other has them.
    """
    if default is None:
        return other
    changes: dict[str, Any] = {}
    for stage in STAGES:
        if stage != "terms" and _labels(own, stage) != _labels(default, stage):
            changes[stage] = getattr(own, stage)
    other = dataclasses.replace(other, **changes)
    known, before, moved = other.paths(), default.paths(), dict[str, Any]()
    for path, value in own.paths().items():
        if path in before and before[path] != value:
            stage, ending = path.partition(".")[0], path.rpartition(".")[2]
            fits = [path] if path in known else [
                each for each in known
                if each.startswith(f"{stage}.") and each.endswith(f".{ending}")
            ]  # fmt: skip
            if len(fits) == 1 and stage not in changes:
                moved[fits[0]] = value
    return other.with_knobs(moved)


def _labels(algorithm: Algorithm, stage: str) -> tuple[str, ...]:
    content = getattr(algorithm, stage)
    uses = content if isinstance(content, tuple) else (content,) if content is not None else ()
    return tuple(use.label for use in uses)


def _name_of(config: RunConfig) -> str:
    try:
        return notation.named(config.recipe)[0] if config.recipe else ""
    except UserError:  # phases of several recipes
        return ""
