"""Prompts as token ids, and completions in the form that reward functions expect."""

import itertools
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from strop.errors import UserError
from strop.tasks.task import Prompt


def encode_prompt(prompt: Prompt, tokenizer: Any) -> list[int]:
    """Token ids of a prompt: text as the tokenizer writes it, messages by its chat template.

    Raises UserError for messages without a chat template and a prompt of no tokens.
    """
    ids = _ids(prompt, tokenizer)
    if not ids:
        raise UserError(f"prompt {prompt.uid} has no tokens: give it some text or remove its row")
    return ids


def encode_reworded(prompt: Prompt, words: str, answer: str, tokenizer: Any) -> list[int]:
    """Token ids of the prompt with `words` in place of its text, {prompt} and {answer} filled in.

    Of messages it is the last one's text. Raises UserError as `encode_prompt`.
    """

    def filled(text: str) -> str:
        given = {"prompt": text, "answer": answer}
        return re.sub(r"\{(prompt|answer)\}", lambda found: given[found[1]], words)

    told = prompt.prompt
    if isinstance(told, str):
        return _ids(replace(prompt, prompt=filled(told)), tokenizer)
    last = {**told[-1], "content": filled(str(told[-1]["content"]))}
    return _ids(replace(prompt, prompt=[*told[:-1], last]), tokenizer)


def completion_form(prompt: str | list[dict[str, Any]], text: str) -> str | list[dict[str, Any]]:
    """A completion as rewards see it: text after a text prompt, one message after a chat."""
    return text if isinstance(prompt, str) else [{"role": "assistant", "content": text}]


def _ids(prompt: Prompt, tokenizer: Any) -> list[int]:
    if isinstance(prompt.prompt, str):
        return list(tokenizer(prompt.prompt)["input_ids"])
    if not getattr(tokenizer, "chat_template", None):
        raise UserError(
            f"prompt {prompt.uid} is chat messages and the tokenizer has no chat template: give "
            "model.chat_template=FILE, or text in the prompt column"
        )
    ids = tokenizer.apply_chat_template(prompt.prompt, add_generation_prompt=True, tokenize=True)
    if isinstance(ids, Mapping) or hasattr(ids, "input_ids"):
        ids = ids["input_ids"]
    ids = list(ids)
    if ids and isinstance(ids[0], (list, tuple)):  # a batch of one
        ids = list(itertools.chain.from_iterable(ids))
    return ids


def encode_answer(prompt: Prompt, column: str, tokenizer: Any) -> list[int]:
    """Token ids of a given answer, without its end; empty when the prompt's row has none.

    Raises UserError when the data have no such column, and for an answer that is no text.
    """
    if column not in prompt.columns:
        raise UserError(
            f"the data have no column {column}: give --data FILE whose rows have a prompt and "
            f"a {column}"
        )
    given = prompt.columns[column]
    if given is None:
        return []
    text = answer_text(given)
    if not text:
        raise UserError(
            f"the {column} of prompt {prompt.uid} must be text or one message of an assistant, it "
            f"is {given!r}"
        )
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def answer_text(given: Any) -> str:
    """The text of a given answer; empty when it is none."""
    if isinstance(given, list) and len(given) == 1 and isinstance(given[0], Mapping):
        given = given[0].get("content") if given[0].get("role") == "assistant" else None
    return given if isinstance(given, str) else ""
