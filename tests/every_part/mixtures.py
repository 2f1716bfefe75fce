"""Compositions that nobody wrote: a recipe with parts dropped, added, swapped and put in another's
place, where `check` allows it, each trained for two steps.

    python tests/every_part/mixtures.py FIRST LAST    # the compositions of these numbers, by hand
"""

import copy
import dataclasses
import functools
import random
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from models import Lab
from short_runs import fitted, make_lab, settings_for

from strop.catalogue import catalogue
from strop.catalogue.seams import CHAINS, PLACE_OF, SINGLE, SLOTS, kinds_at
from strop.method import notation
from strop.method.algorithm import Algorithm
from strop.method.check import check
from strop.method.part import Use
from strop.method.writing import written
from strop.rewards.grader import Grader
from strop.support.errors import RunStopped, UserError
from strop.training import loading, loop, setup
from strop.training.cluster.rewards import open_grader
from strop.training.learner.token_trace import Tokens
from strop.training.parallel.ranks import ALONE
from strop.training.settings import config

STEPS = 2
SLOW = {"drive"}  # a rollout part of hundreds of answers a prompt


@dataclasses.dataclass(frozen=True)
class Mixture:
    """A composition: the recipe that it was, what was changed, and what it is now."""

    recipe: str
    changes: tuple[str, ...]
    algorithm: Algorithm

    def __str__(self) -> str:
        return f"{self.recipe}: {'; '.join(self.changes)}"


@functools.cache
def parts_at(place: str) -> tuple[str, ...]:
    """Names of the built-in parts that may stand at a place."""
    names = (entry.name for kind in kinds_at(PLACE_OF[place]) for entry in catalogue.parts(kind))
    return tuple(name for name in names if name not in SLOW)


def some_part(place: str, draw: random.Random) -> Use:
    """Any part of the place, with the fields that it has by default."""
    return Use(catalogue.load("part", draw.choice(parts_at(place)))())


def changed(algorithm: Algorithm, draw: random.Random) -> tuple[str, Algorithm]:
    """The algorithm with one thing other than it was, and what that is."""
    place = draw.choice((*CHAINS, *SINGLE, *SLOTS))
    use = some_part(place, draw)
    if place in CHAINS:
        return _chain_changed(algorithm, place, use, draw)
    if place in SINGLE:
        given: dict[str, Any] = {place: use}
        return f"{place}={use.label}", dataclasses.replace(algorithm, **given)
    term = draw.choice(algorithm.terms)
    empty = place not in ("objective", "average") and draw.random() < 0.5
    slot: dict[str, Any] = {place: None if empty else use}
    terms = tuple(dataclasses.replace(t, **slot) if t is term else t for t in algorithm.terms)
    told = f"{term.name}.{place}={'none' if empty else use.label}"
    return told, dataclasses.replace(algorithm, terms=terms)


def _chain_changed(
    algorithm: Algorithm, stage: str, use: Use, draw: random.Random
) -> tuple[str, Algorithm]:
    chain = list(getattr(algorithm, stage))
    row = draw.randrange(len(chain) + 1)
    kind = draw.choice(("add", "swap", "drop", "move")) if chain else "add"
    there = chain[row % len(chain)] if chain else use
    if kind == "add":
        chain.insert(row, use)
    elif kind == "swap":
        chain[row % len(chain)] = use
    else:
        chain.remove(there)
    if kind == "move":
        chain.insert(draw.randrange(len(chain) + 1), there)
    told = f"{kind} {use.label if kind in ('add', 'swap') else there.label} in {stage}"
    new: dict[str, Any] = {stage: tuple(chain)}
    return told, dataclasses.replace(algorithm, **new)


def mixture(number: int) -> Mixture | None:
    """The composition of a number; None where `check` refuses it."""
    draw = random.Random(number)
    recipes = [entry.name for entry in catalogue.recipes()]
    recipe = draw.choice(recipes)
    algorithm = draw.choice(notation.recipe(recipe).algorithms)
    changes = []
    for _ in range(draw.randint(1, 3)):
        told, algorithm = changed(algorithm, draw)
        changes.append(told)
    try:
        check(algorithm)
    except UserError:
        return None
    return Mixture(recipe, tuple(changes), algorithm)


class Ground:
    """Where compositions are tried: one model, one set of processes that grade."""

    def __init__(self, folder: Path) -> None:
        self.lab: Lab = make_lab(folder / "lab")
        self.loaded: Any = None
        self.graders: dict[str, Grader] = {}

    def grader(self, made: Any, specs: Any, _: Any) -> Any:
        """One grader for all runs with these rewards, which they cannot end."""
        if (key := str(specs)) not in self.graders:
            self.graders[key] = open_grader(made, specs, ALONE)
        lent = copy.copy(self.graders[key])
        lent.close = lambda: None  # type: ignore[method-assign]
        return lent

    def close(self) -> None:
        for grader in self.graders.values():
            grader.close()

    def run(self, mixed: Mixture) -> str:
        """How the run went: "ran", "refused: ...", or "stopped: ..."; what is else is raised."""
        plays = mixed.algorithm.rollout.part.needs_environment
        of_recipe = notation.recipe(mixed.recipe).algorithms[0].rollout.part.needs_environment
        base = mixed.recipe if plays == of_recipe else "gigpo" if plays else "grpo"
        raw = settings_for(self.lab, base, training={"steps": STEPS, "save_every": 0})
        kept = {path: value for path, value in raw.pop("algorithm").items()
                if path in fitting(mixed.algorithm)}  # fmt: skip
        algorithm = mixed.algorithm
        small = fitted(algorithm) | {
            path: small_of(path, value) for path, value in algorithm.paths().items()
        }
        raw["stages"] = written(algorithm.with_knobs(small))
        raw["algorithm"] = kept
        try:
            made = config.make(raw)
            made.build()
        except UserError as error:
            return f"refused: {error}"
        return self._steps(made)

    def run_changed(self, recipe: str, change: Callable[[Algorithm], Algorithm]) -> str:
        """The same of a run of a recipe, with parts in it that no file has."""
        made = config.make(settings_for(self.lab, recipe, training={"save_every": 0}))
        return self._steps(made, change(made.build().algorithms[0]))

    def _steps(self, made: Any, algorithm: Algorithm | None = None) -> str:
        if self.loaded is None:
            self.loaded = loading.load_model(made)
        given = dataclasses.replace(self.loaded, model=copy.deepcopy(self.loaded.model))
        with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as parent:
            folder = Path(parent) / "run"
            patch.setattr(setup, "open_grader", self.grader)
            if algorithm is not None:
                patch.setattr(type(made), "build", lambda _: algorithm)
                patch.setattr(type(made), "complete", lambda self: self)
            try:
                run = loop.start(made, folder, given=given)
            except UserError as error:
                return f"refused: {error}"
            try:
                for _ in range(STEPS):
                    loop._one_step(run, Tokens(64))
            except (UserError, RunStopped) as error:
                return f"stopped: {error}"
            finally:
                run.close()
        return "ran"


def fitting(algorithm: Algorithm) -> set[str]:
    """The short names of options that the algorithm has once."""
    stages = Counter(
        ".".join((path.split(".")[0], path.split(".")[-1])) for path in algorithm.paths()
    )
    return {name for name, times in stages.items() if times == 1}


def small_of(path: str, value: Any) -> Any:
    """A number that is small enough for two steps on a tiny model."""
    most = {"num_prompts": 3, "num_rollouts": 4, "max_tokens": 6, "warmup_steps": 0,
            "num_critic_updates": 2, "num_policy_updates": 2}  # fmt: skip
    name = path.split(".")[-1]
    known = name in most and isinstance(value, int) and not isinstance(value, bool)
    return min(value, most[name]) if known and value else value


def main(first: int, last: int) -> None:
    """Try the compositions of some numbers and print what went wrong."""
    found: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        ground = Ground(Path(folder))
        for number in range(first, last):
            mixed = mixture(number)
            found["drawn"] += 1
            if not number % 100:
                print(number, dict(found), flush=True)
            if mixed is None:
                continue
            try:
                outcome = ground.run(mixed)
            except Exception:
                outcome = "crashed"
                print(f"{number} {mixed}\n{traceback.format_exc(limit=-2)}", flush=True)
            found[outcome.split(":")[0]] += 1
            if outcome.startswith(("stopped", "refused")):
                print(f"{number} {mixed}\n    {outcome}", flush=True)
        ground.close()
    print(dict(found))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
