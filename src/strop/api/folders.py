"""Folders of runs that a caller names, and new folders for runs that are started without one."""

import os
import re
from pathlib import Path
from typing import Protocol, runtime_checkable

from strop.support.errors import UserError


@runtime_checkable
class HasFolder(Protocol):
    """The attributes of a script's run that calls about its folder need."""

    folder: Path
    trusted: bool  # whether code and servers that its configuration names may be used

    def keep(self) -> None:
        """Save a checkpoint of the current step in the folder."""
        ...


def folder_of(run: object) -> Path:
    """The folder of one run. Raises UserError where it is neither a run nor a path."""
    return run.folder if isinstance(run, HasFolder) else path_of(run, "a run")


def free_folder(recipe: str) -> Path:
    """Makes runs/<recipe>-1, or the next free number, so that no other run can take it."""
    name = re.match(r"\w*", re.sub(r"^until\([^,]*,\s*", "", recipe).strip('"'))
    return numbered(Path("runs"), f"{(name.group() if name else '') or 'run'}-")


def numbered(parent: Path, stem: str = "") -> Path:
    """Makes a folder named `stem` and the lowest free number. Raises UserError."""
    number = 1
    while True:
        folder = parent / f"{stem}{number}"
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            number += 1
        except OSError as error:
            raise UserError(f"cannot make {folder}: {error.strerror}") from error


def path_of(given: object, name: str) -> Path:
    """The path that an argument gives. Raises UserError where it is not a path."""
    place = str(given) if isinstance(given, str | os.PathLike) else "\0"
    if not place or "\0" in place or not _has_a_name(place):
        raise UserError(f"{name} is {given!r:.100}: give a path, as text or pathlib.Path")
    return Path(place)


def _has_a_name(place: str) -> bool:
    """Whether a file can have this name: half of a surrogate pair is not valid text."""
    try:
        os.fsencode(place)
    except UnicodeEncodeError:
        return False
    return True


def folders_of(runs: object) -> list[Path]:
    """The folders of a run, a folder, or several of these. Raises UserError for anything else."""
    found = []
    for each in runs if isinstance(runs, list | tuple) else [runs]:
        place = getattr(each, "folder", each)
        if not isinstance(place, str | Path):
            raise UserError(f"a run is {type(each).__name__}: give a run, or its folder")
        found.append(Path(place))
    return found
