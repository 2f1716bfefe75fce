"""Reads users' files as a whole; any problem with them is one UserError."""

import json
import math
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from strop.support.errors import UserError, check_value


def text_of(path: Path, what: str) -> str:
    """The text of a file, after a byte order mark; `what` is its name in messages. Raises
    UserError.
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UserError(f"cannot read {what} {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{what} {path} is not UTF-8 text ({error.reason}): convert it") from error
    except ValueError as error:  # not a valid path: it contains NUL
        raise UserError(f"cannot read {what} {str(path)!r}: {error}") from error


def toml_of(path: Path, what: str) -> dict[str, Any]:
    """The content of a TOML file. Raises UserError, also for numbers beyond 64 bits."""
    text = text_of(path, what)
    try:
        found = tomllib.loads(text)
    except RecursionError as error:
        raise UserError(f"{what} {path} is not TOML that can be read: too deeply nested") from error
    except ValueError as error:  # not TOML, or a number of thousands of digits
        raise UserError(f"{what} {path} is not TOML: {error}") from error
    check_value(found, f"{what} {path}")
    return found


def flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every value of nested tables with its path, `section.name`."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def json_of(text: str | bytes, once: bool = False) -> Any:
    """The content of a JSON text. Raises ValueError, also where it is nested too deeply.

    once: an object that has a key twice, of which only the last would be read, is refused too.
    """
    try:
        return json.loads(text, object_pairs_hook=_once if once else None)
    except RecursionError as error:
        raise ValueError("too deeply nested") from error


def json_lines(path: Path, what: str, reader: str) -> Iterator[tuple[str, Any]]:
    """The content of every non-empty line, with its place in messages. Raises UserError."""
    for number, line in enumerate(text_of(path, what).split("\n"), 1):
        if not line.strip():
            continue
        place = f"{reader}: {path}, line {number}"
        try:
            found = json_of(line)
        except ValueError as error:
            raise UserError(f"{place} is not JSON: {error}") from error
        yield place, found


def well_formed(value: Any) -> Any:
    """The value with lone surrogates in texts, which no tokenizer takes, written as escapes."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, list):
        return [well_formed(each) for each in value]
    if isinstance(value, dict):
        return {well_formed(key): well_formed(each) for key, each in value.items()}
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {twice!r} stands in one object twice")
    return found


def without_nan(value: Any) -> Any:
    """The value for JSON, which has no NaN and no infinity: these become None."""
    if isinstance(value, Mapping):
        return {name: without_nan(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
