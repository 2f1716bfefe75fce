"""Reads the stored tokens of a run's step, in the form that the page uses."""

import base64
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from strop.environments.tools import OK
from strop.support.errors import UserError
from strop.tracking.metrics_file import check_recorded
from strop.tracking.rollouts_file import read_table, rollouts_files

# Columns of the rollouts' file; other columns are results and logs of reward functions.
KNOWN = ("step", "uid", "draw", "prompt", "completion", "reward", "advantage", "length", "turns")
FLAGS = ("scored", "truncated", "gradient")
DROPPED_BITS = 10  # of a float's 23: the rest holds four digits and compresses well
MAX_TEXT = 20_000  # characters of a prompt, or of a logged text


@dataclass(frozen=True)
class Step:
    """A step's stored rollouts. columns: by name, the numbers of all their tokens in order."""

    number: int
    prompts: list[str]  # of the groups
    rollouts: list[dict[str, Any]]
    texts: list[str]  # distinct; the column `text_T` has indices into it
    columns: dict[str, NDArray[np.float32]]

    def packed(self) -> dict[str, Any]:
        """The same in a form for JSON: columns as base64 of packed 32-bit floats."""
        return {
            "step": self.number,
            "prompts": self.prompts,
            "rollouts": self.rollouts,
            "texts": self.texts,
            "columns": {name: _packed(column) for name, column in self.columns.items()},
        }


def recorded_steps(run: Path) -> list[int]:
    """The steps of which a run has stored tokens and rollouts, in increasing order.

    Raises UserError when there are none.
    """
    check_recorded(run, "config.toml")
    both = {path.stem for path in rollouts_files(run)} & {
        path.stem for path in (run / "tokens").glob("step-*.parquet")
    }
    found = [stem.removeprefix("step-") for stem in both]
    steps = sorted(int(number) for number in found if number.isdigit())
    if not steps:
        raise UserError(
            f"{run} has kept no tokens: a run keeps some every training.rollouts_every steps, of "
            "training.inspect rollouts; neither may be 0 when it starts"
        )
    return steps


def read_step(run: Path, number: int | None = None) -> Step:
    """Read a stored step, by default the last one. Raises UserError when it is missing, and for a
    damaged file.
    """
    steps = recorded_steps(run)
    number = steps[-1] if number is None else number
    if number not in steps:
        raise UserError(
            f"{run} has kept no tokens of step {number}; there are {', '.join(map(str, steps))}"
        )
    tokens = read_table(run / "tokens" / f"step-{number:06d}.parquet")
    rollouts = read_table(run / "rollouts" / f"step-{number:06d}.parquet")
    try:
        rows = [rollouts.slice(row, 1).to_pylist()[0] for row in tokens["row"].to_pylist()]
        return _step(number, tokens, rows)
    except (KeyError, IndexError) as error:
        raise UserError(
            f"the files of step {number} in {run}/tokens and {run}/rollouts do not match"
        ) from error


def _step(number: int, tokens: pa.Table, rows: Sequence[Mapping[str, Any]]) -> Step:
    """A step from its stored rollouts and their rows in the rollouts' file."""
    single = {n: tokens[n].to_pylist() for n in tokens.column_names if n.endswith("_B")}
    turns = {n: tokens[n].to_pylist() for n in tokens.column_names if n.endswith("_K")}
    listed = [n for n in tokens.column_names if pa.types.is_list(tokens[n].type) and n not in turns]
    flat = {name: tokens[name].combine_chunks().flatten() for name in listed}
    texts = flat.pop("text_T").dictionary_encode()
    columns = {name: _floats(values) for name, values in flat.items()}
    columns["text_T"] = texts.indices.to_numpy(zero_copy_only=False).astype(np.float32)
    sizes = [len(ids) for ids in tokens["id_T"]]
    prompts: dict[int, str] = {}
    rollouts = []
    for index, row in enumerate(rows):
        group = single["group_B"][index]
        prompts.setdefault(group, _prompt(row["prompt"]))
        rollouts.append(
            {
                "row": tokens["row"][index].as_py(),
                "group": group,
                "size": sizes[index],
                "parent": single["parent_B"][index],
                "fork": single["fork_at_B"][index],
                "reward": _finite(row["reward"]),
                "outcome": _finite(single.get("outcome_B", single["reward_B"])[index]),
                **{name: row[name] for name in FLAGS},
                "more": _more(row),
                "turns": _with_calls(
                    _turns({name: values[index] for name, values in turns.items()}),
                    row.get("turns"),
                ),
            }
        )
    ordered = [prompts[group] for group in sorted(prompts)]
    return Step(number, ordered, rollouts, texts.dictionary.to_pylist(), columns)


def _floats(values: pa.Array) -> NDArray[np.float32]:
    """Numbers or flags as 32-bit floats, NaN for null."""
    if pa.types.is_boolean(values.type):
        values = values.cast(pa.int8())
    return values.to_numpy(zero_copy_only=False).astype(np.float32)


def _packed(column: NDArray[np.float32]) -> str:
    """Base64 of the deflated column, little-endian; numbers that are not whole keep four digits."""
    bits = column.astype("<f4").view("<u4")
    whole = np.isfinite(column) & (np.trunc(column) == column)
    unit = np.uint32(1 << DROPPED_BITS)
    rounded = np.where(whole | ~np.isfinite(column), bits, (bits + unit // 2) // unit * unit)
    return base64.b64encode(zlib.compress(rounded.astype("<u4").tobytes(), 3)).decode()


def _prompt(prompt: str) -> str:
    """A prompt as text; chat messages are listed with their roles."""
    try:
        messages = json.loads(prompt) if prompt[:1] == "[" else None
        lines = [f"{each['role']}: {each['content']}" for each in messages or ()]
    except (ValueError, TypeError, KeyError):
        lines = []
    return ("\n".join(lines) or prompt)[:MAX_TEXT]


def _more(row: Mapping[str, Any]) -> dict[str, Any]:
    """The results and logs of reward functions."""
    found = {name: value for name, value in row.items() if name not in (*KNOWN, *FLAGS)}
    return {
        name: value[:MAX_TEXT] if isinstance(value, str) else _finite(value)
        for name, value in found.items()
        if value is not None
    }


def _turns(columns: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """The recorded facts of each turn, in order."""
    names = [name.removesuffix("_K") for name in columns]
    return [
        dict(zip(names, map(_finite, values), strict=True))
        for values in zip(*columns.values(), strict=True)
    ]


def _with_calls(turns: list[dict[str, Any]], text: str | None) -> list[dict[str, Any]]:
    """The turns, each with its failed tool calls by name and kind."""
    logged = json.loads(text) if text else []
    if len(logged) != len(turns):  # an older run, or one without a table of turns
        return turns
    for turn, each in zip(turns, logged, strict=True):
        calls = each.get("calls") or () if isinstance(each, Mapping) else ()
        if bad := [call for call in calls if call["status"] != OK]:
            turn["failed"] = [f"{call['name'] or 'a call'}: {call['status']}" for call in bad]
    return turns


def _finite(value: Any) -> Any:
    """The value; None for a float that JSON cannot represent."""
    return None if isinstance(value, float) and not np.isfinite(value) else value
