"""Describes a run by its configuration: recipe, model, task, changed settings; its best step."""

import itertools
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from strop.method import reading
from strop.method.values import own
from strop.report.run_folder import Run
from strop.support.errors import UserError
from strop.support.files import flat
from strop.training.record.run_folder import GIVEN
from strop.training.settings import config

METHOD = ("stages", "algorithm", "phases")
SHOWN = ("recipe", "model.name", "data.task", "data.files", "reward.functions")  # facts
OPTION = re.compile(r"\w+=('[^']*'|[\d.+-][\w.+-]*|True|False|None|inf)(, )?")


def facts(text: str | None) -> list[tuple[str, str]]:
    """Recipe, model and data of a configuration; empty when it cannot be read."""
    raw = parsed(text)
    if not raw:
        return []
    data, model, reward = (_section(raw, name) for name in ("data", "model", "reward"))
    files = dict.fromkeys(_of_a_script(name) or name for name in _names(data.get("files")))
    task = ", ".join(files) or str(data.get("task", ""))
    rewards = [_of_a_script(name) or name for name in _names(reward.get("functions"))]
    found = {
        "Recipe": raw.get("recipe") or "composed in [stages]",
        "Phases": ", ".join(_section(raw, "phases")),
        "Model": model.get("name", ""),
        "Task": task,
        "Rewards": ", ".join(rewards),
    }
    return [(name, str(value)) for name, value in found.items() if value]


def _of_a_script(source: str) -> str:
    """A name for data that a script passed to the run and its folder stores; empty for others."""
    path = Path(source.removeprefix("pickled:"))
    if path.parent.name != GIVEN:
        return ""
    return f"{path.stem} (in Python)" if path.suffix == ".pickle" else "rows given in Python"


def _section(raw: Mapping[str, Any], name: str) -> dict[str, Any]:
    section = raw.get(name)
    return section if isinstance(section, dict) else {}


def _names(given: Any) -> list[str]:
    """One name, or several; none for anything else."""
    return [str(each) for each in given] if isinstance(given, list) else [str(given)] * bool(given)


def changed(text: str | None) -> tuple[list[tuple[str, str, str]], str]:
    """(setting, value, default) of each setting that differs from those of `strop train RECIPE`
    with the same model and data, and a sentence about what could not be compared.

    Files that the configuration names are not imported, so the options of a method with the user's
    own parts are not compared.
    """
    raw = parsed(text)
    if not raw:
        return [], ""
    try:
        given = config.make(raw)
        plain = config.make({**config.defaults(given.model.name), "recipe": given.recipe})
        theirs, ours = given.model_dump(), plain.model_dump()
        rows = _differing(flat(_without(theirs)), flat(_without(ours)))
        if any(map(own, _notation(given))):
            return rows, "Options of a method from your own files are not compared here."
        if given.recipe:
            same_data = plain.model_copy(update={"data": given.data}).complete()
            rows += _method(theirs, same_data.model_dump())
    except UserError as error:
        return [], f"The settings cannot be compared with the defaults: {error}"
    return rows, ""


def parsed(text: str | None) -> dict[str, Any]:
    """The configuration's values; empty for text that is not TOML."""
    try:
        return tomllib.loads(text or "")
    except (ValueError, RecursionError):
        return {}


def _notation(given: config.RunConfig) -> list[str]:
    """The method's notation, part by part."""
    sections: list[Any] = [given, *given.phases.values()]
    stages = (
        [text] if isinstance(text, str) else text
        for section in sections for text in section.stages.values()
    )  # fmt: skip
    recipes = (section.recipe for section in sections)
    return [text for text in (*recipes, *itertools.chain(*stages)) if text.strip()]


def _without(settings: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if key not in METHOD}


def _method(given: dict[str, Any], plain: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Stages whose parts differ, and differing options of the parts that both have."""
    stages = _differing(_of_phases(given, "stages"), _of_phases(plain, "stages"), " | ")
    theirs, ours = (_of_phases(settings, "algorithm") for settings in (given, plain))
    known = [path for path, _ in theirs]
    options = _differing(theirs, ours)
    return [row for row in stages if _parts(row[1]) != _parts(row[2])] + [
        (typed(path, known), here, default)
        for path, here, default in options
        if "–" not in (here, default)
    ]


def typed(path: str, known: Sequence[str]) -> str:
    """The shortest name that identifies an option among all options of a method:
    `loss.clip_high` for `terms.policy.objective.clip_high`, where there is one clip_high.
    """
    prefix, name = re.fullmatch(r"(phases\.[^.]*\.)?(.*)", path).groups(default="")  # type: ignore[union-attr]
    head, *inside = name.split(".")
    head = {full: short for short, full in reading.STAGE_ALIASES.items()}.get(head, head)
    own = [each.removeprefix(prefix) for each in known if each.startswith(prefix)]
    for kept in range(len(inside)):
        for first in itertools.combinations(inside[:-1], kept):
            short = ".".join((head, *first, inside[-1]))
            if len(reading.options_of(short, own)) == 1:
                return prefix + short
    return path


def _of_phases(settings: dict[str, Any], key: str) -> list[tuple[str, Any]]:
    """A section of the method by path; that of each phase has the phase's name in its paths."""
    found = [*flat(settings[key])]
    for name, phase in settings["phases"].items():
        found += flat(phase[key], f"phases.{name}.")
        found += [(f"phases.{name}.until", phase["until"])] if key == "algorithm" else []
    return found


def _parts(stage: str) -> str:
    """A stage's text without the values of its parts' options."""
    return OPTION.sub("", stage).replace("()", "")


def _differing(
    given: Iterable[tuple[str, Any]], plain: Iterable[tuple[str, Any]], between: str = ", "
) -> list[tuple[str, str, str]]:
    theirs, ours = dict(given), dict(plain)
    return [
        (path, _shown(theirs.get(path), between), _shown(ours.get(path), between))
        for path in dict.fromkeys((*theirs, *ours))
        if path not in SHOWN and theirs.get(path) != ours.get(path)
    ]


def _shown(value: Any, between: str) -> str:
    if isinstance(value, list | tuple):
        return between.join(map(str, value)) or "none"
    return "–" if value is None else str(value)


class Best(NamedTuple):
    """The metric that compares steps, the best step, and the number of validations since."""

    name: str
    step: int
    value: float
    since: int
    patience: int

    @property
    def ended_early(self) -> bool:
        """Whether as many validations as the run's patience brought no improvement."""
        return 0 < self.patience <= self.since


def best_of(run: Run) -> Best | None:
    """The best step, the first of equal ones; None when a run tracks none, or has none yet."""
    training: Any = parsed(run.config).get("training")
    training = training if isinstance(training, dict) else {}
    name, patience = str(training.get("best", "")), training.get("patience")
    steps, values = run.series(name)
    steps, values = steps[steps > 0], values[steps > 0]
    if not name or not len(steps):
        return None
    at = int(np.argmax(-values if training.get("best_is") == "lowest" else values))
    since = int((run.validations(name)[0] > steps[at]).sum())
    wait = patience if type(patience) is int else 0
    return Best(name, int(steps[at]), float(values[at]), since, wait)
