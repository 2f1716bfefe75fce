"""Reads calls and writes turns with the package `renderers`, for models that it knows."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from strop.data.tool_calls import Action, ParsedCall, spoken
from strop.support.errors import UserError, needs_extra
from strop.support.files import well_formed

SHOWN = 80  # characters of a call that cannot be read, for the policy


class ModelRenderer:
    """The package's renderer of a model family, by its name there, or `auto`: by the model's name.

    template: arguments of the chat template beside the messages. Raises UserError.
    """

    def __init__(self, tokenizer: Any, name: str, template: Mapping[str, Any]) -> None:
        with needs_extra(f"data.renderer={name} needs the package renderers", "renderers"):
            from renderers import create_renderer
            from renderers.base import MODEL_RENDERER_MAP
            from renderers.configs import config_from_name
        known, model = sorted(set(MODEL_RENDERER_MAP.values())), str(tokenizer.name_or_path)
        family = MODEL_RENDERER_MAP.get(model) if name == "auto" else name
        if family not in known:
            what = f"no family of the model {model!r}" if name == "auto" else f"no {name!r}"
            raise UserError(
                f"data.renderer: the package renderers knows {what}; it has {', '.join(known)}"
            )
        try:
            config = type(config_from_name(family))(thinking_retention="all")
            given = {key: value for key, value in template.items() if key != "tools"}
            self.renderer = create_renderer(tokenizer, config, chat_template_kwargs=given or None)
        except Exception as error:
            raise UserError(f"data.renderer={family} does not suit the model: {error}") from error
        self.tokenizer, self.tools = tokenizer, template.get("tools")

    def read(self, ids: Sequence[int], text: str) -> Action:
        """Read the calls of an action from its tokens."""
        parsed = self.renderer.parse_response(list(ids), tools=self.tools)
        calls = tuple(_call_of(each) for each in parsed.tool_calls)
        return Action.of(text, spoken(parsed.content).strip(), calls)

    def between(
        self, prompt: Sequence[int], action: Sequence[int], messages: Sequence[Mapping[str, Any]]
    ) -> tuple[int, ...]:
        """Tokens from the end of an action to the start of the next one, with these messages.

        Raises UserError where the package cannot continue from there.
        """
        bridged = self.renderer.bridge_to_next_turn(
            list(prompt), list(action), [dict(each) for each in messages], tools=self.tools
        )
        if bridged is None:
            raise UserError(
                "data.renderer: the package renderers cannot continue after an action without "
                "rewriting it: give data.renderer=off"
            )
        return tuple(bridged.token_ids[len(prompt) + len(action) :])


def _call_of(found: Any) -> ParsedCall:
    arguments = found.arguments
    with suppress(ValueError, RecursionError):
        arguments = well_formed(json.loads(arguments) if isinstance(arguments, str) else arguments)
    status = str(found.status.value)
    if status != "ok":
        return ParsedCall(found.name or "", arguments, status, found.raw[:SHOWN])
    return ParsedCall(found.name or "", {} if arguments is None else arguments)
