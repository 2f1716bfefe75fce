"""Prompts, their uids, and the sources from which a run's prompts come."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

MAX_SPLIT_ROWS = 1_000_000_000  # a split's uids start at a multiple of this


@dataclass(frozen=True)
class Prompt:
    """One prompt and the columns that its rewards read.

    `uid` belongs to the row of its file or generator: it is stable over a run, does not depend on
    the order of drawing, and never repeats across the splits of a task. `place` names the row for
    people, `column` is the column of the prompt: a text of any other column than `prompt` is to be
    answered, not continued. ids: its tokens, where they were recorded. tools: the row's own, which
    the chat template shows.
    """

    uid: int
    prompt: str | list[dict[str, Any]]
    columns: Mapping[str, Any]
    place: str = ""
    column: str = "prompt"
    ids: tuple[int, ...] = ()
    tools: tuple[Mapping[str, Any], ...] = ()

    @property
    def name(self) -> str:
        """The prompt's name in messages."""
        return self.place or f"prompt {self.uid}"


class Origin(NamedTuple):
    """One of several sources of the training prompts: its uids go from the previous source's `end`
    to before its own. weight: how often it is drawn, relative to the others.
    """

    name: str
    end: int
    weight: float = 1.0


def text_of_parts(content: Any) -> Any:
    """Content that is a list of parts of text as one text; any other as it is."""
    if not isinstance(content, list) or not all(isinstance(part, Mapping) for part in content):
        return content
    texts = [part.get("text") for part in content if part.get("type") == "text"]
    is_text = len(texts) == len(content) and all(isinstance(each, str) for each in texts)
    return "".join(texts) if is_text else content


def number_rows(
    rows: Sequence[Mapping[str, Any]], split: int, column: str = "prompt"
) -> list[Prompt]:
    """Convert rows with a `prompt` to prompts with consecutive uids of split 0, 1 or 2."""
    return [
        Prompt(uid, row["prompt"], {k: v for k, v in row.items() if k != "prompt"}, column=column)
        for uid, row in enumerate(rows, split * MAX_SPLIT_ROWS)
    ]
