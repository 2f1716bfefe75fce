"""Puts system and developer messages where a chat template shows them.

A template may refuse a role or a place, or leave a message out: Qwen's take no `developer`, those
of Qwen 3.5 and later refuse a second system message, and gpt-oss shows the first one alone.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import takewhile
from typing import Any

from jinja2 import TemplateError

Messages = list[dict[str, Any]]
INSTRUCTIONS, SPEAKERS = ("system", "developer"), ("user", "assistant")


def takes_roles(tokenizer: Any, template: Mapping[str, Any], roles: Sequence[str]) -> bool:
    """Whether the chat template, with these arguments, takes messages of these roles, and shows
    those that are neither the user's nor the assistant's.
    """
    messages = [
        {"role": role, "name": "name", "content": f"strop-message-{place}"}
        for place, role in enumerate(roles)
    ]
    try:
        text = str(tokenizer.apply_chat_template(messages, tokenize=False, **template))
    except (TemplateError, TypeError):
        return False
    return all(each["content"] in text for each in messages if each["role"] not in SPEAKERS)


def placed(messages: Messages, tokenizer: Any, template: Mapping[str, Any]) -> Messages:
    """The messages, with instructions moved where the chat template would not show them.

    A developer's message becomes the system's. Those at the start become one. A later one goes to
    the end of the user's message before it, an empty line between, or becomes the user's.
    """
    known = partial(takes_roles, tokenizer, template)
    if "developer" in map(_role, messages) and not known(("developer", "user")):
        messages = [
            {**each, "role": "system"} if _role(each) == "developer" else each for each in messages
        ]
    first = [_role(each) for each in takewhile(_instructs, messages)]
    head, rest = messages[: len(first)], messages[len(first) :]
    if len(head) > 1 and not known((*first, "user")):
        head, first = [_joined(head)], first[:1]
    later = (*first, "user", "system", "assistant", "user")
    if any(map(_instructs, rest)) and not known(later):
        rest = _by_user(rest)
    return [*head, *rest]


def _by_user(messages: Messages) -> Messages:
    """The messages, with the instructions told by the user."""
    found: Messages = []
    for each in messages:
        if _instructs(each) and found and _role(found[-1]) == "user":
            found[-1] = _joined([found[-1], each])
        else:
            found.append({**each, "role": "user"} if _instructs(each) else each)
    return found


def _role(message: Mapping[str, Any]) -> Any:
    return message.get("role")


def _instructs(message: Mapping[str, Any]) -> bool:
    return _role(message) in INSTRUCTIONS


def _joined(messages: Messages) -> dict[str, Any]:
    texts = [each.get("content") for each in messages]
    return {**messages[0], "content": "\n\n".join(text for text in texts if isinstance(text, str))}
