"""Encodes a call's prompt as token ids: messages with tools, text, or ids."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from strop.data.chat import Chat, why_not_for_template
from strop.data.encode import encode_prompt
from strop.data.given_answers import THOUGHTS
from strop.data.prompts import Prompt
from strop.data.tool_calls import CLOSE_THOUGHT, OPEN_THOUGHT, form_of
from strop.serving.fields import refuse, texts_of
from strop.support.errors import UserError

ROLES = ("system", "developer", "user", "assistant", "tool")
NO_TEMPLATE = (
    "the model's tokenizer has no chat template: give model.chat_template=FILE "
    "(`strop serve --chat-template FILE`), or call /v1/completions with text or token ids"
)


class Prompts:
    """Encodes prompts with the model's tokenizer and its chat template, as the run does.

    Without a template a single message of a user is its plain text, as in training; several are
    joined unchanged only if the run sets `data.prompt_as=text`.
    """

    def __init__(self, tokenizer: Any, chat: Chat) -> None:
        self.tokenizer, self.chat = tokenizer, chat

    @property
    def call_form(self) -> str:
        """The form in which the model calls tools: that of the run, or of its chat template."""
        given = self.chat.call_form
        return (form_of(self._template) or "hermes") if given == "auto" else given

    @property
    def _template(self) -> str:
        return str(getattr(self.tokenizer, "chat_template", None) or "")

    def of_text(self, text: str) -> tuple[int, ...]:
        """The ids of a text."""
        return self._encoded(text, {})

    def of_messages(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        more: Mapping[str, Any],
    ) -> tuple[int, ...]:
        """The ids of messages; more: further arguments of the template from the client."""
        if not messages:
            raise refuse("messages is empty: give at least one message", "messages")
        read = next((n for n in THOUGHTS if re.search(rf"\b{n}\b", self._template)), "")
        checked = [_message(each, place, read) for place, each in enumerate(messages)]
        if not self.chat.speaks(self.tokenizer):
            return self._joined(checked, bool(tools), more)
        if "tools" in more:
            raise refuse("tools are a field of their own: give them there", "chat_template_kwargs")
        for name in more:
            if why := why_not_for_template(self.tokenizer, name, f"chat_template_kwargs.{name}"):
                raise refuse(why, "chat_template_kwargs")
        if tools and (why := why_not_for_template(self.tokenizer, "tools", "tools")):
            raise refuse(why, "tools")
        put = self.chat.put(Prompt(0, checked, {}), self.tokenizer).prompt
        given = {**self.chat.template, **more, **({"tools": list(tools)} if tools else {})}
        return self._encoded(put, given)

    def _joined(
        self, messages: Sequence[Mapping[str, Any]], tools: bool, more: Mapping[str, Any]
    ) -> tuple[int, ...]:
        as_text = self.chat.prompt_as == "text"
        why = "data.prompt_as=text shows no chat" if as_text else NO_TEMPLATE
        if tools or any("tool_calls" in each or each["role"] == "tool" for each in messages):
            raise refuse(f"tools need a chat template: {why}", "tools")
        if more:
            raise refuse(
                f"chat_template_kwargs need a chat template: {why}", "chat_template_kwargs"
            )
        if not as_text and (len(messages) > 1 or messages[0]["role"] != "user"):
            raise refuse(
                f"{NO_TEMPLATE}; with data.prompt_as=text the texts of several messages are "
                "joined as they are",
                "messages",
            )
        return self._encoded("".join(each["content"] for each in messages), {})

    def _encoded(self, prompt: Any, template: Mapping[str, Any]) -> tuple[int, ...]:
        try:
            made = Prompt(0, prompt, {}, "the prompt", column="")
            return tuple(encode_prompt(made, self.tokenizer, template))
        except UserError as error:
            raise refuse(str(error)) from error


def _message(given: Mapping[str, Any], place: int, thought: str) -> dict[str, Any]:
    """Convert a message for templates: its content to text, and its thoughts to the field of the
    name `thought`; without a name they become the beginning of the content, in tags.
    """
    where = f"messages[{place}]"
    role = given.get("role")
    if role not in ROLES:
        raise refuse(f"{where}.role is {role!r}: give one of {', '.join(ROLES)}", where)
    calls, thoughts = given.get("tool_calls") or [], _thoughts(given, where)
    said = given.get("content")
    content = "" if said is None and (calls or thoughts) else texts_of(said, f"{where}.content")
    if thoughts and not thought:
        content = f"{OPEN_THOUGHT}\n{thoughts}\n{CLOSE_THOUGHT}\n\n{content}"
    ours = {"tool_calls", "content", *THOUGHTS}
    message = {name: v for name, v in given.items() if v is not None and name not in ours}
    message["content"] = content
    if thoughts and thought:
        message[thought] = thoughts
    if calls:
        message["tool_calls"] = [_call(each, where) for each in _list(calls, f"{where}.tool_calls")]
    return message


def _thoughts(given: Mapping[str, Any], where: str) -> str:
    """The thoughts of a message, which clients give under several names."""
    found = next((given[name] for name in THOUGHTS if given.get(name)), "")
    if not isinstance(found, str):
        raise refuse(f"{where} has thoughts that are no text", where)
    return found


def _call(given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """A tool call of an earlier answer."""
    function = given.get("function")
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise refuse(f"{where}.tool_calls has a call without the name of its function", where)
    return {**given, "type": "function"}


def _list(given: Any, name: str) -> list[Mapping[str, Any]]:
    if not isinstance(given, list) or not all(isinstance(each, dict) for each in given):
        raise refuse(f"{name} must be text or a list of objects", name)
    return given
