"""The fields of a body: those that are read, those that must be neutral, and those ignored."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from strop.serving.protocol import Refused
from strop.support.errors import nearest

# These fields would change the drawn tokens or the meaning of an answer, and no backend applies
# them: only their neutral values are accepted.
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "add_generation_prompt": (True,),
    "add_special_tokens": (True,),
    "allowed_callers": (["direct"],),
    "allowed_token_ids": ([],),
    "async": (False,),
    "audio": (),
    "background": (False,),
    "bad_words": ([],),
    "beam_width": (1,),
    "best_of": (1,),
    "container": (),
    "context_management": ([],),
    "continue_final_message": (False,),
    "conversation": (),
    "defer_loading": (False,),
    "detokenize": (True,),
    "documents": ([],),
    "echo": (False,),
    "features": ({},),
    "frequency_penalty": (0,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "grammar": ("",),
    "guided_choice": ([],),
    "guided_grammar": ("",),
    "guided_json": ("",),
    "guided_regex": ("",),
    "ignore_eos": (False,),
    "include_stop_str_in_output": (False,),
    "input_examples": ([],),
    "length_penalty": (1,),
    "logit_bias": ({},),
    "logits_processors": ([],),
    "max_tool_calls": (),
    "mcp_servers": ([],),
    "min_tokens": (0,),
    "modalities": (["text"],),
    "moderation": (),
    "format": (),
    "output_schema": (),
    "presence_penalty": (0,),
    "previous_response_id": (),
    "prompt_embeds": (),
    "prompt_logprobs": (),
    "repetition_penalty": (1,),
    "response_format": ({"type": "text"},),
    "structured_outputs": ({},),
    "suffix": ("",),
    "thinking": ({"type": "disabled"},),
    "thinking_token_budget": (),
    "truncate_prompt_tokens": (),
    "truncation": ("disabled",),
    "use_beam_search": (False,),
    "web_search_options": (),
}
# These fields do not change what is drawn.
HARMLESS = frozenset(
    {"cache_control", "cache_salt", "chat_template_content_format", "client_metadata",
     "diagnostics", "eager_input_streaming", "extra_args", "flat_logprobs", "inference_geo",
     "kv_transfer_params", "metadata", "mm_processor_kwargs", "output_kind",
     "parallel_tool_calls", "prediction", "priority", "prompt_cache_key",
     "prompt_cache_options", "prompt_cache_retention", "provider", "rid", "request_id",
     "safety_identifier", "service_tier", "session_id", "skip_reading_prefix_cache",
     "spaces_between_special_tokens", "speed", "store", "user", "user_profile_id",
     "verbosity", "vllm_xargs", "workspace_id"}
)  # fmt: skip
# The types of parts that are text, and the field that has it.
TEXTS = dict.fromkeys(
    ("text", "input_text", "output_text", "reasoning_text", "summary_text"), "text"
)
TEXTS["refusal"] = "refusal"
MOST_ANSWERS = 1024  # of one call
BITS = 63  # of a seed


def refuse(text: str, param: str = "", code: str = "", status: int = 400) -> Refused:
    """Make a refusal of a client's input."""
    return Refused(status, text, code, param)


def texts_of(given: Any, where: str) -> str:
    """The text of a content: a text, or parts that are texts. Raises Refused."""
    if isinstance(given, str):
        return given
    if not isinstance(given, list) or not all(isinstance(each, Mapping) for each in given):
        raise refuse(f"{where} must be text or a list of objects", where)
    found = [each.get(TEXTS.get(str(each.get("type")))) for each in given]
    for each, text in zip(given, found, strict=True):
        if not isinstance(text, str):
            kind = each.get("type")
            raise refuse(f"{where} has a part of type {kind!r}: this model reads text", where)
    return "".join(found)


def tool_of(given: Mapping[str, Any], kind: str, schema: str) -> dict[str, Any]:
    """A client's function, as chat templates take it. kind: its type; schema: the name of its
    parameters. Raises Refused.
    """
    fields = Fields(given, "tools.")
    if (found := fields.take("type")) not in (None, kind):
        raise refuse(f"tools has one of type {found!r}: only a client's own functions are", "tools")
    function = {
        "name": fields.take("name"),
        "description": fields.take("description"),
        "parameters": fields.take(schema) or {},
        "strict": fields.take("strict"),
    }
    fields.end()
    return {"type": "function", "function": {k: v for k, v in function.items() if v is not None}}


class Fields:
    """The fields of one object of a body; null counts as absent.

    Each is taken by its name and kind. `end` refuses the rest where it matters. prefix: put before
    their names in messages.
    """

    def __init__(self, given: Any, prefix: str = "") -> None:
        self.prefix = prefix
        if not isinstance(given, Mapping):
            what = prefix.rstrip(".") or "the body"
            raise refuse(f"{what} must be an object of JSON", prefix.rstrip("."))
        self.given = {name: value for name, value in given.items() if value is not None}
        self.known: set[str] = set()

    def take(self, name: str) -> Any:
        """A field as received; None: it is absent."""
        self.known.add(name)
        return self.given.get(name)

    def whole(self, name: str, least: int, most: int | None = None) -> int | None:
        """A whole number within bounds."""
        value = self.take(name)
        if value is None:
            return None
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if type(value) is not int or value < least or (most is not None and value > most):
            between = f"of at least {least}" if most is None else f"from {least} to {most}"
            raise self.wrong(name, f"a whole number {between}")
        return value

    def number(self, name: str, low: float, high: float = math.inf) -> float | None:
        """A finite number within bounds."""
        value = self.take(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.wrong(name, "a number")
        if not (math.isfinite(value) and low <= value <= high):
            between = f"of at least {low:g}" if high == math.inf else f"from {low:g} to {high:g}"
            raise self.wrong(name, f"a number {between}")
        return float(value)

    def flag(self, name: str, usual: bool = False) -> bool:
        """True or false; `usual` where it is absent."""
        value = self.take(name)
        if value is not None and not isinstance(value, bool):
            raise self.wrong(name, "true or false")
        return usual if value is None else bool(value)

    def texts(self, name: str) -> tuple[str, ...]:
        """A text or a list of texts, none of them empty."""
        value = self.take(name)
        found = [value] if isinstance(value, str) else value or []
        if not isinstance(found, list) or not all(isinstance(e, str) and e for e in found):
            raise self.wrong(name, "a text that is not empty, or a list of such")
        return tuple(dict.fromkeys(found))

    def ids(self, name: str) -> tuple[int, ...]:
        """A list of token ids."""
        value = self.take(name)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(type(id) is int and id >= 0 for id in value):
            raise self.wrong(name, "a list of token ids, whole numbers of at least 0")
        return tuple(value)

    def objects(self, name: str) -> tuple[Mapping[str, Any], ...]:
        """A list of objects."""
        value = self.take(name)
        found = [] if value is None else value
        if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
            raise self.wrong(name, "a list of objects")
        return tuple(found)

    def wrong(self, name: str, what: str) -> Refused:
        """The refusal of a field of the wrong kind."""
        shown = repr(self.given.get(name))
        shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
        return refuse(f"{self.prefix}{name} is {shown}: give {what}", f"{self.prefix}{name}")

    def end(self, ignored: Iterable[str] = ()) -> None:
        """Refuse the remaining fields that would change the draw or are unknown."""
        left = set(self.given) - self.known - HARMLESS - set(ignored)
        for name in sorted(left):
            param = f"{self.prefix}{name}"
            if name not in NEUTRAL:
                near = nearest(name, [*self.known, *NEUTRAL, *HARMLESS])
                raise refuse(f"there is no field {param}{near}", param, "unknown_parameter")
            if not self._is_neutral(name):
                raise refuse(
                    f"{param} is not applied here, and tokens would be drawn as if it were absent: "
                    "leave it out",
                    param,
                    "unsupported_parameter",
                )

    def _is_neutral(self, name: str) -> bool:
        value = self.given[name]
        return any(
            value == each and isinstance(value, bool) == isinstance(each, bool)
            for each in NEUTRAL[name]
        )
