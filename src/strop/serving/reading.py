"""Reads the body of each route into a call and the contents of its answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from strop.serving.fields import BITS, MOST_ANSWERS, Fields, refuse
from strop.serving.prompts import Prompts
from strop.serving.protocol import ModelCall, Route
from strop.support.errors import UserError, check_value

MOST_TOP = 20  # OpenAI's
# Logits over a lower temperature may be infinite, so it counts as 0; a lower top_p may be 0 in
# float32, so it counts as this.
LEAST = 1e-30


@dataclass(frozen=True)
class Wanted:
    """A call, and which parts of its answers the client wants.

    ids: token ids of prompt and answers. logprobs: those of each token. named_by_id: a token is
    written `token_id:17`. specials: special tokens are in the text, too. tools: an
    answer's calls of tools are read. thoughts: an answer's thoughts stand beside its text.
    """

    call: ModelCall
    ids: bool = False
    logprobs: bool = False
    named_by_id: bool = False
    specials: bool = False
    tools: bool = False
    thoughts: bool = False
    stream: bool = False
    usage: bool = False  # in the last event of a stream


POLICY = "policy"  # the model's name for agents that are trained, on every server


class Reading:
    """Reads bodies for one model."""

    def __init__(
        self, prompts: Prompts, model: str, max_model_len: int, checks_room: bool = True
    ) -> None:
        self.prompts, self.model, self.max_model_len = prompts, model, max_model_len
        self.checks_room = checks_room

    def read(self, route: Route, body: Any, key: str, checks_room: bool = True) -> Wanted:
        """Read a body that was sent to a route. Raises Refused, for a prompt that has no room in
        the context only with checks_room.
        """
        try:
            check_value(body, "the body")
        except UserError as error:
            raise refuse(str(error)) from error
        reader = {"chat": self._chat, "completions": self._completions, "generate": self._generate}
        wanted = reader[route](Fields(body), key)
        self._check_room(wanted.call, checks_room and self.checks_room)
        return wanted

    def _chat(self, fields: Fields, key: str) -> Wanted:
        self.check_model(fields.take("model"))
        messages, tools = fields.objects("messages"), fields.objects("tools")
        more = fields.take("chat_template_kwargs") or {}
        if not isinstance(more, dict):
            raise fields.wrong("chat_template_kwargs", "an object")
        if (effort := fields.take("reasoning_effort")) is not None:
            more = {**more, "reasoning_effort": effort}
        choice = fields.take("tool_choice")
        if choice not in (None, "auto", "none"):
            raise fields.wrong("tool_choice", "auto or none: no call of a tool is forced here")
        shown = () if choice == "none" else tools
        logprobs, top = fields.flag("logprobs"), fields.whole("top_logprobs", 0, MOST_TOP)
        if top and not logprobs:
            raise refuse("top_logprobs needs logprobs: true", "top_logprobs")
        longest = fields.whole("max_completion_tokens", 1)
        usual = fields.whole("max_tokens", 1)
        call = ModelCall(
            "chat",
            self.prompts.of_messages(messages, shown, more),
            usual if longest is None else longest,
            num_top=top or 0,
            messages=messages,
            tools=tools,
            key=key,
            **_sampling(fields),
        )
        thoughts = fields.flag("separate_reasoning")
        return self._wanted(fields, call, logprobs, bool(shown), thoughts)

    def _completions(self, fields: Fields, key: str) -> Wanted:
        self.check_model(fields.take("model"))
        top = fields.whole("logprobs", 0, MOST_TOP)
        call = ModelCall(
            "completions",
            self._prompt(fields),
            fields.whole("max_tokens", 1),
            num_top=top or 0,
            key=key,
            **_sampling(fields),
        )
        return self._wanted(fields, call, top is not None)

    def _generate(self, fields: Fields, key: str) -> Wanted:
        self.check_model(fields.take("model"))
        if fields.flag("stream"):
            raise refuse("/inference/v1/generate does not stream: leave it out", "stream")
        inner = Fields(fields.take("sampling_params") or {}, "sampling_params.")
        ids = fields.ids("token_ids")
        call = ModelCall("generate", ids, inner.whole("max_tokens", 1), key=key, **_sampling(inner))
        # Its answer has only the drawn token's log-probability, for any number.
        logprobs = inner.whole("logprobs", 0, MOST_TOP) is not None
        fields.take("stream_options")
        inner.end(ignored=("skip_special_tokens", "detokenize"))  # it answers in ids
        fields.end()
        return Wanted(call, ids=True, logprobs=logprobs, named_by_id=True)

    def _wanted(
        self, fields: Fields, call: ModelCall, logprobs: bool, tools: bool = False,
        thoughts: bool = False,
    ) -> Wanted:  # fmt: skip
        stream = fields.flag("stream")
        options = Fields(fields.take("stream_options") or {}, "stream_options.")
        usage = options.flag("include_usage")
        options.end(ignored=("continuous_usage_stats", "include_obfuscation"))
        wanted = Wanted(
            call,
            ids=fields.flag("return_token_ids"),
            logprobs=logprobs,
            named_by_id=fields.flag("return_tokens_as_token_ids"),
            specials=not fields.flag("skip_special_tokens", usual=True),
            tools=tools,
            thoughts=thoughts,
            stream=stream,
            usage=usage,
        )
        fields.end()
        return wanted

    def _prompt(self, fields: Fields) -> tuple[int, ...]:
        """Text or token ids, also as the only element of a list."""
        given = fields.take("prompt")
        if isinstance(given, list) and len(given) == 1 and isinstance(given[0], str | list):
            given = given[0]
        if isinstance(given, str):
            return self.prompts.of_text(given)
        if isinstance(given, list) and given and all(type(id) is int and id >= 0 for id in given):
            return tuple(given)
        if isinstance(given, list) and given and all(isinstance(e, str | list) for e in given):
            raise refuse("prompt has several prompts: send a request for each", "prompt")
        raise refuse("give prompt as text, or as a list of token ids", "prompt")

    def check_model(self, given: Any) -> None:
        """Raise Refused for another model's name."""
        if given not in (None, self.model, POLICY):
            raise refuse(
                f"there is no model {given!r} here: it is called {self.model}",
                "model",
                "model_not_found",
                404,
            )

    def _check_room(self, call: ModelCall, checks: bool) -> None:
        size, limit = len(call.prompt_ids), self.max_model_len
        param = {"chat": "messages", "completions": "prompt", "generate": "token_ids"}[call.route]
        if not size:
            raise refuse(f"{param} is empty: give at least one token", param)
        if size + (call.max_tokens or 1) <= limit or not checks:
            return
        more = f" and max_tokens asks for {call.max_tokens} more" if call.max_tokens else ""
        raise refuse(
            f"the context of this model is {limit} tokens: the prompt has {size}{more}",
            param,
            "context_length_exceeded",
        )


def _sampling(fields: Fields) -> Mapping[str, Any]:
    """The sampling fields, which have the same names on all routes."""
    top_k = fields.whole("top_k", -1)
    top_p = fields.number("top_p", 0.0, 1.0)
    if top_p == 0:
        raise fields.wrong("top_p", "a number above 0")
    temperature = fields.number("temperature", 0.0, 100.0)
    if temperature is not None and temperature < LEAST:
        temperature = 0.0
    return {
        "temperature": temperature,
        "top_p": 1.0 if top_p is None else max(top_p, LEAST),
        "top_k": top_k or -1,
        "min_p": fields.number("min_p", 0.0, 1.0) or 0.0,
        "stop_strings": fields.texts("stop"),
        "stop_ids": fields.ids("stop_token_ids"),
        "seed": fields.whole("seed", -(2**BITS), 2**BITS),
        "num": fields.whole("n", 1, MOST_ANSWERS) or 1,
    }
