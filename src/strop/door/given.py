"""What a script gives in place of files: rows, functions, models. They become files of the run.

So a run that was begun from Python goes on, is scored and compared as any other: its folder holds
all that it was made of.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from strop._writing import writing
from strop.errors import UserError
from strop.tasks import pickled
from strop.tasks.prompt_rows import stride

ROWS = (
    "a path, or rows: a list of dicts, a datasets.Dataset, a pandas or polars frame, or an Arrow "
    "table"
)


def files_of(given: Any, path: Path) -> tuple[str, ...]:
    """Paths as they are; rows as the JSON Lines file `path`. Raises UserError for what is neither.

    path: named for the argument that the rows were given as, which messages call them by.
    """
    if given is None:
        return ()
    if isinstance(given, str | Path):
        return (str(given),)
    if isinstance(given, list | tuple) and given and all(isinstance(f, str | Path) for f in given):
        return tuple(map(str, given))
    if hasattr(given, "save_to_disk") and not isinstance(given, Mapping) and stride(len(given)) > 1:
        return _saved(given, path)
    count = 0
    with writing(path.parent, f"the rows of {path.stem}"):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", encoding="utf-8") as file:
            for count, row in enumerate(_rows(given, path.stem), 1):
                file.write(_line(row, f"{path.stem} row {count}"))
    if not count:
        raise UserError(f"{path.stem} has no rows: give at least one")
    return (str(path),)


def _saved(given: Any, path: Path) -> tuple[str, ...]:
    """A large data set of `datasets` in its own form, which is mapped into memory."""
    folder = path.with_suffix("")
    with writing(path.parent, f"the rows of {path.stem}"):
        given.save_to_disk(str(folder))
    return (str(folder),)


def sources_given(given: Any, path: Path) -> tuple[str, ...]:
    """As `files_of`, of a dict each entry as a source or set of its own, `NAME=FILE`.

    Raises UserError.
    """
    if not isinstance(given, Mapping):
        return files_of(given, path)
    return tuple(
        f"{name}={file}"
        for name, rows in given.items()
        for file in files_of(rows, path.with_name(f"{path.stem}_{name}{path.suffix}"))
    )


def _rows(given: Any, name: str) -> Iterator[Any]:
    """The rows of whatever holds some. Raises UserError."""
    if hasattr(given, "to_pylist"):
        yield from given.to_pylist()
    elif hasattr(given, "to_dicts"):
        yield from given.to_dicts()
    elif hasattr(given, "iloc"):  # pandas writes what is missing as a number
        yield from given.astype(object).where(given.notna(), None).to_dict("records")
    elif isinstance(given, Mapping):
        inside = ", ".join(map(str, given)) or "nothing"
        raise UserError(
            f"{name} is a {type(given).__name__} with {inside}: give {ROWS}; of several splits one"
        )
    elif isinstance(given, Iterable):
        yield from given
    else:
        raise UserError(f"{name} is {type(given).__name__}: give {ROWS}")


def _line(row: Any, where: str) -> str:
    if not isinstance(row, Mapping):
        raise UserError(f"{where} is {type(row).__name__}: a row is a dict, column by column")
    if wrong := [name for name in row if not isinstance(name, str)]:
        raise UserError(f"{where} has a column {wrong[0]!r}: names of columns are text")
    try:
        return json.dumps(dict(row), default=_plain) + "\n"
    except (TypeError, ValueError, RecursionError) as error:
        raise UserError(
            f"{where} has a value that no file of rows can hold ({error}): make it text, a number, "
            "a list or an object of these"
        ) from error


def _plain(value: Any) -> Any:
    """Numbers and arrays of other libraries as Python's. Raises TypeError for all else."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"it is {type(value).__name__}")


def sources_of(given: Any, folder: Path) -> tuple[str, ...]:
    """Names of rewards as they are; functions as files of the folder. Raises UserError."""
    several: Sequence[Any] = given if isinstance(given, list | tuple) else [given]
    several = [] if given is None else several
    functions = [each for each in several if not isinstance(each, str)]
    for each in functions:
        if not callable(each):
            raise UserError(
                f"reward is {type(each).__name__}: give a function, the name of a built-in, "
                "file.py:function, or a list of these"
            )
    names = iter(pickled.names_of(functions))
    if functions:
        with writing(folder, "the reward functions"):
            folder.mkdir(parents=True, exist_ok=True)
    return tuple(
        each if isinstance(each, str) else _function(each, folder / f"{next(names)}.pickle")
        for each in several
    )


def _function(function: Callable[..., Any], path: Path) -> str:
    with writing(path.parent, f"the reward {path.stem}"):
        return pickled.write(function, path)
