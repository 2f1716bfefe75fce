"""The configuration of one run or several, from a command's words or a call's keywords."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from strop.catalogue import peers
from strop.catalogue.catalogue import load, model_of, spelled
from strop.catalogue.seams import STAGES
from strop.environments.base import Environment, task_of_class
from strop.method import notation
from strop.method.algorithm import Algorithm, Method, Phases
from strop.method.reading import STAGE_ALIASES
from strop.method.shown import as_notation, dotted
from strop.support.errors import UserError, made_of_each
from strop.support.loading import name_to_load
from strop.training.settings import config
from strop.training.settings.assignments import Assignments, override, split
from strop.training.settings.config import RunConfig
from strop.training.settings.method import complete

DEFAULT: str = RunConfig.model_fields["recipe"].default
HEADS = frozenset((*RunConfig.model_fields, *STAGES, *STAGE_ALIASES))


def settings_of(
    arguments: list[str], options: dict[str, Any], file: Path | None = None
) -> RunConfig:
    """The run's configuration from file, options and `name=value` arguments. Raises UserError."""
    recipes, assignments = split(arguments)
    if len(recipes) > 1:
        raise UserError(f"one recipe at a time, got {' and '.join(recipes)}")
    return combined(recipes[0] if recipes else "", assignments, options, file)


def combined(
    recipe: str | Method,
    assignments: Assignments,
    options: dict[str, Any],
    file: Path | None = None,
) -> RunConfig:
    """The configuration of a recipe or a method. From the strongest to the weakest: assignments,
    options by section, the file, the defaults of the model. Raises UserError.
    """
    raw = config.content(file) if file else {}
    recipe = spelled(recipe) if isinstance(recipe, str) else recipe
    name = recipe if isinstance(recipe, str) else ""
    given = _model_given(assignments, options, raw)
    needed = "" if given else model_of(name or raw.get("recipe", ""))
    merged = config.defaults(given or needed or "tiny")
    if needed:
        merged["model"] = {"name": needed}
    for source in (raw, options):
        for section, values in source.items():
            if isinstance(values, dict):
                merged[section] = {**merged.get(section, {}), **values}
            else:
                merged[section] = values
    if not isinstance(recipe, str):
        _check_method(recipe, raw, file)
        method = complete(recipe, {})
        phases = {name: phase.model_dump() for name, phase in method["phases"].items()}
        merged |= {"recipe": "", **method, "phases": phases}
    elif recipe:
        _check_recipe(recipe, raw, file)
        merged["recipe"] = recipe
    return config.make(override(merged, assignments))


def _check_recipe(recipe: str, raw: dict[str, Any], file: Path | None) -> None:
    """Raise UserError where a file's options are those of another method."""
    theirs = raw.get("recipe", recipe)
    if theirs != recipe and any(map(raw.get, config.METHOD)):
        raise UserError(
            f"the options of the method in {file} belong to "
            f"{f'its recipe {theirs}' if theirs else 'its own [stages]'}, not to "
            f"{recipe}: leave the recipe out, or the file's [algorithm], [stages] and "
            "[phases]"
        )


def _check_method(method: Method, raw: dict[str, Any], file: Path | None) -> None:
    """Raise UserError for a method beside a file with options of one, and for a part whose class
    was defined anew after the method was made: the run's files name it, and that is the new class.
    """
    if any(map(raw.get, config.METHOD)):
        raise UserError(
            f"{file} has [algorithm], [stages] or [phases], which a method that is given replaces: "
            "leave them out, or give the recipe as a line"
        )
    for _, use in method.uses():
        name = name_to_load(type(use.part))
        if ":" in name and load("part", name) is not type(use.part):
            raise UserError(
                f"{name} was defined anew after the method was made with it: make the method again"
            )


def _model_given(assignments: Assignments, *sources: dict[str, Any]) -> str:
    """The name of the requested model, whose default settings apply; empty: none is requested."""
    for each in reversed(assignments):
        name, value = each.split("=", 1) if isinstance(each, str) else each
        if name.strip() == "model.name":
            return str(value).strip().strip("\"'")
    names = [source.get("model", {}).get("name", "") for source in sources]
    return next(filter(None, names), "")


def from_keywords(options: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Keywords of a call as options. In `training_lr=2e-5` the first underscore stands for the dot
    of `training.lr`; a name with dots, in `**{"loss.clip_high": 0.3}`, stays as it is.

    Raises UserError for a function, which a run's files cannot hold, and for None as a setting.
    """
    for name, value in options.items():
        if inspect.isfunction(value):
            place = f"{name} is a function: give it here by its place, file.py:function"
            theirs = peers.ours(name, least=peers.WHOLE)
            raise UserError(f"no option {name}{theirs}" if theirs else place)
    found = [(dotted(name, HEADS), value) for name, value in options.items()]
    for path, value in found:
        if value is None and path in config.settings():  # none as text would be a setting's value
            raise UserError(f"{path} is None: give a value, or leave it out for the default")
    return [(path, plain(value)) for path, value in found]


def plain(value: Any) -> Any:
    """A value in the form of a configuration: parts and schedules in notation, paths as text, and
    the class of an environment as its task.
    """
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, type) and issubclass(value, Environment):
        return task_of_class(value)
    found = as_notation(value)
    return [plain(each) for each in found] if isinstance(found, tuple) else found


Recipe: TypeAlias = str | Method | Callable[..., Method]  # accepted by `train` and others


def method_of(recipe: object) -> "str | Method":
    """A recipe in one line, a method, or the method that a function returns. Raises UserError."""
    made = recipe
    if inspect.isfunction(recipe):
        named = (
            p for p in inspect.signature(recipe).parameters.values() if "VAR" not in p.kind.name
        )
        needed = [p.name for p in named if p.default is p.empty]
        if needed:
            raise UserError(
                f"the recipe {recipe.__name__} needs {needed[0]}: call it, and give what it returns"
            )
        made = recipe()
    if isinstance(made, str | Algorithm | Phases):
        return made
    raise UserError(
        f"recipe is {type(made).__name__}: give a line such as 'gspo(clip_high=4e-4)', what "
        "strop.recipe() returns, or a function that returns an Algorithm"
    )


def recipe(line: str = DEFAULT, **parameters: Any) -> Method:
    """The method of a recipe, `strop.recipe("gspo", clip_high=4e-4)`, to look at and to change.

    line: a name, a recipe in one line, or several as `until(...) | ...`. parameters: also options
    by their own names, as `replace` takes them, `**{"loss.clip_high": 0.3}`. Raises UserError.
    """
    if not isinstance(line, str):
        raise UserError(f"recipe is {type(line).__name__}: give its name or line as text")
    line = spelled(line)
    options = {name: value for name, value in parameters.items() if "." in name}
    own = {name: value for name, value in parameters.items() if name not in options}
    if own:
        name, given = notation.named(line)
        method = notation.build_recipe(name, {**given, **own})
    else:
        method = notation.recipe(line)
    return method.replace(**options) if options else method


Labelled = Sequence[tuple[str, Any]]  # label; a method, or a method with its own options


def labelled(methods: Any, what: str) -> list[tuple[str, Any]]:
    """Label and method of each. what: a verb for the error, such as compare. Raises UserError."""
    if isinstance(methods, Mapping):
        found = [(str(label), each) for label, each in methods.items()]
    elif _is_one(methods) or not isinstance(methods, Iterable):
        found = [(label_of(methods), methods)]
    else:
        found = [(label_of(each), each) for each in methods]
    if not found:
        raise UserError(f"name the methods to {what}, such as ['grpo', 'rloo']")
    return found


def label_of(method: Any) -> str:
    """The label of a method that was given without one. Raises UserError where it has no name."""
    if isinstance(method, str):
        return method
    if _is_one(method):
        return " ".join([method[0], *(f"{k}={v}" for k, v in method[1].items())])
    name = getattr(method, "__name__", "") if callable(method) else ""
    if name.isidentifier():  # a lambda's is not
        return str(name)
    raise UserError("a method that is not a line has no name: give a dict, {'mine': method}")


def settings_of_all(
    named: Labelled, given: Mapping[str, Any], options: Mapping[str, Any]
) -> list[tuple[str, RunConfig]]:
    """The configuration of every method. If one method needs a shipped model, all train that model.

    given: sections common to all. options: keywords common to all. Raises UserError.
    """
    pairs = [(label, each if isinstance(each, tuple) else (each, {})) for label, each in named]
    lines = [method for _, (method, _) in pairs if isinstance(method, str)]
    if not given.get("model") and (needed := next(filter(None, map(model_of, lines)), "")):
        given = {**given, "model": {"name": needed}}

    def settings(pair: tuple[Any, Mapping[str, Any]]) -> RunConfig:
        method, own = pair
        return combined(method_of(method), from_keywords({**options, **own}), dict(given))

    made = made_of_each(pairs, settings)
    return [(label, each) for (label, _), each in zip(pairs, made, strict=True)]


def _is_one(method: Any) -> bool:
    """Whether it is a line, or a line with its own options."""
    if isinstance(method, tuple) and len(method) == 2:
        return isinstance(method[0], str) and isinstance(method[1], Mapping)
    return isinstance(method, str)
