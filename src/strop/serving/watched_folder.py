"""A folder into which other programs put files of rollouts, each of which is accepted once.

FOLDER/NAME.jsonl            put there as a whole, by renaming it
FOLDER/taken/NAME.jsonl      it was accepted
FOLDER/refused/NAME.jsonl    it was refused, and NAME.jsonl.why says why
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from strop.serving.intake import Intake
from strop.serving.protocol import Busy, Refused
from strop.support.errors import UserError
from strop.traces.files import ENDINGS, rows_of

LOOK_SECONDS = 0.5


class WatchedFolder:
    """Accepts the files of a folder, in the order of their names, in a thread of its own."""

    def __init__(self, folder: Path, intake: Intake) -> None:
        self.folder, self.intake = folder, intake
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._watch, name="strop-intake", daemon=True)

    def start(self) -> None:
        """Start watching. Raises UserError where the folder cannot be created."""
        try:
            for each in ("taken", "refused"):
                (self.folder / each).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"the folder {self.folder} cannot be used: {error}") from error
        self.thread.start()

    def close(self) -> None:
        """Stop watching."""
        self.over.set()
        self.thread.join()

    def _watch(self) -> None:
        trouble = ""
        while not self.over.wait(LOOK_SECONDS):
            try:
                self.look()
                trouble = ""
            except OSError as error:  # such as of a network's disk: the next look tries again
                if str(error) != trouble:
                    trouble = str(error)
                    print(f"nothing is taken from {self.folder}: {trouble}", file=sys.stderr)

    def look(self) -> None:
        """Accept the files in the folder, as far as the intake has room."""
        for path in sorted(self.folder.iterdir()):
            if path.is_file() and path.name.lower().endswith(ENDINGS):
                try:
                    self._take(path)
                except Busy:
                    return  # the next look finds the file again
                except FileNotFoundError:
                    if path.exists():
                        raise
                    # else somebody has taken it away again

    def _take(self, path: Path) -> None:
        """Accept a file under its name, so that a run that ends before it is moved recognises it.

        Raises Busy where it has to wait.
        """
        try:
            if (self.folder / "taken" / path.name).exists():
                raise UserError(f"a file {path.name} was taken in before: give each its own name")
            self.intake.add(rows_of(path), f"{self.folder.name}/{path.name}")
        except (UserError, Refused) as error:
            if isinstance(error, Refused) and error.status >= 500:
                raise OSError(str(error)) from error  # a full disk, say: the file is not to blame
            place = self.folder / "refused" / path.name
            place.with_name(f"{place.name}.why").write_text(f"{error}\n", encoding="utf-8")
        else:
            place = self.folder / "taken" / path.name
        path.rename(place)
