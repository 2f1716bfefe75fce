"""Answers in the forms of OpenAI and vLLM: bodies, and the events of a stream."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from strop.data.tool_calls import (
    IN_TAGS,
    OPEN_THOUGHT,
    THOUGHT,
    ParsedCall,
    functions_of,
    read_action,
    split_thought,
    without,
)
from strop.serving.fields import refuse
from strop.serving.protocol import ModelAnswer, ModelCall
from strop.serving.reading import Wanted

NO_LOGPROBS = "this policy does not tell log-probabilities: leave logprobs out"
END = 16  # tokens of a prompt, enough for a tag and blanks that open a thought


@dataclass(frozen=True)
class Generated:
    """An answer as a client reads it. thoughts: where the client wants them beside the text."""

    answer: ModelAnswer
    text: str
    finish_reason: str
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    thoughts: str = ""

    @property
    def speaks(self) -> bool:
        """Whether the answer has text, or nothing else either."""
        return bool(self.text or not (self.tool_calls or self.thoughts))


@dataclass(frozen=True)
class CallResponse:
    """The result of a call, ready to be written in any form."""

    wanted: Wanted
    generated: Sequence[Generated]
    model: str
    created: int
    tokenizer: Any

    @property
    def version(self) -> int | None:
        """The version of the newest weights that drew one of its tokens; None: unknown."""
        versions = [max(each.answer.versions) for each in self.generated if each.answer.versions]
        return max(versions, default=None)

    @property
    def id(self) -> str:
        """The name of the answer."""
        prefix = {"chat": "chatcmpl-", "completions": "cmpl-", "generate": ""}
        return prefix[self.wanted.call.route] + self.wanted.call.id

    @property
    def usage(self) -> dict[str, int]:
        """The numbers of prompt and drawn tokens."""
        prompt = len(self.wanted.call.prompt_ids)
        drawn = sum(len(each.answer.ids) for each in self.generated)
        return {"prompt_tokens": prompt, "completion_tokens": drawn, "total_tokens": prompt + drawn}

    def body(self) -> dict[str, Any]:
        """The whole answer as one object."""
        if self.wanted.call.route == "generate":
            choices = [{"index": n, **self._ended(each)} for n, each in enumerate(self.generated)]
            return {
                "request_id": self.id,
                "choices": choices,
                "prompt_logprobs": None,
                "weights_version": self.version,
            }
        chat = self.wanted.call.route == "chat"
        write = self._chat_choice if chat else self._text_choice
        return {
            **self._head("chat.completion" if chat else "text_completion"),
            "choices": [write(number, each) for number, each in enumerate(self.generated)],
            "usage": self.usage,
            **(self._prompt_ids() if chat else {}),
        }

    def events(self) -> Iterator[dict[str, Any]]:
        """The events of a stream: role, content, the end, and the usage where requested."""
        chat = self.wanted.call.route == "chat"
        head = self._head("chat.completion.chunk" if chat else "text_completion")
        for number, choice_of in enumerate(self.generated):
            for choice in self._chat_pieces(choice_of) if chat else self._text_pieces(choice_of):
                prompt = self._prompt_ids() if chat and "role" in choice.get("delta", {}) else {}
                yield {**head, "choices": [{"index": number, **choice}], **prompt}
        if self.wanted.usage:
            yield {**head, "choices": [], "usage": self.usage}

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "weights_version": self.version,
        }

    def _prompt_ids(self) -> dict[str, Any]:
        return {"prompt_token_ids": list(self.wanted.call.prompt_ids)} if self.wanted.ids else {}

    def _ended(self, generated: Generated) -> dict[str, Any]:
        """The last fields of all choices but those of texts."""
        return {
            "logprobs": self._logprobs(generated.answer),
            "finish_reason": generated.finish_reason,
            **self._ids(generated.answer),
        }

    def _ids(self, answer: ModelAnswer) -> dict[str, Any]:
        if not self.wanted.ids:
            return {}
        return {"token_ids": list(answer.ids), "token_versions": list(answer.versions) or None}

    def _chat_choice(self, number: int, generated: Generated) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": generated.text}
        if generated.tool_calls:
            message |= {"content": generated.text or None, "tool_calls": generated.tool_calls}
        if generated.thoughts:
            message["reasoning_content"] = generated.thoughts
        return {"index": number, "message": message, **self._ended(generated)}

    def _text_choice(self, number: int, generated: Generated) -> dict[str, Any]:
        return {
            "index": number,
            "text": generated.text,
            "logprobs": self._text_logprobs(generated.answer),
            "finish_reason": generated.finish_reason,
            **self._ids(generated.answer),
            **self._prompt_ids(),
        }

    def _chat_pieces(self, generated: Generated) -> Iterator[dict[str, Any]]:
        rest = {"logprobs": None, "finish_reason": None}
        yield {"delta": {"role": "assistant", "content": ""}, **rest}
        said = {"reasoning_content": generated.thoughts, "content": generated.text}
        delta: dict[str, Any] = {name: text for name, text in said.items() if text}
        if generated.tool_calls:
            delta["tool_calls"] = [
                {"index": n, **call} for n, call in enumerate(generated.tool_calls)
            ]
        yield {"delta": delta, **self._ended(generated), "finish_reason": None}
        yield {"delta": {}, **rest, "finish_reason": generated.finish_reason}

    def _text_pieces(self, generated: Generated) -> Iterator[dict[str, Any]]:
        whole = self._text_choice(0, generated)
        del whole["index"]
        yield {**whole, "finish_reason": None}
        yield {"text": "", "logprobs": None, "finish_reason": generated.finish_reason}

    def _token(self, id: int) -> str:
        return f"token_id:{id}" if self.wanted.named_by_id else self.tokenizer.decode([id])

    def _logprobs(self, answer: ModelAnswer) -> dict[str, Any] | None:
        if not self.wanted.logprobs:
            return None
        top = answer.top or ({},) * len(answer.ids)
        return {
            "content": [
                {
                    **self._of_token(id, logp),
                    "top_logprobs": [self._of_token(*each) for each in best.items()],
                }
                for id, logp, best in zip(
                    answer.ids, log_probs(self.wanted.call, answer), top, strict=True
                )
            ]
        }

    def _of_token(self, id: int, logp: float) -> dict[str, Any]:
        text = self.tokenizer.decode([id])
        # A token that is a part of a character has no text of its own.
        whole = None if "\ufffd" in text else list(text.encode())
        return {"token": self._token(id), "logprob": logp, "bytes": whole}

    def _text_logprobs(self, answer: ModelAnswer) -> dict[str, Any] | None:
        if not self.wanted.logprobs:
            return None
        tokens = [self._token(id) for id in answer.ids]
        offsets, place = [], 0
        for id in answer.ids:
            offsets.append(place)
            shown = self.tokenizer.decode([id], skip_special_tokens=not self.wanted.specials)
            place += len(shown)
        top = None
        if answer.top:  # else they were not asked for, or the policy does not report them
            top = [{self._token(id): logp for id, logp in best.items()} for best in answer.top]
        return {
            "tokens": tokens,
            "token_logprobs": list(log_probs(self.wanted.call, answer)),
            "text_offset": offsets,
            "top_logprobs": top,
        }


def log_probs(call: ModelCall, answer: ModelAnswer) -> Sequence[float]:
    """The log-probability of each token for clients. Raises Refused where it is unknown.

    It is that of the distribution which was drawn from; a greedy draw is certain, so there it is
    the model's.
    """
    if not answer.log_probs:
        raise refuse(NO_LOGPROBS, "logprobs")
    if call.temperature == 0 and answer.model_log_probs:
        return answer.model_log_probs
    return answer.log_probs


def respond(
    wanted: Wanted, answers: Sequence[ModelAnswer], tokenizer: Any, model: str, created: int,
    form: str,
) -> CallResponse:  # fmt: skip
    """Convert the answers to a call to a response for the client. form: of calls of tools."""
    choices = [_read(wanted, each, tokenizer, number, form) for number, each in enumerate(answers)]
    response = CallResponse(wanted, choices, model, created, tokenizer)
    if wanted.logprobs:
        for answer in answers:
            log_probs(wanted.call, answer)
    return response


def _read(wanted: Wanted, answer: ModelAnswer, tokenizer: Any, number: int, form: str) -> Generated:
    call = wanted.call
    if call.route == "generate":
        return Generated(answer, "", answer.ended)
    text, thoughts = _text(wanted, answer, tokenizer), ""
    if wanted.thoughts:
        before = tokenizer.decode(list(call.prompt_ids[-END:]))
        thoughts, text = split_thought(text, begun=before.rstrip().endswith(OPEN_THOUGHT))
    calls: list[dict[str, Any]] = []
    if wanted.tools:
        text, calls = read_tool_calls(text, f"call_{call.id}_{number}", form, call.tools)
    return Generated(answer, text, "tool_calls" if calls else answer.ended, calls, thoughts)


def _text(wanted: Wanted, answer: ModelAnswer, tokenizer: Any) -> str:
    """The text of an answer, up to the first stop string."""
    text: str = tokenizer.decode(list(answer.ids), skip_special_tokens=not wanted.specials)
    if stops := wanted.call.stop_strings:
        text = re.split("|".join(map(re.escape, stops)), text, maxsplit=1)[0]
    return text


def read_tool_calls(
    text: str, id: str, form: str, tools: Sequence[Mapping[str, Any]]
) -> tuple[str, list[dict[str, Any]]]:
    """The text without its tool calls, which have this form, and the calls. A call that is
    unreadable, or that the model only thinks of, stays text.
    """
    calls: list[dict[str, Any]] = []

    def takes(*found: ParsedCall) -> bool:
        try:
            functions = [_function(each) for each in found]
        except (ValueError, RecursionError):  # no JSON that a client could read
            return False
        for function in functions:
            calls.append({"id": f"{id}_{len(calls)}", "type": "function", "function": function})
        return bool(functions)

    if form in IN_TAGS:
        one = IN_TAGS[form]
        rest = without(text, lambda at: at.inside is not None and takes(one(at.inside, tools)))
    else:  # without tags, any JSON with a name would be a call
        action, rest = read_action(text, form, tools), text
        names = [function.get("name") for function in functions_of(tools)]
        if all(call.name in names for call in action.calls) and takes(*action.calls):
            rest = "".join(found[0] for found in THOUGHT.finditer(text)) + action.content
    return (rest.strip(), calls) if calls else (text, calls)


def _function(call: ParsedCall) -> dict[str, str]:
    """The function of a call in a client's form. Raises ValueError, RecursionError."""
    if call.problem or not isinstance(call.arguments, Mapping):
        raise ValueError(call.problem)
    arguments = json.dumps(dict(call.arguments), ensure_ascii=False, allow_nan=False)
    return {"name": call.name, "arguments": arguments}
