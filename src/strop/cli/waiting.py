"""Messages on the terminal for the seconds in which nothing else can be shown."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.markup import escape

from strop.support.output import plain_console


def loading(what: str) -> None:
    """Print that `what` is being loaded on the error stream, where that is a terminal."""
    console = plain_console(stderr=True)
    if console.is_terminal:
        console.print(f"loading {what} ...", style="dim", markup=False)


@contextmanager
def progress_line() -> Iterator[Callable[[str], None]]:
    """Yields a function that shows what is being planned, in one line of the error stream."""
    console = plain_console(stderr=True)
    if not console.is_terminal:
        yield lambda what: None
        return
    with console.status("planning ...") as status:
        yield lambda what: status.update(escape(f"planning {what} ..."))
