"""What is said of reward functions that fail on the answers with which they are tried."""

from collections.abc import Mapping, Sequence
from typing import Any

from strop.rewards.grader import Grader
from strop.support.errors import UserError

ADVICE = (
    "after a chat prompt an answer is a list of one message, not a text: read "
    'completion[0]["content"]'
)
_KINDS = ("TypeError", "AttributeError", "KeyError")  # what a list raises where a text is expected
_Form = str | list[dict[str, Any]]


def hint(prompts: Sequence[_Form], message: str) -> str:
    """The advice where this exception may come from taking messages for texts; else empty.

    An attribute or an item of None rather shows that a function found nothing in a text.
    """
    chat = any(not isinstance(prompt, str) for prompt in prompts)
    return ADVICE if chat and message.startswith(_KINDS) and "NoneType" not in message else ""


def notes_of_failing(
    failing: Mapping[str, str], grader: Grader, prompts: Sequence[_Form],
    prompt_texts: Sequence[str], answers: Sequence[str], columns: Mapping[str, Sequence[Any]],
) -> list[str]:  # fmt: skip
    """A note for each reward that failed on empty answers and on these: it may want a form that
    they lack. One that only takes messages for texts is refused, with UserError.

    failing: the message of each such reward.
    """
    if failing and not all(isinstance(prompt, str) for prompt in prompts):
        _refuse_readers_of_text(failing, grader, prompt_texts, answers, columns)
    notes = []
    for name, why in failing.items():
        note = f"the reward function {name} failed on all answers that it was given before step 1, "
        note += f"on empty ones and on {answers[0]!r}: {why}; if it fails on all answers of the "
        note += "model, too, the run stops in its first steps"
        notes.append("; ".join(filter(None, (note, hint(prompts, why)))))
    return notes


def _refuse_readers_of_text(
    failing: Mapping[str, str], grader: Grader, prompt_texts: Sequence[str],
    answers: Sequence[str], columns: Mapping[str, Sequence[Any]],
) -> None:  # fmt: skip
    """Raise UserError where one of these scores the same answers as texts."""
    try:
        grades = grader.grade(
            prompt_texts, answers, [()] * len(answers), columns, groups=range(len(answers)),
            prompt_texts=prompt_texts,
        )  # fmt: skip
    except UserError:  # a result of another form is no score
        return
    failed = {failure.reward for failure in grades.failures}
    for name, why in failing.items():
        if name not in failed:
            raise UserError(
                f"the reward function {name} fails on answers that are messages and scores the "
                f"same ones as texts: {why}. {ADVICE[0].upper()}{ADVICE[1:]}"
            )
