"""The tokens between two actions in a conversation: an observation."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from jinja2 import TemplateError

from strop.support.errors import UserError
from strop.support.unknown_characters import check_characters

ANSWER = "strop-answer-0"  # stands for the policy's answer in the template
BEFORE = [{"role": "user", "content": "0"}, {"role": "assistant", "content": ANSWER}]


def observation_ids(
    tokenizer: Any,
    text: str,
    is_chat: bool,
    last: int,
    template: Mapping[str, Any] = MappingProxyType({}),
    answers: Sequence[Mapping[str, Any]] = (),
) -> tuple[int, ...]:
    """Token ids that follow an action and show `text`.

    As text: the text's own tokens. In a chat: what the tokenizer's template writes from the end of
    the assistant's answer to the beginning of its next one, with the text as the user's message, or
    with `answers` of tools, messages as they are.
    The end-of-turn token is left out where the action has it already (`last`, its last token).
    template: arguments of the template besides the messages.

    Raises UserError for a template that does not show the answer, or a text of unknown characters.
    """
    if not is_chat:
        return known_ids(tokenizer, text)
    messages = [*BEFORE, *messages_of(text, answers)]
    try:
        shown = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=False, **template
        )
    except (TemplateError, TypeError) as error:
        roles = ", ".join(dict.fromkeys(str(each["role"]) for each in messages))
        raise UserError(
            f"the chat template refuses messages of {roles} after each other: {error}; give "
            "model.chat_template=FILE"
        ) from error
    _, found, tail = shown.partition(ANSWER)
    if not found:
        raise UserError(
            "the chat template does not show an assistant's earlier answer, so that turns cannot "
            "follow each other: give model.chat_template=FILE"
        )
    ids = known_ids(tokenizer, tail)
    if last in ids:
        place = ids.index(last)
        if not tokenizer.decode(ids[:place]).strip():
            return ids[place + 1 :]
    return ids


def messages_of(text: str, answers: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """An observation after an action as messages: what tools answered, or the text of a user."""
    return [dict(each) for each in answers] or [{"role": "user", "content": text.strip()}]


def known_ids(tokenizer: Any, text: str) -> tuple[int, ...]:
    """The text's own tokens. Raises UserError for characters that the tokenizer does not know."""
    ids: Sequence[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    if tokenizer.unk_token_id in ids:
        compact = "most built-in environments do with data.task_config={style: compact}"
        check_characters(tokenizer, text, "a text of an episode", compact)
    return tuple(ids)
