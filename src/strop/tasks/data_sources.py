"""How settings name data: files, and files for a validation set of its own."""

import os
import re
from collections.abc import Sequence

from strop.errors import UserError

_NAMED = re.compile(r"([A-Za-z_][\w.-]*)=(.+)")
TAKEN = ("train", "heldout")  # names of other splits


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
