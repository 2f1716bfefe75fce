"""Given answers as token ids: behind messages, as the chat template writes an assistant's one."""

import re
from collections.abc import Collection, Mapping
from typing import Any

from jinja2 import TemplateError

from strop.data.encode import NOTHING, ids_of, with_tools
from strop.data.prompts import Prompt, text_of_parts
from strop.data.rendering import applied, left_out
from strop.data.tool_calls import CLOSE_THOUGHT, OPEN_THOUGHT
from strop.support.errors import UserError
from strop.support.unknown_characters import check_characters

THOUGHTS = ("reasoning_content", "reasoning", "thinking")  # as templates call them


def encode_answer(
    prompt: Prompt,
    column: str,
    tokenizer: Any,
    template: Mapping[str, Any] = NOTHING,
    stops: Collection[int] = (),
) -> list[int]:
    """Token ids of a given answer; empty when the prompt's row has none. The last is one of `stops`
    only where the answer's text or the chat template ends so.

    template: arguments of the chat template beside the messages. Raises UserError when the data
    have no such column, for an answer that is no text, for parts that the template does not show,
    and for characters that the tokenizer does not know.
    """
    if column not in prompt.columns:
        raise UserError(
            f"the data have no column {column}: give --data FILE whose rows have a prompt and "
            f"a {column}"
        )
    given = prompt.columns[column]
    if given is None:
        return []
    where = f"the {column} of {prompt.name}"
    message = _message(given, where)
    if isinstance(prompt.prompt, str) or prompt.ids:
        _check_plain(message, where, "the prompt is plain text, no chat")
        text = str(message["content"])
        ids = _plain_ids(tokenizer, text)
    else:
        text, ids = _behind(prompt, message, tokenizer, template, where)
    if tokenizer.unk_token_id in ids:
        check_characters(
            tokenizer, message.get("content") or "", f"{prompt.name}, column {column},"
        )
        check_characters(tokenizer, text, f"what the chat template makes of {where}")
    return _ended_once(ids, tokenizer, stops)


def answer_text(given: Any) -> str:
    """The text of a given answer; empty when it is none."""
    if isinstance(given, list) and len(given) == 1 and isinstance(given[0], Mapping):
        own = given[0].get("role") == "assistant"
        given = text_of_parts(given[0].get("content")) if own else None
    return given if isinstance(given, str) else ""


def _message(given: Any, where: str) -> dict[str, Any]:
    """A given answer as a message. Raises UserError where it is none, or says nothing."""
    if text := answer_text(given):
        return {"role": "assistant", "content": text, **(_beside(given) if text != given else {})}
    if isinstance(given, list) and len(given) == 1 and isinstance(given[0], Mapping):
        message = given[0]
        if message.get("role") == "assistant" and _says_nothing_but_calls(message):
            return {"role": "assistant", "content": "", **_beside(given)}
    whole = ""
    if isinstance(given, list) and len(given) > 1:
        whole = "; data.reader=messages reads conversations from chosen and rejected, or messages"
    raise UserError(f"{where} must be text or one message of an assistant, it is {given!r}{whole}")


def _says_nothing_but_calls(message: Mapping[str, Any]) -> bool:
    return message.get("content") in (None, "") and bool(message.get("tool_calls"))


def _beside(given: Any) -> dict[str, Any]:
    """What the message of an answer has beside its content: thoughts and calls."""
    return {name: given[0][name] for name in ("tool_calls", *THOUGHTS) if given[0].get(name)}


def _check_plain(message: Mapping[str, Any], where: str, why: str) -> None:
    """Raise UserError for a message with thoughts or calls in fields of their own."""
    if beside := [name for name in message if name not in ("role", "content")]:
        raise UserError(
            f"{where} has {beside[0]}, and {why}: write it into the content, as the model would "
            "write it, or remove it"
        )


def _behind(
    prompt: Prompt, message: dict[str, Any], tokenizer: Any, template: Mapping[str, Any], where: str
) -> tuple[str, list[int]]:
    """Text and token ids of an answer behind messages: what the template writes after the beginning
    of an answer. Where it writes a whole conversation otherwise, the answer as it stands.
    """
    assert isinstance(prompt.prompt, list)
    before = ids_of(prompt, tokenizer, template)
    template = with_tools(prompt, template)
    opening = applied(
        tokenizer, prompt.prompt, template, tokenize=False, add_generation_prompt=True
    )
    whole = _whole([*prompt.prompt, message], tokenizer, template)
    text = whole[len(opening) :] if whole.startswith(opening) else ""
    if text and all(part in text for part in _texts(message)):
        ids = _plain_ids(tokenizer, whole)
        same = ids[: len(before)] == before
        return text, ids[len(before) :] if same else _plain_ids(tokenizer, text)
    why = "the chat template does not write all of that message after the beginning of an answer"
    _check_plain(message, where, why)
    text = message["content"]
    if opening.rstrip().endswith(OPEN_THOUGHT):
        if CLOSE_THOUGHT not in text:
            raise UserError(
                f"{where} has no {CLOSE_THOUGHT}, and the chat template begins every answer with a "
                "thought: write a thought before the answer, or, where the template reads it, set "
                "data.chat_template_kwargs={enable_thinking: false}"
            )
        text = re.sub(rf"\A\s*{OPEN_THOUGHT}\s*", "", text)
    return text, _plain_ids(tokenizer, text)


def _whole(messages: list[dict[str, Any]], tokenizer: Any, template: Mapping[str, Any]) -> str:
    """The text of the conversation; empty where the template refuses it or shows no calls."""
    try:
        if messages[-1].get("tool_calls") and left_out(tokenizer, messages, template):
            return ""
        return str(applied(tokenizer, messages, template, tokenize=False))
    except (TemplateError, TypeError, ValueError):  # such as two answers after each other
        return ""


def _texts(message: Mapping[str, Any]) -> list[str]:
    """The texts that a message says, thoughts apart."""
    content = re.split(rf"{OPEN_THOUGHT}|{CLOSE_THOUGHT}", message["content"])
    thoughts = [str(message[name]) for name in THOUGHTS if name in message]
    return [text.strip() for text in (*content, *thoughts)]


def _plain_ids(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def _ended_once(ids: list[int], tokenizer: Any, stops: Collection[int]) -> list[int]:
    """The tokens up to the first of the stop tokens that they end in, blanks between."""
    end = len(ids)
    for place in reversed(range(len(ids))):
        if ids[place] in stops:
            end = place + 1
        elif tokenizer.decode([ids[place]]).strip():
            break
    return ids[:end]
