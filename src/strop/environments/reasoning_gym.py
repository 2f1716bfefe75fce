"""Tasks generated and verified by the reasoning-gym library: any of its datasets by name.

Rows are drawn from one dataset in the order held-out, validation, train, so asking for more
training rows never changes the evaluation. Rows whose question is also in an earlier split are
skipped and replaced by the next ones.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import cache
from typing import Any

from reasoning_gym.factory import DATASETS, create_dataset

from strop.environments.base import EPISODES
from strop.rewards.answers import extract_answer, text_of
from strop.support.errors import UserError, did_you_mean, nearest_first

MAX_DRAWS_PER_ROW = 4  # draws per row of a split, before a problem space counts as too small
SPLITS = ("heldout", "validation", "train")  # in the order in which rows are drawn
OF_ALL_ROWS = {  # options of a dataset that this module sets, and what a user can do instead
    "seed": "the rows are the same in every run, so leave it out",
    "size": "set data.train_size, data.validation_size and data.heldout_size",
}
_TUPLE, _ITEMS = "__tuple__", "__items__"


def draw_splits(
    name: str, sizes: Mapping[str, int | None], config: Mapping[str, Any]
) -> dict[str, list[dict[str, Any]]]:
    """Rows of each split: prompt, answer, the whole entry, and the settings of its verifier.

    Raises UserError for an unknown dataset, a refused configuration, or too small a problem space.
    """
    for option, instead in OF_ALL_ROWS.items():
        if option in config:
            raise UserError(
                f"data.task_config has {option!r}, and reasoning_gym:{name} takes none: {instead}"
            )
    num = {k: EPISODES[k] if size is None else size for k, size in sizes.items()}
    num_draws = num["heldout"] + num["validation"] + MAX_DRAWS_PER_ROW * num["train"]
    dataset = _dataset(name, {**config, "seed": 0, "size": num_draws})
    seen, place = set[str](), 0
    found: dict[str, list[dict[str, Any]]] = {}
    for split in SPLITS:
        rows, end = list[dict[str, Any]](), place + MAX_DRAWS_PER_ROW * num[split]
        while len(rows) < num[split] and place < end:
            if place == num_draws:  # rows of validation were skipped
                larger = num_draws + MAX_DRAWS_PER_ROW * num["validation"]
                dataset = _dataset(name, {**config, "seed": 0, "size": larger})
            row = _row(dataset, place, name, config)
            place += 1
            if row["prompt"] not in seen:
                rows.append(row)
        if len(rows) < num[split]:
            raise UserError(
                f"reasoning_gym:{name} gave {len(rows)} of {num[split]} rows of {split} that "
                f"are not in {' or '.join(found)}: ask for smaller splits or widen its "
                "configuration"
            )
        seen |= {row["prompt"] for row in rows}
        found[split] = rows
    return found


def score(
    completions: Sequence[Any], entry: Sequence[str], dataset: Sequence[str], config: Sequence[str]
) -> list[float]:
    """The dataset's own score, 0 to 1, of each completion's final answer."""
    return [
        float(
            _verifier(name, settings).score_answer(
                extract_answer(text_of(completion)), from_json(row)
            )
        )
        for completion, row, name, settings in zip(completions, entry, dataset, config, strict=True)
    ]


def to_json(value: Any) -> str:
    """JSON text that keeps tuples and dictionaries with keys that are not text."""
    return json.dumps(_tagged(value))


def from_json(text: str) -> Any:
    """Inverse of `to_json`."""
    return json.loads(text, object_hook=_untagged)


def _tagged(value: Any) -> Any:
    if isinstance(value, tuple):
        return {_TUPLE: [_tagged(item) for item in value]}
    if isinstance(value, list):
        return [_tagged(item) for item in value]
    if isinstance(value, dict):
        if all(isinstance(key, str) for key in value):
            return {key: _tagged(item) for key, item in value.items()}
        return {_ITEMS: [[_tagged(key), _tagged(item)] for key, item in value.items()]}
    return value


def _untagged(value: dict[str, Any]) -> Any:
    if _TUPLE in value:
        return tuple(value[_TUPLE])
    if _ITEMS in value:
        return dict(value[_ITEMS])
    return value


def _row(dataset: Any, index: int, name: str, config: Mapping[str, Any]) -> dict[str, Any]:
    entry = dataset[index]
    return {
        "prompt": entry["question"],
        "answer": entry["answer"],
        "entry": to_json(entry),
        "dataset": name,
        "config": to_json(dict(config)),
    }


@cache
def _verifier(name: str, config: str) -> Any:
    return _dataset(name, from_json(config))


def _dataset(name: str, config: Mapping[str, Any]) -> Any:
    if name not in DATASETS:
        raise UserError(
            f"unknown reasoning-gym dataset {name!r}{did_you_mean(name, DATASETS)}; nearest of "
            f"{len(DATASETS)}: {nearest_first(name, DATASETS, limit=5)}"
        )
    known = [field.name for field in fields(DATASETS[name][1])]
    for key in config:
        if key not in known:
            raise UserError(
                f"reasoning_gym:{name} has no setting {key!r}{did_you_mean(key, known)}; "
                f"it has {', '.join(known)}"
            )
    try:
        return create_dataset(name, **config)
    except (AssertionError, TypeError, ValueError) as error:
        raise UserError(
            f"reasoning_gym:{name} refuses its configuration {dict(config)}: {error}"
        ) from error
