"""Prompts: what one is, its uid, and the sources that the prompts of a run come from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

MAX_SPLIT_ROWS = 1_000_000_000  # a split's uids start at a multiple of this


@dataclass(frozen=True)
class Prompt:
    """One prompt and the columns that its rewards read.

    `uid` belongs to the row of its file or generator: it is stable over a run, does not depend on
    the order of drawing, and never repeats across the splits of a task. `place` names the row for
    people, `column` is where the prompt stood: the text of any other than `prompt` is something to
    answer, not to go on from. ids: its tokens, where they were recorded.
    """

    uid: int
    prompt: str | list[dict[str, Any]]
    columns: Mapping[str, Any]
    place: str = ""
    column: str = "prompt"
    ids: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """What messages call it."""
        return self.place or f"prompt {self.uid}"


class Origin(NamedTuple):
    """One of several sources of the training prompts: those of the uids before `end`, from that
    of the source before it on. weight: how often it is drawn from, beside the others'.
    """

    name: str
    end: int
    weight: float = 1.0


def number_rows(
    rows: Sequence[Mapping[str, Any]], split: int, column: str = "prompt"
) -> list[Prompt]:
    """Rows with a `prompt` become prompts with consecutive uids of split 0, 1 or 2."""
    return [
        Prompt(uid, row["prompt"], {k: v for k, v in row.items() if k != "prompt"}, column=column)
        for uid, row in enumerate(rows, split * MAX_SPLIT_ROWS)
    ]
