"""The four forms of reward functions: how a form is recognised, and how it is called.

    trl         reward(prompts, completions, <columns>, **kwargs) -> list of numbers or None
    verl        compute_score(data_source, solution_str, ground_truth, extra_info) -> number, dict
    openrlhf    reward_func(queries, prompts, labels) -> {"rewards": ..., "extra_logs": ...}
    verifiers   a task's class, whose methods marked with @vf.reward read (self, trace);
                func(task, trace) -> number; and as before its version 1
                func(prompt, completion, answer, state, info, task, parser) -> number;
                func(prompts, completions, answers, states, ...) -> list, a prompt group at a time

A form is recognised by the names of its parameters. Functions of verl's form, and of verifiers'
with singular names, are called once a row, so a row that raises fails alone.
"""

import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any

from strop.rewards.answers import REFERENCES, references, text_of
from strop.rewards.scored import Rollouts, Scored, Unscored, numbers_of, plain
from strop.rewards.traces import Trace
from strop.support.errors import UserError, in_words
from strop.support.exits import Exit
from strop.support.files import json_of
from strop.support.loading import where_raised

FORMS_IN_SHORT = (
    "(prompts, completions, **columns) as in TRL; (data_source, solution_str, ground_truth, "
    "extra_info) as in verl; (queries, prompts, labels) as in OpenRLHF; (task, trace), a task's "
    "class or (prompt, completion, answer, state, info, task, parser) as in verifiers"
)
# Parameter -> columns, of which each row's first value is passed; an empty tuple: always available.
PARAMETERS: dict[str, dict[str, tuple[str, ...]]] = {
    "trl": dict.fromkeys(
        ("prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric"), ()
    ),
    "verl": {"solution_str": (), "data_source": (), "extra_info": (), "ground_truth": REFERENCES},
    "openrlhf": {"queries": (), "prompts": (), "labels": ("label", "labels", *REFERENCES)},
    "verifiers": {
        **dict.fromkeys(("prompt", "completion", "state", "info", "task", "parser", "trace"), ()),
        **dict.fromkeys(("prompts", "completions", "states", "infos", "tasks"), ()),
        "answer": REFERENCES,
        "answers": REFERENCES,
    },
}
_TRL_ALONE = {"completions", "completion_ids", "trainer_state", "log_extra", "log_metric"}
Arguments = dict[str, Any]


def form_of(names: set[str], source: str) -> str:
    """The form of a function with these parameters. Raises UserError when they fit several."""
    found = {
        "verl": "solution_str" in names,
        "openrlhf": "queries" in names,
        "verifiers": bool(names & {"completion", "prompt", "states"})
        or (bool(names & {"state", "parser", "trace"}) and not names & {*_TRL_ALONE, "prompts"}),
    }
    forms = [form for form, fits in found.items() if fits]
    plural = names & (_TRL_ALONE if forms == ["openrlhf"] else {*_TRL_ALONE, "prompts"})
    if len(forms) > 1 or (plural and forms and "states" not in names):
        both = [*sorted(names & {"solution_str", "queries", "completion", "prompt"}), *plural]
        raise UserError(
            f"reward {source} mixes parameters of several forms ({', '.join(sorted(set(both)))}): "
            f"write {FORMS_IN_SHORT}, or say which it is by trl:, verl:, openrlhf: or verifiers: "
            "before the source"
        )
    return forms[0] if forms else "trl"


def is_per_row(form: str, names: set[str]) -> bool:
    """Whether a function is called once a row."""
    return form == "verl" or (form == "verifiers" and not names & {"completions", "states"})


@dataclass(frozen=True)
class Caller:
    """Calls a function of one form on rollouts; `name` is the reward's."""

    function: Callable[..., Any]
    form: str
    names: set[str]  # of its parameters that may be passed by name
    takes_any: bool  # has **kwargs
    name: str

    def __call__(self, rollouts: Rollouts, columns: Mapping[str, Sequence[Any]], scored: Scored,
                 extra_arguments: Arguments) -> Any:  # fmt: skip
        """Call the function; `columns` are the rollouts' columns."""
        if self.form == "trl":
            return _awaited(self.function(**self._accepted({**columns, **extra_arguments})))
        if self.form == "openrlhf":
            return self._openrlhf(rollouts, columns, scored)
        if self.form == "verl":
            return self._verl(rollouts, columns, scored)
        return self._verifiers(rollouts, columns, scored)

    def _accepted(self, available: Arguments) -> Arguments:
        if self.takes_any:
            return available
        return {name: value for name, value in available.items() if name in self.names}

    def _named(self, columns: Mapping[str, Any], position: int) -> Arguments:
        """The row's values of the columns that are parameters."""
        return {name: column[position] for name, column in columns.items() if name in self.names}

    def _verl(
        self, rollouts: Rollouts, columns: Mapping[str, Sequence[Any]], scored: Scored
    ) -> list[Any]:
        wanted = _references(columns, "verl", "ground_truth")
        sources, infos = columns.get("data_source"), columns.get("extra_info")
        results: list[Any] = [None] * len(rollouts.rows)
        if wanted is None:
            applies = list(range(len(results)))
        else:
            applies = [i for i, value in enumerate(wanted) if value is not None]
        arguments = [
            {
                **self._named(columns, i),
                "data_source": (sources[i] if sources else None) or "",
                "solution_str": text_of(rollouts.completions[i]),
                "ground_truth": wanted[i] if wanted else None,
                "extra_info": _nested(infos[i] if infos else None, "extra_info"),
            }
            for i in applies
        ]
        for i, result in zip(
            applies, self._each([self._accepted(a) for a in arguments]), strict=True
        ):
            results[i] = result
        return self._with_logs(results, scored)

    def _with_logs(self, results: list[Any], scored: Scored) -> list[Any]:
        """The scores of per-row results; a dict's key `score` counts, and its others are logged."""
        keys = dict.fromkeys(key for r in results if isinstance(r, Mapping) for key in r)
        for key in keys:
            if key != "score":
                values = [r.get(key) if isinstance(r, Mapping) else None for r in results]
                self._log(str(key), values, scored)
        return [self._value(r, "score") if isinstance(r, Mapping) else r for r in results]

    def _value(self, result: Mapping[str, Any], key: str) -> Any:
        if key not in result:
            there = ", ".join(map(str, result)) or "nothing"
            raise UserError(
                f"reward {self.name} returned a dict with {there}: it must have the key {key!r}"
            )
        return result[key]

    def _openrlhf(
        self, rollouts: Rollouts, columns: Mapping[str, Sequence[Any]], scored: Scored
    ) -> Any:
        prompts = _prompt_texts(rollouts, self.name)
        texts = [text_of(completion) for completion in rollouts.completions]
        labels = _references(columns, "openrlhf", "labels")
        arguments = {
            **columns,
            "queries": [p + c for p, c in zip(prompts, texts, strict=True)],
            "prompts": prompts,
            "labels": labels or [""] * len(prompts),
        }
        result = _awaited(self.function(**self._accepted(arguments)))
        if not isinstance(result, Mapping):
            return _listed(result)
        rewards = self._value(result, "rewards")
        logs = dict(result.get("extra_logs") or {})
        if result.get("scores") is not None:
            logs["scores"] = result["scores"]
        for key, value in logs.items():
            self._log(str(key), _listed(value), scored, len(prompts))
        return _listed(rewards)

    def _verifiers(
        self, rollouts: Rollouts, columns: Mapping[str, Sequence[Any]], scored: Scored
    ) -> list[Any]:
        rows = list(self._states(rollouts, columns))
        if is_per_row("verifiers", self.names):
            return self._with_logs(self._each([self._accepted(row) for row in rows]), scored)
        scores: list[Any] = [None] * len(rows)
        for members in _groups(rollouts):
            group = {f"{key}s": [rows[i][key] for i in members] for key in _PLURAL}
            named = {
                key: [c[i] for i in members] for key, c in columns.items() if key in self.names
            }
            group = {**named, **group, "parser": self._parser()}
            result = _listed(_awaited(self.function(**self._accepted(group))))
            if not isinstance(result, list) or len(result) != len(members):
                size = len(result) if isinstance(result, list) else type(result).__name__
                raise UserError(
                    f"reward {self.name} gave {size} scores for a group of "
                    f"{len(members)} completions: return a list with one number for each"
                )
            for i, score in zip(members, result, strict=True):
                scores[i] = score
        return scores

    def _states(
        self, rollouts: Rollouts, columns: Mapping[str, Sequence[Any]]
    ) -> Iterator[Arguments]:
        answers = _references(columns, "verifiers", "answer")
        infos, tasks = columns.get("info"), columns.get("task")
        for i, (prompt, completion) in enumerate(
            zip(rollouts.prompts, rollouts.completions, strict=True)
        ):
            row = {
                "prompt": prompt,
                "completion": completion,
                "answer": answers[i] if answers else "",
                "info": _nested(infos[i] if infos else None, "info"),
                "task": (tasks[i] if tasks else None) or "default",
            }
            if "trace" in self.names:
                values = {name: column[i] for name, column in columns.items()}
                trace = Trace.of(
                    prompt, completion, {**values, "answer": row["answer"]},
                    len(rollouts.completion_ids[i]),
                    rollouts.truncated[i] if rollouts.truncated else None,
                )  # fmt: skip
                row |= {"trace": trace, "task": trace.task.data}
            named = self._named(columns, i)
            yield {**named, **row, "state": dict(row), "parser": self._parser()}

    def _parser(self) -> Any:
        """The variable `parser` of the function's module, or else one that returns all text."""
        module = sys.modules.get(getattr(self.function, "__module__", ""))
        usual = SimpleNamespace(parse=lambda text: text, parse_answer=text_of)
        return getattr(module, "parser", usual)

    def _each(self, rows: Sequence[Arguments]) -> list[Any]:
        """Call the function on each row; one that raises is Unscored. Async calls run together."""
        results: list[Any] = []
        for row in rows:
            try:
                results.append(self.function(**row))
            except UserError:
                raise
            except Exception as error:
                results.append(_failed(error))
        waiting = [i for i, result in enumerate(results) if inspect.isawaitable(result)]
        if waiting:
            values = _awaited(_gathered([results[i] for i in waiting]))
            for i, value in zip(waiting, values, strict=True):
                if isinstance(value, UserError):
                    raise value
                results[i] = _failed(value) if isinstance(value, Exception) else value
        return results

    def _log(self, key: str, values: Any, scored: Scored, num_rows: int | None = None) -> None:
        """Log a column for the rollouts' file, and the mean of its numbers as a metric."""
        listed = values if isinstance(values, list) else [values]
        if given := numbers_of(listed):
            scored.metrics[f"rewards/{self.name}/{key}"] = sum(given) / len(given)
        if num_rows is None or len(listed) == num_rows:
            scored.extra[f"{self.name}/{key}"] = listed


_PLURAL = ("prompt", "completion", "answer", "info", "task", "state")


def _nested(value: Any, column: str) -> dict[str, Any]:
    """A row's nested column, also one that a file holds as JSON text; empty where it has none.

    Raises UserError for any other value.
    """
    found = value or {}
    try:
        return dict(json_of(found) if isinstance(found, str) else found)
    except (TypeError, ValueError) as error:
        raise UserError(
            f"the column {column} of a row is {str(value)[:80]!r}: make it an object, or its JSON "
            "text, or give the column another name"
        ) from error


def _references(
    columns: Mapping[str, Sequence[Any]], form: str, parameter: str
) -> list[Any] | None:
    """Each row's first value of the parameter's columns; None where the data has none of them."""
    return references(*map(columns.get, PARAMETERS[form][parameter]))


def _prompt_texts(rollouts: Rollouts, name: str) -> list[str]:
    if rollouts.prompt_texts:
        return list(rollouts.prompt_texts)
    if not all(isinstance(prompt, str) for prompt in rollouts.prompts):
        raise UserError(f"reward {name} needs prompts as text and got messages without their text")
    return list(rollouts.prompts)


def _groups(rollouts: Rollouts) -> list[list[int]]:
    """Positions of the members of each prompt group, in order of first appearance."""
    members: dict[int, list[int]] = {}
    for i in range(len(rollouts.rows)):
        members.setdefault(rollouts.groups[i] if rollouts.groups else 0, []).append(i)
    return list(members.values())


def _awaited(result: Any) -> Any:
    if not inspect.isawaitable(result):
        return result

    async def one() -> Any:
        return await result

    return _runner(os.getpid()).run(one())


@cache
def _runner(process: int) -> Any:
    """The event loop of a process, by its number. It lasts for all calls, since clients and locks
    of a function's module belong to the loop in which they were first used.
    """
    import asyncio  # slow to import, and rarely needed

    return asyncio.Runner()


async def _gathered(waiting: Sequence[Any]) -> list[Any]:
    import asyncio

    return await asyncio.gather(*waiting, return_exceptions=True)


def _failed(error: Exception) -> Unscored:
    return Unscored(f"{in_words(error)} ({where_raised(error)})", Exit.EXCEPTION)


def _listed(value: Any) -> Any:
    """Convert arrays and tensors to lists, and a single number to a list of one."""
    found = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(found, list | tuple):
        return [plain(each) for each in found]
    return [found] if isinstance(found, (int, float)) else found
