"""A client of servers with OpenAI's completions protocol.

It is the protocol of vLLM and SGLang: `return_token_ids` is not OpenAI's.
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

NOISE = 0.05  # nats by which a server's answers to one request may differ
# A server's log-probabilities are those of the model as it is, of the model at the request's
# temperature, or of the sampling distribution: at the temperature, cut by top_p and the like.
LogprobKind = Literal["model", "tempered", "drawn", "nothing"]
# Options to sample from the model as it is, and for the answer's form. A server takes options that
# are left out from the model's generation_config.json.
PLAIN: dict[str, Any] = {
    "temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0,
    "presence_penalty": 0.0, "frequency_penalty": 0.0, "return_token_ids": True,
    "skip_special_tokens": False,
}  # fmt: skip
UNIX = "unix:"  # begins an address that is the path of a socket
NO_LOGPROBS = "engine.logprobs=false does without log-probabilities"


class Gate:
    """Lets calls through; while it is shut, because the server changes, no call begins."""

    def __init__(self) -> None:
        self.is_open, self.broken = True, ""
        self._inside, self._changed = 0, threading.Condition()

    @contextmanager
    def passing(self) -> Iterator[None]:
        """Wraps a call: wait until it may begin. Raises Failed where no call ever may again."""
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
        """Inside, no call begins; after an exception no call ever does."""
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
        """Wait until no call is in progress; returns False if one still is after so long."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._inside, seconds)


class Answer(NamedTuple):
    """A server's answer to one prompt."""

    ids: tuple[int, ...]
    logp: tuple[float, ...]  # empty where none were requested
    best: tuple[float, ...]  # of the likeliest tokens in these places, if requested


class Client:
    """Calls to one server for one model; `logprob_kind`: which log-probabilities it gives.

    url: without /v1, or `unix:PATH` of a socket on this machine.
    """

    def __init__(self, url: str, key: str, timeout_seconds: float, logprobs: bool) -> None:
        self.url, self.timeout_seconds, self.logprobs = url, timeout_seconds, logprobs
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        socket = url.removeprefix(UNIX) if url.startswith(UNIX) else ""
        self.base = "http://localhost" if socket else url
        self.http = Http(timeout_seconds, headers, socket=socket)
        self.model = ""
        self.logprob_kind: LogprobKind = "nothing"

    def meet(self, model: str, vocab_size: int) -> int | None:
        """Check that the server answers, has the model and returns ids; returns its context, if
        known. Raises UserError.
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
        """Continue token ids; other threads may cancel `call`. Raises Failed."""
        body = {**PLAIN, "model": self.model, "prompt": list(prompt), **options}
        found = self.call(
            "/v1/completions", body | ({"logprobs": top} if self.logprobs else {}), call
        )
        try:
            choice = found["choices"][0]
            ids, taken = choice.get("token_ids"), choice.get("prompt_token_ids")
            logprobs = choice.get("logprobs") or {}
            logp = tuple(logprobs.get("token_logprobs") or ()) if self.logprobs else ()
            likeliest = logprobs.get("top_logprobs") or () if logp and top else ()
            best = tuple(max(each.values()) for each in likeliest)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise Failed(f"an answer that is no completion: {json.dumps(found)[:200]}") from error
        if ids is None:
            raise Failed(
                "it returns no token ids: strop sends `return_token_ids`, which vLLM answers from "
                "0.10.2 on and SGLang since July 2026; serve the model with one of these"
            )
        if taken is not None and taken != list(prompt):
            raise Failed(
                f"it read {len(taken)} tokens that differ from the prompt's {len(prompt)}: switch "
                "off whatever changes prompts there (templates, truncation)"
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
        """The answer to a GET, or with a body to a POST; None: an empty one. Raises Failed."""
        try:
            read = _json if as_json else bytes.decode
            return self.http.ask(self.base + path, body, read=read, call=call)
        except TimeoutError as error:
            limit = f"{self.timeout_seconds:g} s, the limit of engine.timeout_seconds"
            raise Failed(f"no answer in {limit}") from error

    def close(self) -> None:
        """Close the connections."""
        self.http.close()

    def _choose(self, listed: Any, model: str) -> int | None:
        """Choose the model of this name, or the only one; returns its context, if known."""
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
        """Find out which log-probabilities the server gives, by a token that is likely but not
        certain.

        If top_k and temperature count, its log-probability is 0 with top_k=1, and lower at
        temperature 2.
        """
        low, high = 10 * NOISE - math.log(vocab_size), -2 * NOISE
        for number in (2, 3, 5, 8):  # tokens from all over the vocabulary, as there is no text
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
            "it is unclear which log-probabilities it gives; start vLLM with --logprobs-mode "
            f"raw_logprobs; {NO_LOGPROBS}"
        )


def _json(body: bytes) -> Any:
    """The JSON of an answer, None where it is empty. Raises Failed."""
    try:
        return json.loads(body) if body else None
    except (ValueError, RecursionError) as error:
        raise Failed("an answer that is not JSON; is it a completions server?") from error
