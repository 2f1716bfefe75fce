"""Standard output that may go away: a closed pipe or a full disk ends what is shown, no more."""

import os
from typing import Any


class Lasting:
    """A stream of text whose writes fail without a word, from the first one that fails on.

    What its encoding cannot write, such as half a surrogate pair, is written as an escape.
    """

    def __init__(self, stream: Any) -> None:
        self.stream = stream or open(os.devnull, "w")  # noqa: SIM115 closed with the process
        self.gone = False
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")

    def write(self, text: str) -> int:
        """Write, or do nothing once that has failed."""
        if not self.gone:
            try:
                self.stream.write(text)
            except OSError:
                self._give_up()
        return len(text)

    def flush(self) -> None:
        """Flush, or do nothing once that has failed."""
        if not self.gone:
            try:
                self.stream.flush()
            except OSError:
                self._give_up()

    def _give_up(self) -> None:
        """What the stream still holds goes nowhere, or Python would fail with it as it ends."""
        self.gone = True
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.stream.fileno())
        os.close(nowhere)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def hold_numbers() -> None:
    """Open files 0, 1 and 2 where they are closed, so that no file of a run takes their number."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number
