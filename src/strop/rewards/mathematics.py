"""The built-in reward that compares answers as mathematics, with the math-verify library.

The import is at the top so that a grading process imports it when it starts, not in a timed call.
"""

import logging
import re
from collections.abc import Sequence
from typing import Any

from math_verify import parse, verify

from strop.rewards.answers import as_text, behind_thought, last_tagged, references, text_of
from strop.support.errors import UserError

logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that its timeouts are off
_DELIMITER = re.compile(r"(?<!\\)\$")  # of LaTeX; an escaped one is a price


def math_verify(
    completions: Sequence[Any],
    answer: Sequence[Any] | None = None,
    solution: Sequence[Any] | None = None,
    ground_truth: Sequence[Any] | None = None,
) -> list[float | None]:
    """1.0 where the completion's mathematical answer equals the reference's, else 0.0.

    It is what the last `<answer>` element holds, else what the library finds.

    The reference is the row's `ground_truth`, else `answer`, else `solution`; a row whose
    reference is missing or holds no mathematical expression is not applicable (None). A thought is
    read only where nothing follows it: the library would join its boxed values with the answer's.
    The library's own timeouts are off: they use signals, and the grader has a limit of its own.

    Raises UserError when the data has none of the columns, and for a reference that is no single
    value.
    """
    wanted = references(ground_truth, answer, solution)
    if wanted is None:
        raise UserError(
            "reward math_verify needs a column 'ground_truth', 'answer' or 'solution', the data "
            "has none: add one"
        )
    return [
        None
        if reference is None
        else _same_mathematics(text_of(completion), as_text(reference, "math_verify"))
        for completion, reference in zip(completions, wanted, strict=True)
    ]


def _same_mathematics(completion: str, reference: str) -> float | None:
    if not (gold := _value(last_tagged(reference) or reference)):
        return None
    said = behind_thought(completion)
    answer = (last_tagged(said) or "").strip()
    readings = [parse(answer or said, parsing_timeout=None), *([_value(answer)] if answer else [])]
    return float(any(verify(gold, reading, timeout_seconds=None) for reading in readings))


def _value(text: str) -> list[Any]:
    """What a text that is an answer alone says; empty where it is no mathematics."""
    is_latex = _DELIMITER.search(text) or "\\boxed" in text
    found = parse(text, parsing_timeout=None) if is_latex else []
    return found or list(parse(f"\\boxed{{{text}}}", parsing_timeout=None))
