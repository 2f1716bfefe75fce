"""One answer of `strop doctor`: a question, what the numbers say, what to do."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Status = Literal["ok", "note", "problem", "unknown"]


@dataclass(frozen=True)
class Finding:
    """A question with its answer.

    status: `problem` sets the exit code to 1; `note` is worth reading; `unknown`: there is no data.
    advice: what to do, empty for nothing. numbers: the values on which the answer is based.
    """

    question: str
    status: Status
    answer: str
    advice: str = ""
    numbers: Mapping[str, Any] = field(default_factory=dict)


def mean(values: Sequence[float]) -> float:
    """The mean; the sequence must not be empty."""
    return sum(values) / len(values)


def shortened(text: str, width: int = 100) -> str:
    """The text on one line of at most `width` characters."""
    line = " ".join(text.split())
    return line if len(line) <= width else line[: width - 3] + "..."
