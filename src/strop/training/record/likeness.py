"""The file `relatives.json` of a run's folder: which methods would have done the same."""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

NAME = "relatives.json"


@dataclass(frozen=True)
class Likeness:
    """How step `step` of a run compares with other methods, which are written as one types them.

    equal: methods that would have done the same. lasting: whether they would in every step, because
    the parts that differ see a ratio of 1 and keep no state. once: the setting in which the recipe
    differs from its parent. apart: the stage at which each other method differs first.
    """

    method: str
    step: int
    equal: tuple[str, ...] = ()
    lasting: bool = True
    once: str = ""
    apart: Mapping[str, str] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """One line; empty where nothing is equal."""
        if not self.equal:
            return ""
        so_far = "" if self.lasting else "so far "
        once = f" It differs once {self.once}." if self.once else ""
        return (
            f"{self.method} is {so_far}{' and '.join(self.equal)} in this run: step {self.step} "
            f"had the same answers, masks and token weights.{once}"
        )

    def as_json(self) -> str:
        """The text of the file."""
        return json.dumps({**dataclasses.asdict(self), "text": self.text}, indent=1) + "\n"


def read(folder: Path) -> tuple[str, dict[str, str]]:
    """The line of a run, empty where nothing is equal, and at which stage others differ.

    Both are empty for a run that has no such file, or a damaged one.
    """
    try:
        found = json.loads((folder / NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return "", {}
    found = found if isinstance(found, dict) else {}
    text, apart = found.get("text"), found.get("apart")
    apart = apart if isinstance(apart, dict) else {}
    return text if isinstance(text, str) else "", {k: str(v) for k, v in apart.items()}
