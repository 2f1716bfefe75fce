"""Reward functions: found by source, called with the columns they ask for, their result checked.

A reward is `def reward(prompts, completions, <columns>, **kwargs) -> list[float | None]`, sync or
async; every argument is a list with one entry a rollout and is passed by name. A function without
`**kwargs` receives only the parameters it has. Beside the data's columns it may ask for
`completion_ids`, `trainer_state` (with `global_step`), `log_metric(name, value)` and
`log_extra(column, values)`. The form is TRL's.
"""

import asyncio
import importlib
import importlib.util
import inspect
import math
import numbers
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from strop.errors import UserError
from strop.tasks.names import did_you_mean, nearest_first
from strop.tasks.task import RewardSpec

BUILT_IN = {
    "exact_match": "strop.tasks.answers:exact_match",
    "math_verify": "strop.tasks.mathematics:math_verify",
}
SUPPLIED = frozenset(
    ("prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric")
)


@dataclass(frozen=True)
class Rollouts:
    """What one call of a reward sees; `rows` are the rollouts' places in the whole batch."""

    rows: Sequence[int]
    prompts: Sequence[Any]
    completions: Sequence[Any]
    completion_ids: Sequence[Sequence[int]]
    columns: Mapping[str, Sequence[Any]]
    step: int


@dataclass
class Scored:
    """What one call gave: a score or None for each rollout, and what the function logged."""

    scores: list[float | None] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)
    extra: dict[str, list[Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class RewardFunction:
    """A loaded reward function that is called by column names."""

    spec: RewardSpec
    function: Callable[..., Any]
    parameters: tuple[str, ...]  # that may be passed by name
    required: tuple[str, ...]  # those of them without a default
    takes_any: bool  # has **kwargs

    def check(self, columns: Iterable[str]) -> None:
        """Raise UserError when a parameter has no column, naming both sides."""
        names = list(columns)
        for parameter in self.required:
            column = self.spec.fields.get(parameter, parameter)
            if parameter not in SUPPLIED and column not in names:
                self._refuse(parameter, column, names)
        for parameter, column in self.spec.fields.items():
            if parameter not in self.parameters and not self.takes_any:
                raise UserError(
                    f"reward {self.spec.source} has no parameter {parameter!r}"
                    f"{did_you_mean(parameter, self.parameters)}; it has "
                    f"{', '.join(self.parameters)}"
                )
            if column not in names:
                self._refuse(parameter, column, names)

    def __call__(self, rollouts: Rollouts) -> Scored:
        """Score the rollouts. Raises UserError for a result that is not one number or None each."""
        self.check(rollouts.columns)
        scored = Scored()
        result = self.function(**self._arguments(rollouts, scored))
        if inspect.isawaitable(result):
            result = asyncio.run(_awaited(result))
        scored.scores = self._checked(result, rollouts.rows)
        return scored

    def _refuse(self, parameter: str, column: str, columns: list[str]) -> None:
        raise UserError(
            f"reward {self.spec.source} needs the parameter {parameter!r} and the data has no "
            f"column {column!r}{did_you_mean(column, columns)}; its columns are "
            f"{', '.join(columns) or 'none'}: add the column or map the parameter to another"
        )

    def _arguments(self, rollouts: Rollouts, scored: Scored) -> dict[str, Any]:
        num_rows = len(rollouts.rows)

        def log_metric(name: str, value: float) -> None:
            scored.metrics[str(name)] = float(value)

        def log_extra(column: str, values: Sequence[Any]) -> None:
            listed = list(values)
            if len(listed) != num_rows:
                raise UserError(
                    f"reward {self.spec.source} called log_extra({column!r}) with {len(listed)} "
                    f"values for {num_rows} completions: give one value each"
                )
            scored.extra[str(column)] = listed

        available = {
            **rollouts.columns,
            **{p: rollouts.columns[column] for p, column in self.spec.fields.items()},
            "prompts": rollouts.prompts,
            "completions": rollouts.completions,
            "completion_ids": rollouts.completion_ids,
            "trainer_state": SimpleNamespace(global_step=rollouts.step),
            "log_extra": log_extra,
            "log_metric": log_metric,
        }
        if self.takes_any:
            return available
        return {name: available[name] for name in self.parameters if name in available}

    def _checked(self, result: Any, rows: Sequence[int]) -> list[float | None]:
        source = self.spec.source
        if isinstance(result, (str, bytes, Mapping)) or not hasattr(result, "__len__"):
            raise UserError(
                f"reward {source} returned {_short(result)}: it must return a list with one "
                "number or None for each completion"
            )
        values = list(result)
        if len(values) != len(rows):
            raise UserError(
                f"reward {source} returned {len(values)} scores for {len(rows)} completions: "
                "return one number or None for each"
            )
        return [_number(v, source, row) for v, row in zip(values, rows, strict=True)]


def load_reward(spec: RewardSpec) -> RewardFunction:
    """Find a reward function: `FILE.py:FUNCTION` (from the working folder), `MODULE:FUNCTION`, or
    a built-in name.

    Raises UserError for a file or module that is missing or fails to import (with file and line),
    and for a function that is not in it (with the functions that are).
    """
    if spec.source in BUILT_IN:
        place, _, name = BUILT_IN[spec.source].rpartition(":")
    else:
        place, _, name = spec.source.rpartition(":")
    if not place or not name:
        raise UserError(
            f"unknown reward {spec.source!r}{did_you_mean(spec.source, BUILT_IN)}: give "
            f"FILE.py:FUNCTION, MODULE:FUNCTION, or one of {', '.join(sorted(BUILT_IN))}"
        )
    module = _file_module(place) if place.endswith(".py") else _named_module(place)
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
    kinds = inspect.signature(function).parameters.values()
    named = [p for p in kinds if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    return RewardFunction(
        spec=spec,
        function=function,
        parameters=tuple(p.name for p in named),
        required=tuple(p.name for p in named if p.default is p.empty),
        takes_any=any(p.kind is p.VAR_KEYWORD for p in kinds),
    )


def _file_module(place: str) -> ModuleType:
    path = Path(place).resolve()
    if not path.is_file():
        raise UserError(f"reward file {place} does not exist: check the path (from {Path.cwd()})")
    name = f"strop_rewards_{path.stem}"
    loaded = sys.modules.get(name)
    if loaded is not None and loaded.__file__ == str(path):
        return loaded
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    _search_first(path.parent)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise _import_failed(place, error) from error
    return module


def _named_module(place: str) -> ModuleType:
    _search_first(Path.cwd())
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name is not None and (place + ".").startswith(error.name + "."):
            raise UserError(
                f"reward module {place!r} was not found: write FILE.py:FUNCTION for a file, or "
                "install the module"
            ) from error
        raise _import_failed(place, error) from error
    except Exception as error:
        raise _import_failed(place, error) from error


def _search_first(folder: Path) -> None:
    """Modules beside the user's file are found as when the file is run itself."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _import_failed(place: str, error: Exception) -> UserError:
    if isinstance(error, SyntaxError):
        where = f"{error.filename}:{error.lineno}"
        return UserError(f"{where}: {type(error).__name__}: {error.msg} (importing {place})")
    return UserError(f"{where_raised(error)}: {type(error).__name__}: {error} (importing {place})")


def where_raised(error: BaseException) -> str:
    """`file:line` of the innermost frame outside the import machinery."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith("<frozen")
    ]
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "unknown place"


async def _awaited(result: Any) -> Any:
    return await result


def _number(value: Any, source: str, row: int) -> float | None:
    if value is None:
        return None
    if not isinstance(value, numbers.Real) and getattr(value, "shape", None) == ():
        value = value.item()  # one number of an array or tensor
    if not isinstance(value, numbers.Real) or not math.isfinite(value):
        raise UserError(
            f"reward {source} returned {_short(value)} for row {row}: return a finite number, or "
            "None where the reward does not apply"
        )
    return float(value)


def _short(value: Any) -> str:
    text = repr(value)
    return (text if len(text) <= 60 else text[:57] + "...") + f" ({type(value).__name__})"
