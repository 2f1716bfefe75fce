"""What an engine asks of a server with OpenAI's completions protocol, and what it understands.

The protocol as of vLLM and SGLang: `return_token_ids` is not OpenAI's.
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

from strop.support.errors import UserError
from strop.support.http import Call, Failed, Http

NOISE = 0.05  # nats by which a server's answers to one question may differ
# A server's log-probabilities are of the model as it is, of the model at the request's temperature,
# or of what is drawn from: at the temperature, cut by top_p and the like.
LogprobKind = Literal["model", "tempered", "drawn", "nothing"]
# How to draw from the model as it is, and how to answer. What is left out here, a server takes from
# the model's generation_config.json.
PLAIN: dict[str, Any] = {
    "temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0,
    "presence_penalty": 0.0, "frequency_penalty": 0.0, "return_token_ids": True,
    "skip_special_tokens": False,
}  # fmt: skip
NO_LOGPROBS = "engine.logprobs=false does without log-probabilities"


class Gate:
    """Lets calls through; shut, while something changes at the server, none begins."""

    def __init__(self) -> None:
        self.is_open, self.broken = True, ""
        self._inside, self._changed = 0, threading.Condition()

    @contextmanager
    def passing(self) -> Iterator[None]:
        """Around a call: wait until it may begin. Raises Failed where none ever may again."""
        with self._changed:
            self._changed.wait_for(lambda: self.is_open or self.broken)
            if self.broken:
                raise Failed(self.broken)
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                self._changed.notify_all()

    @contextmanager
    def shut(self) -> Iterator[None]:
        """Inside no call begins; after an exception none ever does."""
        self.is_open = False
        try:
            yield
            self.is_open = True
        except BaseException as error:
            self.broken = f"the engine has no weights to sample with: {error}"
            raise
        finally:
            with self._changed:
                self._changed.notify_all()

    def empty(self, seconds: float) -> bool:
        """Wait until no call is under way; False where one is after so long."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._inside, seconds)


class Answer(NamedTuple):
    """What a server says to one prompt."""

    ids: tuple[int, ...]
    logp: tuple[float, ...]  # empty where none were asked for
    best: tuple[float, ...]  # those of the likeliest tokens in their places, where asked for


class Client:
    """Calls to one server for one model; `told`: what its log-probabilities are of."""

    def __init__(self, url: str, key: str, timeout_seconds: float, logprobs: bool) -> None:
        self.url, self.timeout_seconds, self.logprobs = url, timeout_seconds, logprobs
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.http = Http(timeout_seconds, headers)
        self.model = ""
        self.logprob_kind: LogprobKind = "nothing"

    def meet(self, model: str, vocab_size: int) -> int | None:
        """See that it is there, has the model and returns ids; its context, where it tells it.

        Raises UserError.
        """
        try:
            limit = self._choose(self.call("/v1/models"), model)
            self.logprob_kind = self._find_out(vocab_size)
        except Failed as failed:
            why = " (does it run, is its URL right?)" if failed.again else ""
            raise UserError(f"the server at {self.url}: {failed}{why}") from failed
        return limit

    def ask(
        self, prompt: Sequence[int], call: Call | None = None, top: int = 0, **options: Any
    ) -> Answer:
        """Continue token ids; `call` may be broken off by others. Raises Failed."""
        body = {**PLAIN, "model": self.model, "prompt": list(prompt), **options}
        found = self.call(
            "/v1/completions", body | ({"logprobs": top} if self.logprobs else {}), call
        )
        try:
            choice = found["choices"][0]
            ids, taken = choice.get("token_ids"), choice.get("prompt_token_ids")
            logprobs = choice.get("logprobs") or {}
            logp = tuple(logprobs.get("token_logprobs") or ()) if self.logprobs else ()
            best = (
                tuple(max(each.values()) for each in logprobs["top_logprobs"])
                if logp and top
                else ()
            )
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise Failed(f"an answer that is no completion: {json.dumps(found)[:200]}") from error
        if ids is None:
            raise Failed(
                "it returns no token ids: strop sends `return_token_ids`, which vLLM answers from "
                "0.10.2 on and SGLang since July 2026; serve the model with one of these"
            )
        if taken is not None and taken != list(prompt):
            raise Failed(
                f"it made {len(taken)} other tokens of the prompt's {len(prompt)}: switch off what "
                "changes prompts there (templates, truncation)"
            )
        if not ids:
            raise Failed(f"an answer without a token ({choice.get('finish_reason')})")
        if self.logprobs and (len(logp) != len(ids) or None in logp):
            raise Failed(f"not every token has a log-probability; {NO_LOGPROBS}")
        return Answer(tuple(ids), logp, best)

    def call(
        self, path: str, body: Mapping[str, Any] | None = None, call: Call | None = None,
        as_json: bool = True,
    ) -> Any:  # fmt: skip
        """What the server says, None: nothing: to a GET, with a body to a POST. Raises Failed."""
        try:
            read = _json if as_json else bytes.decode
            return self.http.ask(self.url + path, body, read=read, call=call)
        except TimeoutError as error:
            limit = f"{self.timeout_seconds:g} s, the limit of engine.timeout_seconds"
            raise Failed(f"no answer in {limit}") from error

    def close(self) -> None:
        """Let the connections go."""
        self.http.close()

    def _choose(self, listed: Any, model: str) -> int | None:
        """Take the model of this name, or the only one; its longest sequence, if that is told."""
        try:
            served: dict[str, int | None]
            bases = [each for each in listed["data"] if not each.get("parent")]  # no adapters
            served = {each["id"]: each.get("max_model_len") for each in bases}
            self.model = model or next(iter(served))
        except (LookupError, TypeError, AttributeError, StopIteration) as error:
            raise Failed("its /v1/models lists no models; is it a completions server?") from error
        if model not in served and (model or len(served) != 1):
            wanted = f"no model {model!r}" if model else "several models"
            raise Failed(f"it has {wanted}: give engine.model one of {', '.join(served)}")
        return served[self.model]

    def _find_out(self, vocab_size: int) -> LogprobKind:
        """What the log-probabilities are of, by that of a token that is likely and not certain.

        Behind top_k=1 it is 0, and at temperature 2 it is less, where these count.
        """
        low, high = 10 * NOISE - math.log(vocab_size), -2 * NOISE
        for number in (2, 3, 5, 8):  # tokens from all over the vocabulary, for lack of a text
            ids = tuple(vocab_size * place // number for place in range(number))
            plain = self.ask(ids, top=1, max_tokens=16)
            if not self.logprobs:
                return "nothing"
            for place, best in enumerate(plain.best):
                if low < best < high:
                    before = (*ids, *plain.ids[:place])
                    if self.ask(before, top=1, max_tokens=1, top_k=1).best[0] > best + NOISE:
                        return "drawn"
                    hot = self.ask(before, top=1, max_tokens=1, temperature=2.0).best[0]
                    return "tempered" if hot < best - NOISE else "model"
        raise Failed(
            "what its log-probabilities are of cannot be found out; start vLLM with "
            f"--logprobs-mode raw_logprobs; {NO_LOGPROBS}"
        )


def _json(body: bytes) -> Any:
    """What an answer says, None where it is empty. Raises Failed."""
    try:
        return json.loads(body) if body else None
    except (ValueError, RecursionError) as error:
        raise Failed("an answer that is not JSON; is it a completions server?") from error
