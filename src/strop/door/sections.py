"""What a call gives of model, data and rewards, as sections of a configuration."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from strop.door.given import files_of, sources_given, sources_of
from strop.door.given_model import model_of
from strop.errors import UserError
from strop.training.models import Loaded
from strop.training.record import GIVEN


def sections_of(
    folder: Path,
    model: Any,
    tokenizer: Any,
    data: Any,
    validation: Any,
    reward: Any,
    task: str,
) -> tuple[dict[str, dict[str, Any]], Loaded | None]:
    """The sections with what was given, in files of `folder` where it was in none; and the model,
    where it is in memory. Raises UserError.
    """
    settings, loaded = model_of(model, tokenizer, folder / "model")
    whole = {
        "model": settings,
        "data": {
            "task": task,
            "files": _trained(data, folder / "data.jsonl"),
            "validation_files": sources_given(validation, folder / "validation.jsonl"),
        },
        "reward": {"functions": sources_of(reward, folder)},
    }
    given = {
        section: {name: value for name, value in values.items() if value}
        for section, values in whole.items()
    }
    return given, loaded


def _trained(given: Any, path: Path) -> tuple[str, ...]:
    """Files of the training data. A dict has sources by name; one of `datasets` has splits, which
    are not all to train on, and one of plain lists is a table's columns: these are refused.
    """
    rows_by_name = type(given) is dict and not any(
        isinstance(rows, list | tuple) and not all(isinstance(row, Mapping) for row in rows)
        for rows in given.values()
    )
    return sources_given(given, path) if rows_by_name else files_of(given, path)


def check_not_given(folder: Path) -> None:
    """Raise UserError where what a call gives would be written over files that are there."""
    if (folder / GIVEN).exists():
        raise UserError(
            f"{folder} has its own {GIVEN}, where what a script gives is kept: give another folder "
            "with --out"
        )
