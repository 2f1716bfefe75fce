"""What a call gives of model, data and rewards, as sections of a configuration."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from strop.door.given import files_of, sources_of
from strop.door.given_model import model_of
from strop.training.models import Loaded


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
            "files": files_of(data, folder / "data.jsonl"),
            "validation_files": _validation(validation, folder),
        },
        "reward": {"functions": sources_of(reward, folder)},
    }
    given = {
        section: {name: value for name, value in values.items() if value}
        for section, values in whole.items()
    }
    return given, loaded


def _validation(given: Any, folder: Path) -> tuple[str, ...]:
    """Files of a validation, or, by their names, of several sets. Raises UserError."""
    if not isinstance(given, Mapping):
        return files_of(given, folder / "validation.jsonl")
    return tuple(
        f"{name}={file}"
        for name, rows in given.items()
        for file in files_of(rows, folder / f"validation_{name}.jsonl")
    )
