"""Standard output: consoles, and a stream that may disappear (a closed pipe, a full disk)."""

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

# Control characters; rich itself removes the other ones, but for tabs and the ends of lines.
_ESCAPES = {n: f"\\x{n:02x}" for n in (*range(7), *range(14, 32), *range(127, 160))}


def visible(text: str) -> str:
    """The text with its control characters as escapes: a terminal would obey a model's."""
    return text.translate(_ESCAPES)


def plain_console(**options: Any) -> "Console":
    """A console that shows texts as they are: rich would give numbers colours, and make a picture
    of a name between colons, such as a column's or a split's. Control characters become visible.
    """
    from rich.console import Console  # workers of rewards, which print nothing, do without it

    class Plain(Console):
        def render_str(self, text: str, **how: Any) -> "Text":
            return super().render_str(visible(text), **how)

    return Plain(highlight=False, emoji=False, **options)


class Lasting:
    """A text stream that discards all writes, silently, from the first failed one on.

    Characters that its encoding cannot write, such as a lone surrogate, are written as escapes.
    """

    def __init__(self, stream: Any) -> None:
        self.stream = stream or open(os.devnull, "w")  # noqa: SIM115 closed with the process
        self.gone = False
        self.failed: OSError | None = None  # of the first write that failed
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")

    def write(self, text: str) -> int:
        """Write, or do nothing once a write has failed."""
        if not self.gone:
            try:
                self.stream.write(text)
            except OSError as failed:
                self._give_up(failed)
        return len(text)

    def flush(self) -> None:
        """Flush, or do nothing once a write has failed."""
        if not self.gone:
            try:
                self.stream.flush()
            except OSError as failed:
                self._give_up(failed)

    def _give_up(self, failed: OSError) -> None:
        """Discard what the stream still buffers, or Python would fail with it at exit."""
        self.gone, self.failed = True, failed
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
