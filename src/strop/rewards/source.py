"""Finds a reward by its source: `FILE.py:NAME`, `MODULE:NAME`, a built-in, a model or a judge.

`MODULE:NAME(option=value)` calls a factory of rewards, such as those of TRL.
"""

import ast
import importlib
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from strop.rewards import pickled
from strop.support.errors import UserError, did_you_mean, in_words, nearest_first
from strop.support.loading import module_at, where_raised

BUILT_IN = {
    "exact_match": "strop.rewards.answers:exact_match",
    "math_verify": "strop.rewards.mathematics:math_verify",
    "run_python": "strop.rewards.code:RunPython",
    "run_tests": "strop.rewards.code:RunTests",
}
# Sources of the form `kind:PLACE`, with the class that is called with the place and options.
MADE = {"judge": "strop.rewards.judge:Judge", "model": "strop.rewards.model:RewardModel"}
FORMS = ("trl", "verl", "openrlhf", "verifiers")
_OPTIONS = re.compile(r"(?P<source>[^()]+)(?P<options>\(.*\))", re.DOTALL)


@dataclass(frozen=True)
class RewardSpec:
    """Where a reward function lives and how its value enters the weighted sum."""

    name: str
    source: str  # "module:function", "path/file.py:function", or a built-in name
    weight: float = 1.0
    # True: a row's score never depends on the other rows, so a batch may be scored in pieces.
    rows_are_independent: bool = False


@dataclass(frozen=True)
class Source:
    """A source's pieces: `kind` is function, built_in, judge, model or pickled."""

    text: str
    kind: str
    place: str
    name: str = ""
    form: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    is_called: bool = False  # it is written with brackets, so it is a factory of the reward


def parse(text: str) -> Source:
    """Parse a source. Raises UserError for an unknown kind."""
    if text.startswith(f"{pickled.KIND}:"):
        return Source(text, pickled.KIND, text.partition(":")[2])
    source, options = _with_options(text)
    kind, _, place = source.partition(":")
    if kind in MADE and place:
        return Source(text, kind, place, options=options)
    if source in BUILT_IN:
        return Source(text, "built_in", source, options=options)
    form = kind if kind in FORMS and ":" in place else ""
    place, _, name = (place if form else source).rpartition(":")
    if source.endswith(".py"):
        raise UserError(f"reward {text!r} is a file: name the function in it, {source}:FUNCTION")
    if not place or not name:
        raise UserError(
            f"unknown reward {text!r}{did_you_mean(source, BUILT_IN)}: give FILE.py:FUNCTION, "
            f"MODULE:FUNCTION, model:FOLDER, judge:FILE.toml, or one of "
            f"{', '.join(sorted(BUILT_IN))}"
        )
    return Source(text, "function", place, name, form, options, source != text)


def reward_name(text: str) -> str:
    """The name in metrics and columns: the function's, or the last piece of a folder or file."""
    source = parse(text)
    if source.name:
        return source.name
    path = Path(source.place)
    return path.name if source.kind == "model" else path.stem


def reward_names(sources: Sequence[str]) -> list[str]:
    """The names of several sources; a further source of one name gets a number, as in `score_2`."""
    plain = {source: reward_name(source) for source in sources}
    found = dict[str, str]()
    for source, name in plain.items():
        number, own = 1, name
        while own in found.values() or (number > 1 and own in plain.values()):
            number += 1
            own = f"{name}_{number}"
        found[source] = own
    return [found[source] for source in sources]


def find(source: Source) -> Callable[..., Any]:
    """The callable of a source.

    Raises UserError for a file or module that is missing or fails to import (with file and line),
    for a function that is not in it (with the functions that are), and for wrong options.
    """
    if source.kind == pickled.KIND:
        return pickled.read(source.place)
    if source.kind == "function":
        function = _function(source.place, source.name)
        return _made(function, source) if source.is_called else function
    target = MADE.get(source.kind) or BUILT_IN[source.place]
    place, _, name = target.rpartition(":")
    found: Any = getattr(importlib.import_module(place), name)
    if not inspect.isclass(found):
        if source.options:
            raise UserError(f"reward {source.text!r} takes no options: leave them out")
        return found
    known = [name for name in inspect.signature(found).parameters if name != "place"]
    for option in source.options:
        if option not in known:
            raise UserError(
                f"reward {source.text!r} has no option {option!r}{did_you_mean(option, known)}; "
                f"it has {', '.join(known) or 'none'}"
            )
    places = () if source.kind == "built_in" else (source.place,)
    made: Any = found(*places, **source.options)
    return made


def _with_options(text: str) -> tuple[str, dict[str, Any]]:
    """Split `name(option=value, ...)` into name and options; other text is returned unchanged."""
    match = _OPTIONS.fullmatch(text)
    if match is None:
        return text, {}
    try:
        call = ast.parse(f"f{match['options']}", mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            raise ValueError("after a name stand its options alone")
        if call.args or any(word.arg is None for word in call.keywords):
            raise ValueError("options are written option=value")
        options = {str(word.arg): _literal(word.value) for word in call.keywords}
        if len(options) < len(call.keywords):
            raise ValueError("an option stands twice")
    except (SyntaxError, ValueError) as error:
        raise UserError(
            f"reward {text!r}: cannot read its options ({error}): write them as "
            'NAME(option=value, other="text")'
        ) from error
    return match["source"], options


def _literal(node: ast.expr) -> Any:
    if isinstance(node, ast.Name) and node.id in ("true", "false"):
        return node.id == "true"
    return ast.literal_eval(node)


def _made(factory: Callable[..., Any], source: Source) -> Callable[..., Any]:
    """The reward that a factory gives. Raises UserError for options that it refuses."""
    known = inspect.signature(factory).parameters
    try:
        made = factory(**source.options)
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"reward {source.text!r}: {in_words(error)} ({where_raised(error)}); it has the "
            f"options {', '.join(known) or 'none'}"
        ) from error
    if not callable(made):
        raise UserError(
            f"reward {source.text!r}: {source.name} returned {type(made).__name__}, it must return "
            "a reward function; one that is a reward itself stands without brackets"
        )
    return made


def _function(place: str, name: str) -> Callable[..., Any]:
    module = module_at(place)
    function = getattr(module, name, None)
    if not callable(function):
        there = [
            key
            for key, value in vars(module).items()
            if inspect.isfunction(value) and value.__module__ == module.__name__
        ]
        raise UserError(
            f"{place} has no function {name!r}{did_you_mean(name, there)}; its functions are "
            f"{nearest_first(name, there)}"
        )
    return function
