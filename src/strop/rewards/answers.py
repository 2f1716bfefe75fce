"""Final answers in completions, and the reward that compares them as text."""

import math
import re
import unicodedata
from collections.abc import Sequence
from typing import Any

from strop.data.tool_calls import CLOSE_THOUGHT
from strop.support.errors import UserError

# Columns that hold the reference of an answer, best first.
REFERENCES = ("ground_truth", "answer", "solution")
_BRACES = re.compile(r"\\boxed\{|[{}]")


def text_of(completion: Any) -> str:
    """The text of a completion: itself, or the content of a chat completion's last message."""
    if isinstance(completion, str):
        return completion
    return completion[-1]["content"] or ""


def behind_thought(completion: str) -> str:
    """What a completion says behind its thought (`</think>`); all of it where nothing follows."""
    answer = completion.rpartition(CLOSE_THOUGHT)[2]
    return answer if answer.strip() else completion


def references(*columns: Sequence[Any] | None) -> list[Any] | None:
    """Each row's first value of these columns that is there; None where no column is given.

    Chosen row by row, because files of several layouts have their references in different columns.
    A missing value is None, or NaN, as pandas writes it; a blank text counts where no other column
    has a value.
    """
    given = [column for column in columns if column is not None]
    if not given:
        return None
    return [_first_there(row) for row in zip(*given, strict=True)]


def _first_there(row: Sequence[Any]) -> Any:
    there = [v for v in row if not (v is None or (isinstance(v, float) and math.isnan(v)))]
    return next((value for value in there if not is_blank(value)), there[0] if there else None)


def is_blank(value: Any) -> bool:
    """Whether a cell of the data is empty: None, or a text of blanks as in a CSV file."""
    return value is None or (isinstance(value, str) and not value.strip())


def right_values(reference: Any) -> list[Any]:
    """The values that are right where this is the reference: none for an empty cell, and 12 beside
    12.0, which a column of integers with gaps may hold for it.
    """
    if is_blank(reference):
        return []
    whole = isinstance(reference, float) and reference.is_integer()
    return [reference, *([int(reference)] if whole else [])]


def extract_answer(completion: str) -> str:
    """The final answer: last `<answer>` element, else last boxed value, else last line.

    It stands behind the thought, if anything does. An empty or blank completion gives an empty
    text.
    """
    completion = behind_thought(completion)
    for found in (last_tagged(completion), _last_boxed(completion)):
        if found is not None:
            return found.strip()
    lines = completion.strip().splitlines()
    return lines[-1].strip() if lines else ""


def as_text(reference: Any, reward: str) -> str:
    """A reference as a text to compare with. Raises UserError for a list or an object."""
    if isinstance(reference, list | dict):
        raise UserError(
            f"reward {reward}: the reference of a row is {str(reference)[:80]!r}: make it a text "
            "or a number; where several answers are right, write a function of your own"
        )
    return str(reference).strip()


def exact_match(
    completions: Sequence[Any],
    ground_truth: Sequence[Any] | None = None,
    answer: Sequence[Any] | None = None,
) -> list[float | None]:
    """1.0 where the final answer equals the reference's text, else 0.0.

    The reference is the row's `ground_truth`, or `answer` where it has none; one with an `<answer>`
    or a boxed value stands for that value, too. Blanks at both ends do not count, nor whether an
    accent is a character of its own (both are brought to the form NFC). A row without a reference
    (None, or blank, as in an empty cell of a CSV file) is not applicable. A column of integers with
    gaps may hold 12.0 for 12: both texts are right.

    Raises UserError when the data has neither column, and for a reference that is no single value.
    """
    wanted = references(ground_truth, answer)
    if wanted is None:
        raise UserError(
            "reward exact_match needs a column 'answer' or 'ground_truth', the data has neither: "
            "add one"
        )
    return [
        float(_composed(extract_answer(text_of(completion))) in texts) if texts else None
        for completion, texts in zip(completions, map(_texts, wanted), strict=True)
    ]


def _texts(reference: Any) -> set[str]:
    """The texts that are right where this is the reference; empty for an empty cell."""
    texts = {as_text(value, "exact_match") for value in right_values(reference)}
    marked = {(last_tagged(text) or _last_boxed(text) or "").strip() for text in texts}
    return set(map(_composed, texts | (marked - {""})))


def _composed(text: str) -> str:
    return unicodedata.normalize("NFC", text)


def last_tagged(text: str) -> str | None:
    """The content of the last `<answer>` element; None where there is none."""
    end = text.rfind("</answer>")
    start = text.rfind("<answer>", 0, max(end, 0))
    return text[start + len("<answer>") : end] if start >= 0 else None


def _last_boxed(text: str) -> str | None:
    """The content of the last complete boxed value, with its inner braces, in linear time."""
    last: tuple[int, int] | None = None
    open_at: list[int | None] = []  # first character of a boxed value, None for other braces
    for token in _BRACES.finditer(text):
        if token.group() != "}":
            open_at.append(token.end() if token.group() != "{" else None)
        elif open_at:
            start = open_at.pop()
            if start is not None and (last is None or start > last[0]):
                last = (start, token.start())
    return None if last is None else text[slice(*last)]
