"""A tiny comparison in a process of its own."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, NamedTuple

from commands import CommandResult, launch
from models import Lab


class Made(NamedTuple):
    """A comparison's folder, the words that made it, and what was printed."""

    folder: Path
    words: list[str]
    out: str


def words_for(lab: Lab, *more: str) -> list[str]:
    """Options of a tiny comparison on the lab's model and data."""
    return [
        *lab.arguments("evaluation.every=2", "evaluation.num_samples=2"),
        "--validation", str(lab.data), "data.validation_size=0", "--score-on", str(lab.data),
        "--steps", "2", "--k", "1,2", "--jobs", "1", *more,
    ]  # fmt: skip


@dataclass(frozen=True)
class Begun:
    """A command that runs, and the folder of what it prints."""

    process: Any
    said: Path

    def end(self, seconds: float = 300) -> CommandResult:
        """What it has said when it has ended."""
        self.process.join(seconds)
        assert self.process.exitcode is not None, f"it runs on after {seconds} s"
        return CommandResult(
            self.process.exitcode, *((self.said / n).read_text() for n in ("out", "error"))
        )


def compare(words: Sequence[str], folder: Path, command: str = "compare") -> Begun:
    """The command, begun and not waited for."""
    return begin([command, *words, "--out", folder], folder.parent)


def begin(words: Sequence[str | Path], place: Path) -> Begun:
    """Any command; what it prints goes to a folder in `place`."""
    said = Path(mkdtemp(dir=place))
    return Begun(launch(words, said / "out", error=said / "error"), said)
