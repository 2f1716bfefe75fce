"""Puts prompts to a model that was tuned to chat: as messages, through its chat template."""

import inspect
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

from strop.data.encode import with_tools
from strop.data.instructions import INSTRUCTIONS, placed, takes_roles
from strop.data.model_renderer import ModelRenderer
from strop.data.prompts import Prompt
from strop.data.tool_calls import FORMS, WRITTEN, described, form_of
from strop.support.errors import UserError
from strop.support.files import json_of, text_of
from strop.support.unknown_characters import check_characters

ToolSchemas: TypeAlias = tuple[Mapping[str, Any], ...]
ANSWERED = ("user", "assistant", "tool")


@dataclass(frozen=True)
class Chat:
    """Which texts become messages, and what the chat template gets beside them.

    prompt_as: "messages": every text is a user's message; "text": none is; "auto": texts of another
    column than `prompt` are, and all texts are if there is a system prompt or an argument for the
    template. Without a chat template all texts stay unchanged.
    """

    prompt_as: str = "auto"
    system_prompt: str = ""
    template: Mapping[str, Any] = field(default_factory=dict)
    tools: ToolSchemas = ()  # of the tools of the task's environment, as chat templates take them
    thinking: str = "all"  # of earlier turns: all of it, or the part that the template shows
    as_tool: bool = True  # a tool's answer is a message of the role `tool`, not of a user
    renderer: str = "off"  # a renderer of the package renderers, which then reads calls
    reader: ModelRenderer | None = None  # that renderer
    call_form: str = "auto"  # the form, of FORMS, in which the model writes calls

    def speaks(self, tokenizer: Any) -> bool:
        """Whether texts may go through the tokenizer's chat template."""
        return self.prompt_as != "text" and bool(getattr(tokenizer, "chat_template", None))

    def put(self, prompt: Prompt, tokenizer: Any) -> Prompt:
        """The prompt as the model shall see it."""
        if not self.speaks(tokenizer):
            return prompt
        messages = prompt.prompt
        if isinstance(messages, str):
            if not self._is_wanted and prompt.column == "prompt":
                return prompt
            messages = [{"role": "user", "content": messages}]
        if self.system_prompt and messages[0]["role"] not in INSTRUCTIONS:
            messages = [{"role": "system", "content": self.system_prompt}, *messages]
        tools = () if "tools" in self.template else self._tools_of(prompt, tokenizer)
        put = replace(prompt, tools=tools)
        return replace(put, prompt=placed(messages, tokenizer, with_tools(put, self.template)))

    def for_tools(self, tools: ToolSchemas, tokenizer: Any) -> "Chat":
        """Add an environment's tools: the template shows them, where it can, or else `tools_text`
        describes them. Raises UserError for a form of calls that strop does not read.
        """
        option, value = "data.renderer", self.renderer
        if self.renderer == "off":
            option, value = "data.call_form", self.call_form
        if not tools and value != "auto":
            raise UserError(f"{option}={value} is for calls of tools, and the task has none")
        if not tools:
            return self
        if "tools" in self.template:
            raise UserError(
                "data.tools: the task's environment says which tools it has: leave it out"
            )
        found, shows = self.call_form, self._shows_tools(tokenizer)
        if self.renderer != "off":
            return self._rendered(tools, tokenizer)
        if found == "auto":
            found = form_of(str(tokenizer.chat_template)) if shows else "text"
        if not found:
            raise UserError(
                "the model's chat template asks for calls in a form that strop does not read: give "
                f"data.call_form ({', '.join(FORMS)}), or another model.chat_template"
            )
        schemas = {"tools": [dict(tool) for tool in tools]} if shows else {}
        template = {**self.template, **schemas}
        as_tool = self.speaks(tokenizer) and takes_roles(tokenizer, template, ANSWERED)
        if shows and not as_tool:
            raise UserError(
                "the model's chat template does not show what a tool answers to an assistant's "
                "text: give data.renderer, or another model.chat_template"
            )
        return replace(self, template=template, tools=tools, call_form=found, as_tool=as_tool)

    def _rendered(self, tools: ToolSchemas, tokenizer: Any) -> "Chat":
        if self.call_form != "auto" or not self._shows_tools(tokenizer):
            raise UserError(
                f"data.renderer={self.renderer} needs a chat template that shows tools, and knows "
                "how the model writes calls: leave data.call_form out, or data.renderer"
            )
        template = {**self.template, "tools": [dict(tool) for tool in tools]}
        reader = ModelRenderer(tokenizer, self.renderer, template)
        return replace(self, template=template, tools=tools, reader=reader)

    @property
    def tools_text(self) -> str:
        """The environment's tools in words, where the template does not show them."""
        if not self.tools or "tools" in self.template:
            return ""
        return described(self.tools) + WRITTEN[self.call_form]

    def _tools_of(self, prompt: Prompt, tokenizer: Any) -> ToolSchemas:
        """The tools of the prompt's row, as TRL has them: a list of schemas, or its JSON text."""
        given = prompt.columns.get("tools")
        if isinstance(given, str) and given.lstrip().startswith("["):
            with suppress(ValueError):
                given = json_of(given)
        if not isinstance(given, list) or not self._shows_tools(tokenizer):
            return ()
        return tuple(given) if all(map(_is_tool, given)) else ()

    def _shows_tools(self, tokenizer: Any) -> bool:
        template = str(getattr(tokenizer, "chat_template", None) or "")
        return self.speaks(tokenizer) and bool(re.search(r"\btools\b", template))

    @property
    def _is_wanted(self) -> bool:
        return self.prompt_as == "messages" or bool(self.system_prompt or self.template)

    def check(self, tokenizer: Any) -> None:
        """Raise UserError where the tokenizer's template cannot do what the settings need."""
        if self.thinking == "template" and not self.speaks(tokenizer):
            raise UserError(
                "data.thinking=template needs a chat template that prompts go through: give "
                "model.chat_template=FILE, or leave it out"
            )
        if not self._is_wanted:
            return
        names = {"data.system_prompt": self.system_prompt, "data.tools": "tools" in self.template,
                 "data.chat_template_kwargs": set(self.template) - {"tools"}}  # fmt: skip
        given = [name for name, value in names.items() if value] or ["data.prompt_as=messages"]
        if self.prompt_as == "text":
            raise UserError(f"data.prompt_as=text shows no chat: leave {given[0]} out, or it")
        template = getattr(tokenizer, "chat_template", None)
        if not template:
            raise UserError(
                f"{given[0]} needs a chat template, and the model's tokenizer has none: give "
                "model.chat_template=FILE, or leave it out"
            )
        check_characters(tokenizer, self.system_prompt, "data.system_prompt")
        for name in self.template:
            option = "data.tools" if name == "tools" else f"data.chat_template_kwargs: {name}"
            if why := why_not_for_template(tokenizer, name, option):
                raise UserError(why)


PLAIN = Chat()


def _is_tool(given: Any) -> bool:
    """Whether it describes a tool: a function, alone or inside."""
    return isinstance(given, dict) and ("function" in given or {"name", "parameters"} <= {*given})


def why_not_for_template(tokenizer: Any, name: str, option: str) -> str:
    """Why a tokenizer's chat template cannot take an argument of this name; empty: it can.

    option: the user's name for it.
    """
    own = inspect.signature(tokenizer.apply_chat_template).parameters
    if name in own and name != "tools":
        return f"{option} is set by strop itself: leave it out"
    if not re.search(rf"\b{re.escape(name)}\b", str(tokenizer.chat_template)):
        return f"{option}: the model's chat template reads no {name!r}"
    return ""


def read_tools(file: str) -> list[dict[str, Any]]:
    """The tools of a JSON file, one object or a list of them. Raises UserError."""
    text = text_of(Path(file), "data.tools:")
    try:
        found = json_of(text)
    except ValueError as error:
        raise UserError(f"data.tools: {file} is not JSON: {error}") from error
    tools = found if isinstance(found, list) else [found]
    if not tools or not all(isinstance(tool, dict) for tool in tools):
        raise UserError(
            f"data.tools: {file} must hold a list of objects, each what a tool is called, what it "
            'does and takes: [{"type": "function", "function": {"name": ..., "parameters": ...}}]'
        )
    return tools
