"""Calls reward functions with the arguments that their parameters name, and checks the results.

The form that needs nothing but this package is TRL's: `def reward(prompts, completions, <columns>,
**kwargs) -> list[float | None]`, sync or async; every argument is a list with one entry a rollout
and is passed by name. A function without `**kwargs` receives only the parameters it has. Beside the
data's columns it may take `completion_ids`, `trainer_state` (with `global_step` and
`max_steps`), `log_metric(name, value)` and `log_extra(column, values)`. The other forms are in
`forms.py`.
In place of a score a function may give `Unscored("reason")`.
"""

import inspect
import math
import numbers
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from strop.rewards.forms import FORMS_IN_SHORT, PARAMETERS, Caller, form_of, is_per_row
from strop.rewards.scored import Rollouts, Scored, Unscored, plain
from strop.rewards.source import RewardSpec, find, parse
from strop.rewards.traces import TaskRewards
from strop.support.errors import UserError, did_you_mean
from strop.support.exits import Exit

# Names of metrics that the trainer logs itself.
RESERVED = (
    "step", "step_time", "num_tokens", "num_rollouts", "reward", "reward_std",
    "frac_reward_zero_std", "entropy", "loss", "policy_loss", "grad_norm", "learning_rate",
)  # fmt: skip
RESERVED_BEGINNINGS = ("eval/", "timing_s/", "perf/", "loss/")


@dataclass(frozen=True)
class RewardFunction:
    """A loaded reward function that is called by column names."""

    spec: RewardSpec
    caller: Caller
    required: tuple[str, ...]  # parameters without a default

    @property
    def rows_are_independent(self) -> bool:
        """Whether rows may be scored in pieces: by the spec, the function or its form, and always
        where the reward is built in.
        """
        says = getattr(self.caller.function, "rows_are_independent", False)
        built_in = parse(self.spec.source).kind == "built_in"
        per_row = is_per_row(self.caller.form, self.caller.names)
        return self.spec.rows_are_independent or says or built_in or per_row

    @property
    def timeout_seconds(self) -> float | None:
        """The seconds that the function needs for a call, when it limits its own time.

        Raises UserError for any other value.
        """
        given = getattr(self.caller.function, "timeout_seconds", None)
        if given is None:
            return None
        if isinstance(given, bool) or not isinstance(given, numbers.Real) or not float(given) > 0:
            raise UserError(
                f"reward {self.spec.source} has timeout_seconds = {given!r}: make it a positive "
                "number of seconds"
            )
        return float(given)

    def check(self, columns: Iterable[str]) -> None:
        """Raise UserError when a parameter has no column, naming both sides."""
        names = list(columns)
        supplied = PARAMETERS[self.caller.form]
        for parameter in self.required:
            others = supplied.get(parameter)
            if others is None or (others and not {parameter, *others} & set(names)):
                self._require(parameter, names)

    def __call__(self, rollouts: Rollouts) -> Scored:
        """Score the rollouts. Raises UserError for a result that does not have one entry each, and,
        if the rollouts are `strict`, for an entry that is no score.
        """
        self.check(rollouts.columns)
        scored = Scored()
        arguments = self._supplied(rollouts, scored)
        result = self.caller(rollouts, rollouts.columns, scored, arguments)
        scored.scores = self._checked(result, rollouts.rows, scored, rollouts.strict)
        return scored

    def _require(self, parameter: str, columns: list[str]) -> None:
        if parameter in columns:
            return
        fits = self.caller.names & set(PARAMETERS[self.caller.form])
        forms = "" if fits or self.caller.takes_any else f"; a reward takes {FORMS_IN_SHORT}"
        raise UserError(
            f"reward {self.spec.source} needs the parameter {parameter!r} and the data has no "
            f"column {parameter!r}{did_you_mean(parameter, columns)}; its columns are "
            f"{', '.join(columns) or 'none'}: add it, or rename one with data.columns{forms}"
        )

    def _supplied(self, rollouts: Rollouts, scored: Scored) -> dict[str, Any]:
        num_rows = len(rollouts.rows)

        def log_metric(name: str, value: float) -> None:
            if str(name) in RESERVED or str(name).startswith(RESERVED_BEGINNINGS):
                raise UserError(
                    f"reward {self.spec.source} called log_metric({name!r}): the trainer logs a "
                    "number of that name itself; take another"
                )
            scored.metrics[str(name)] = float(value)

        def log_extra(column: str, values: Sequence[Any]) -> None:
            listed = list(values)
            if len(listed) != num_rows:
                raise UserError(
                    f"reward {self.spec.source} called log_extra({column!r}) with {len(listed)} "
                    f"values for {num_rows} completions: give one value each"
                )
            scored.extra[str(column)] = listed

        return {
            "prompts": rollouts.prompts,
            "completions": rollouts.completions,
            "completion_ids": rollouts.completion_ids,
            "trainer_state": SimpleNamespace(
                global_step=rollouts.step, max_steps=rollouts.max_steps
            ),
            "log_extra": log_extra,
            "log_metric": log_metric,
        }

    def _checked(
        self, result: Any, rows: Sequence[int], scored: Scored, strict: bool
    ) -> list[float | None]:
        source, result = self.spec.source, plain(result)
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
        for position, value in enumerate(values):
            found = _number(value, source, rows[position])
            if isinstance(found, Unscored):
                if strict and found is not value:
                    raise UserError(found.reason)
                scored.unscored[position], found = (int(found.cause), found.reason), None
            values[position] = found
        return values


def load_reward(spec: RewardSpec) -> RewardFunction:
    """Find a reward and its form, by its parameters or by the form before its source.

    Raises UserError for what `source.find` refuses, and for parameters of several forms.
    """
    source = parse(spec.source)
    function, form = find(source), source.form
    if inspect.isclass(function):
        function, form = TaskRewards(function, spec.source), "verifiers"
    kinds = inspect.signature(function).parameters.values()
    named = [p for p in kinds if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    names = {p.name for p in named}
    takes_any = any(p.kind is p.VAR_KEYWORD for p in kinds)
    form = form or form_of(names, spec.source)
    caller = Caller(function, form, names, takes_any, spec.name)
    return RewardFunction(spec, caller, tuple(p.name for p in named if p.default is p.empty))


def _number(value: Any, source: str, row: int) -> float | Unscored | None:
    """A score as a number; Unscored for a value that is none."""
    if value is None or isinstance(value, Unscored):
        return value
    value = plain(value)
    if not isinstance(value, numbers.Real) or not math.isfinite(value):
        return Unscored(
            f"reward {source} returned {_short(value)} for row {row}: return a finite number, or "
            "None where the reward does not apply",
            Exit.UNREADABLE,
        )
    return float(value)


def _short(value: Any) -> str:
    text = repr(value)
    return (text if len(text) <= 60 else text[:57] + "...") + f" ({type(value).__name__})"
