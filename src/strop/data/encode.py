"""Encodes prompts as token ids, and puts completions into the form that rewards expect."""

import itertools
import re
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from strop.data.prompts import Prompt
from strop.data.rendering import applied, left_out
from strop.support.errors import UserError
from strop.support.unknown_characters import check_characters

NOTHING: Mapping[str, Any] = MappingProxyType({})


def with_tools(prompt: Prompt, template: Mapping[str, Any]) -> Mapping[str, Any]:
    """The arguments of the template, with the tools of the prompt's row."""
    return {**template, "tools": list(prompt.tools)} if prompt.tools else template


def encode_prompt(
    prompt: Prompt, tokenizer: Any, template: Mapping[str, Any] = NOTHING
) -> list[int]:
    """Token ids of a prompt: text by the tokenizer, messages by its chat template.

    template: arguments of the template beside the messages. Raises UserError for messages that the
    template does not take, characters that the tokenizer does not know, and a prompt of no tokens.
    """
    ids = ids_of(prompt, tokenizer, template)
    if not ids:
        raise UserError(f"{prompt.name} has no tokens: give it some text or remove its row")
    if tokenizer.unk_token_id in ids and not prompt.ids:
        _check_characters(prompt, tokenizer, template)
    return ids


def _check_characters(prompt: Prompt, tokenizer: Any, template: Mapping[str, Any]) -> None:
    """Raise UserError for characters of the prompt or its template that no token can write."""
    content = prompt.prompt
    where = f"{prompt.name}, column {prompt.column}," if prompt.column else prompt.name
    for text in (
        [content] if isinstance(content, str) else [m.get("content") or "" for m in content]
    ):
        check_characters(tokenizer, text, where)
    if not isinstance(content, str):
        template = with_tools(prompt, template)
        shown = applied(tokenizer, content, template, add_generation_prompt=True, tokenize=False)
        check_characters(tokenizer, shown, f"what the chat template makes of {prompt.name}")


def encode_reworded(
    prompt: Prompt, words: str, answer: str, tokenizer: Any, template: Mapping[str, Any] = NOTHING
) -> list[int]:
    """Token ids of the prompt with `words` in place of its text, {prompt} and {answer} filled in.

    With messages it replaces the last one's text. Raises UserError where the template refuses it.
    """

    def filled(text: str) -> str:
        given = {"prompt": text, "answer": answer}
        return re.sub(r"\{(prompt|answer)\}", lambda found: given[found[1]], words)

    content = prompt.prompt
    if isinstance(content, str):
        return ids_of(replace(prompt, prompt=filled(content)), tokenizer, template)
    last = {**content[-1], "content": filled(content[-1]["content"] or "")}
    return ids_of(replace(prompt, prompt=[*content[:-1], last]), tokenizer, template)


def completion_form(prompt: str | list[dict[str, Any]], text: str) -> str | list[dict[str, Any]]:
    """A completion as rewards see it: text after a text prompt, one message after a chat."""
    return text if isinstance(prompt, str) else [{"role": "assistant", "content": text}]


def ids_of(prompt: Prompt, tokenizer: Any, template: Mapping[str, Any]) -> list[int]:
    """Token ids of a prompt, without checks of its characters. Raises UserError where the template
    refuses a message or leaves it out.
    """
    if prompt.ids:
        return list(prompt.ids)
    if isinstance(prompt.prompt, str):
        return text_ids(prompt.prompt, tokenizer)
    if not getattr(tokenizer, "chat_template", None):
        raise UserError(
            f"{prompt.name} is chat messages and the tokenizer has no chat template: give "
            "model.chat_template=FILE, or text in the prompt column"
        )
    template = with_tools(prompt, template)
    try:
        ids = applied(tokenizer, prompt.prompt, template, add_generation_prompt=True, tokenize=True)
        unseen = left_out(tokenizer, prompt.prompt, template)
    except Exception as error:  # a template is a program, which may fail on anything in a row
        raise UserError(
            f"the chat template refuses the messages of {prompt.name}: {error}; give others, or "
            "model.chat_template=FILE"
        ) from error
    if unseen:
        raise UserError(
            f"the chat template leaves out {unseen[0]} of {prompt.name}: write it into a message "
            "that the template shows, or give model.chat_template=FILE"
        )
    if isinstance(ids, Mapping) or hasattr(ids, "input_ids"):
        ids = ids["input_ids"]
    ids = list(ids)
    if ids and isinstance(ids[0], (list, tuple)):  # a batch of one
        ids = list(itertools.chain.from_iterable(ids))
    return ids


def text_ids(text: str, tokenizer: Any) -> list[int]:
    """Token ids of a text that is to be continued: after the tokens that the tokenizer puts before
    every text, unless it begins with them itself, and without those that it puts behind.
    """
    whole = list(tokenizer(text)["input_ids"])
    if not {*whole[:1], *whole[-1:]} & set(tokenizer.all_special_ids):
        return whole
    plain = list(tokenizer(text, add_special_tokens=False)["input_ids"])
    for place in reversed(range(len(whole) - len(plain) + 1)):
        if whole[place : place + len(plain)] == plain:
            before = whole[:place]
            return plain if before and plain[:place] == before else [*before, *plain]
    return whole
