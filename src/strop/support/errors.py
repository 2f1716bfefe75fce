"""The two errors whose messages are shown to people without a traceback, and hints for them."""

import difflib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

LONG = re.compile(r"\S{500,}")
PEERS = re.compile(r": what TRL or verl call \S+ is here ")
MOST = 3000  # characters of a message
MOST_OF_SEVERAL = 8000  # with all options of a command for TRL or verl, and their hints
DEEPEST = 100  # levels of lists and tables in a value
BITS = 64  # of whole numbers; Python does not even print one of 5,000 digits


G = TypeVar("G")
M = TypeVar("M")
CLOSE = 0.5  # least share of common characters of a name that may have been meant


class UserError(ValueError):
    """A mistake in the user's input; the message says what is wrong, where, and what to do.

    The command line prints the message on one line and exits with code 2, without a traceback.
    Of a long value the message shows the beginning and the end.
    """

    def __init__(self, message: str, most: int = MOST) -> None:
        text = LONG.sub(lambda found: f"{found[0][:60]}...{found[0][-20:]}", message)
        super().__init__(text if len(text) <= most else f"{text[: most - 200]} ... {text[-100:]}")


class RunStopped(RuntimeError):
    """A run cannot continue (full disk, gradient that is not finite); the last checkpoint is good.

    The command line prints the message and how to resume, and exits with code 1.
    """


# Errors that need no traceback, by the name under which one process sends them to another.
PLAIN: dict[str, type[UserError | RunStopped]] = {"UserError": UserError, "RunStopped": RunStopped}


def plain_name(error: UserError | RunStopped) -> str:
    """The name in PLAIN of the error's class, or of the class that it is derived from."""
    return next(name for name, kind in PLAIN.items() if isinstance(error, kind))


class StepGivenUp(Exception):
    """A stop was requested while a step waited for others: the run ends with the previous step."""


@contextmanager
def needs_extra(what: str, extra: str) -> Iterator[None]:
    """Inside, an import that fails raises UserError: `what`, such as "X needs the package Y", the
    cause, and how the extra is installed.
    """
    try:
        yield
    except ImportError as error:
        raise UserError(f"{what} ({error}): pip install 'strop[{extra}]'") from error


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or its type where the message is empty."""
    lines = (line.strip() for line in str(error).splitlines())
    return next(filter(None, lines), type(error).__name__)


def several(messages: Sequence[str]) -> UserError:
    """The error about one option that is wrong, or about several, one a line. A peer's name is not
    said again in the lines, so that all of a long command are shown.
    """
    if len(messages) == 1:
        return UserError(messages[0])
    lines = (PEERS.sub(": here ", each.removeprefix("no option ")) for each in messages)
    text = "\n  ".join([f"{len(messages)} options are wrong:", *lines])
    return UserError(text, MOST_OF_SEVERAL)


def made_of_each(given: Sequence[tuple[str, G]], make: Callable[[G], M]) -> list[M]:
    """What `make` makes of each of several named things. Raises one UserError about all that are
    wrong, a line for each message; a message about all of them names none.
    """
    made, wrong = list[M](), dict[str, list[str]]()
    for name, each in given:
        try:
            made.append(make(each))
        except UserError as error:
            wrong.setdefault(str(error), []).append(name)
    if not wrong:
        return made
    lines = [
        message if len(names) == len(given) else f"{', '.join(names)}: {message}"
        for message, names in wrong.items()
    ]
    if len(lines) == 1:
        raise UserError(lines[0], MOST_OF_SEVERAL)
    text = "\n".join([f"{len(lines)} mistakes:", *lines])
    raise UserError(text.replace("\n", "\n  "), MOST_OF_SEVERAL)


def nearest(name: str, known: Iterable[str]) -> str:
    """The words ", did you mean a or b?" for the closest known names; empty when none is close.

    Case does not matter. Of equally close names, ones with the same letters come first, since
    letters get swapped.
    """
    name, words = name.lower(), list(known)
    matcher = difflib.SequenceMatcher(None, "", name)

    def close_to(word: str) -> bool:
        matcher.set_seq1(word.lower())
        bounds = (matcher.real_quick_ratio, matcher.quick_ratio)  # from above, in less time
        return all(bound() >= CLOSE for bound in bounds) and matcher.ratio() >= CLOSE

    def likeness(word: str) -> tuple[float, int]:
        matcher.set_seq1(word.lower())
        return matcher.ratio(), (Counter(word.lower()) & Counter(name)).total()

    close = [word for word in words if close_to(word)]
    best = sorted(close, key=lambda word: (*likeness(word), word), reverse=True)[:3]
    return f", did you mean {' or '.join(best)}?" if best else ""


def check_value(value: Any, where: str) -> None:
    """Raise UserError for a value that no file could hold, or that contains one: a whole number
    beyond 64 bits, text that is not Unicode, more than a hundred levels.
    """
    level, depth = [value], 0
    while level:
        for item in level:
            if isinstance(item, int) and item.bit_length() > BITS:
                bits = item.bit_length()
                raise UserError(f"{where} has a whole number of {bits} bits: 64 are the most")
            if isinstance(item, str) and not item.isascii():
                try:
                    item.encode()
                except UnicodeEncodeError as error:
                    raise UserError(f"{where} has text that is not Unicode: {item!r}") from error
        inside = [[*i.values()] if isinstance(i, Mapping) else i for i in level]
        level = [item for each in inside if isinstance(each, list | tuple) for item in each]
        depth += 1
        if depth > DEEPEST:
            raise UserError(f"{where} is nested more than {DEEPEST} levels deep")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """` (did you mean 'x'?)` for the nearest known name, or an empty text when none is near."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f" (did you mean {near[0]!r}?)" if near else ""


def nearest_first(name: str, known: Iterable[str], limit: int = 8) -> str:
    """The known names, the nearest to `name` first, as one line of at most `limit` names."""
    names = sorted(
        known, key=lambda other: (-difflib.SequenceMatcher(None, name, other).ratio(), other)
    )
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more if names else "none"


def in_words(error: BaseException) -> str:
    """The kind and the message of an error, even if its own `__str__` fails."""
    kind = type(error).__name__
    try:
        return f"{kind}: {error}"
    except Exception:
        return f"{kind}, which cannot be written as text"
