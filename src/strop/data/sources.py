"""How settings name data: files, sources with a name, files for a validation set of its own."""

import os
import re
from collections.abc import Sequence
from pathlib import Path

from strop.data.read import short_name
from strop.support.errors import UserError

_NAMED = re.compile(r"([A-Za-z_][\w.-]*)=(.+)")
TAKEN = ("train", "heldout")  # names of other splits


def named_sources(given: Sequence[str | Path]) -> list[tuple[str, str | Path]]:
    """Training files with their names: NAME=FILE, else the file's own, made to differ.

    Raises UserError for a name that is given twice.
    """
    found = [_NAMED.fullmatch(str(text)) for text in given]
    parted: list[tuple[str, str | Path]] = [
        (short_name(text), text) if each is None or os.path.exists(text) else (each[1], each[2])
        for text, each in zip(given, found, strict=True)
    ]
    names = [name for name, _ in parted]
    told: list[tuple[str, str | Path]] = []
    for number, (name, text) in enumerate(parted):
        if names.count(name) > 1 and text is not given[number]:
            raise UserError(f"data.files names two sources {name!r}: give each a name of its own")
        twice = names.count(name) > 1
        told.append((f"{name}-{names[: number + 1].count(name)}" if twice else name, text))
    return told


def validation_sets(given: Sequence[str]) -> tuple[list[str], dict[str, list[str]]]:
    """The files of the validation without a name, and those of sets `NAME=FILE`, by name.

    Files of one name are one set. Raises UserError for the name of another split.
    """
    plain: list[str] = []
    sets: dict[str, list[str]] = {}
    for text in given:
        found = None if os.path.exists(text) else _NAMED.fullmatch(text)
        if found is None:
            plain.append(text)
        elif found[1] in TAKEN:
            raise UserError(
                f"data.validation_files: {text!r} names a set {found[1]!r}, as another split is "
                "called: give it another name"
            )
        elif found[1] == "validation":
            plain.append(found[2])
        else:
            sets.setdefault(found[1], []).append(found[2])
    return plain, sets
