"""An engine over a server with OpenAI's completions protocol that returns token ids.

Token ids go out and come back; no text is ever made into tokens again. vLLM and SGLang are such
servers (`return_token_ids`). They sample with weights of their own: for scores and samples, not for
training.
"""

from __future__ import annotations

import math
import os
import queue
import threading
from dataclasses import dataclass, field
from typing import Any, ClassVar
from urllib.parse import urlsplit

import numpy as np
from pydantic import Field, field_validator

from strop.engines.base import WAITING, Ended, Engine, Event, Request
from strop.engines.completions_client import (
    NO_LOGPROBS,
    Answer,
    Client,
    Gate,
    Told,
)
from strop.engines.open import EngineSettings
from strop.engines.remote_rows import Row, RowEngine
from strop.engines.rules import MinP, TopK, TopP
from strop.engines.sampling import mix
from strop.support.errors import UserError
from strop.support.http import Call, Failed, Retries

RETRIES = Retries(tries=5, first_wait_seconds=0.5)
# The options that servers have for rules, in the order in which they apply them.
CUTS: dict[type, tuple[str, str]] = {
    MinP: ("min_p", "p"), TopK: ("top_k", "k"), TopP: ("top_p", "p")
}  # fmt: skip
# What log-probabilities are that are not the ones wanted, and how to get these.
MOST_FAILURES = 16  # requests that fail with no answer between them; then the server is at fault
OTHERS: dict[Told, str] = {
    "model": "those at temperature 1: sample there, or start vLLM with --logprobs-mode "
    "processed_logprobs",
    "drawn": "those of what top_k, top_p and min_p leave: sample without, or start vLLM with "
    "--logprobs-mode raw_logprobs",
    "nothing": "not asked for",
}


class CompletionsSettings(EngineSettings):
    """A server with OpenAI's completions protocol."""

    needs_model: ClassVar[bool] = False
    url: str = Field(default="http://127.0.0.1:8000", description="the server, without /v1")
    model: str = Field(
        default="", description="the server's name of the model; empty: the only one it serves"
    )
    api_key_env: str = Field(
        default="", description="environment variable with the server's key; empty: none"
    )
    num_parallel: int = Field(
        default=64, ge=1, le=1024, description="requests to the server at once"
    )
    timeout_seconds: float = Field(
        default=600.0, gt=0, le=1e6, description="longest wait for an answer"
    )
    logprobs: bool = Field(default=True, description="ask for the tokens' log-probabilities")

    @field_validator("url")
    @classmethod
    def _is_a_place(cls, url: str) -> str:
        if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
            raise UserError("it must begin with http:// or https:// and a host")
        return url.rstrip("/").removesuffix("/v1")

    def open(self, model: Any, tokenizer: Any, *, num_slots: int, context_length: int) -> Engine:
        """The engine. Raises UserError where the server cannot be had or returns no token ids."""
        client, longest = self.meet(self.url, tokenizer, context_length)
        return CompletionsEngine(client, tokenizer, self.num_parallel, longest)

    def meet(self, url: str, tokenizer: Any, context_length: int) -> tuple[Client, int]:
        """The server at this place, and its longest sequence. Raises UserError."""
        client = self.client(url)
        limit = client.meet(self.model, len(tokenizer))
        return client, min(context_length, limit or context_length)

    def client(self, url: str) -> Client:
        """What calls the server. Raises UserError where its key is not to be had."""
        key = os.environ.get(self.api_key_env, "") if self.api_key_env else ""
        if self.api_key_env and not key:
            raise UserError(
                f"the environment variable {self.api_key_env} is not set: set it to the server's "
                "key, or leave engine.api_key_env out"
            )
        return Client(url, key, self.timeout_seconds, self.logprobs)


@dataclass(eq=False)
class Asked(Row):
    """A request to a server."""

    call: Call = field(default_factory=Call)  # the one that is under way


class CompletionsEngine(RowEngine[Asked]):
    """Samples by calls of /v1/completions, `num_parallel` at once, one for each request.

    The server has the beginning of a request that goes on from another one in its prefix cache. It
    is sent a seed made of the request's and of the number of tokens before: what goes on does not
    repeat what it goes on from. Whether equal seeds give equal tokens, whatever else runs, is up to
    the server.

    An answer ends where the request says, whatever else the server takes for an end: what lies
    behind is cut off, what it broke off is gone on with. A call that fails for the moment is tried
    again; what fails for good ends its request as "failed", the others go on. Where MOST_FAILURES
    do so one after another, `step` raises UserError.

    A log-probability of an event is NaN where the server's are of something else.
    """

    def __init__(
        self, client: Client, tokenizer: Any, num_parallel: int, context_length: int
    ) -> None:
        super().__init__(tokenizer.decode, context_length)
        told = {"logp_model"} if client.logprobs else set()
        self.capabilities = frozenset({"rules"} | told)
        self.client = client
        self.num_parallel = num_parallel
        self.gate = Gate()
        self.num_failed = 0  # since the last answer
        self.threads: list[threading.Thread] = []
        self.asked: queue.SimpleQueue[Asked | None] = queue.SimpleQueue()
        self.answers: queue.SimpleQueue[tuple[Asked, Answer | Exception]] = queue.SimpleQueue()

    def full(self) -> bool:
        """True while far more requests wait than are asked at once."""
        return self.asked.qsize() >= WAITING * self.num_parallel and self.busy()

    def step(self) -> list[Event]:
        """Wait for an answer; return what there is to report. UserError for a broken server."""
        while not self.events and self.busy():
            self._take(*self.answers.get())
        while not self.answers.empty():
            self._take(*self.answers.get())
        events, self.events = self.events, []
        return events

    def load_weights(self, state: Any, version: int) -> None:
        """The server has weights of its own. Raises UserError."""
        raise UserError(f"the server at {self.client.url} takes no weights from here")

    def close(self) -> None:
        """Let the threads and the connections go."""
        for id in list(self.rows):
            self.release(id)
        for _ in self.threads:
            self.asked.put(None)
        self.threads = []
        self.client.close()

    # ---- from here on: how

    def _check(self, request: Request) -> int:
        """At how many tokens the request is full. UserError where the server cannot do it."""
        if len(request.ids) >= self.context_length:
            raise UserError(
                f"the prompt has {len(request.ids)} tokens, the server's context "
                f"{self.context_length}; shorten the prompt, at least one new token must fit"
            )
        told = self.client.told
        if "logp_model" in request.want and not knows(told, request)[1]:
            raise UserError(f"the server's log-probabilities are {OTHERS[told]}; {NO_LOGPROBS}")
        self._options(request)
        return min(len(request.ids) + request.max_tokens, self.context_length)

    def _row(self, id: int, request: Request, tokens: list[int], full: int) -> Asked:
        return Asked(id, request, tokens, full)

    def _drop(self, row: Asked) -> None:
        """Break its call off; another one may be asked."""
        row.ended = True  # before the thread that asks looks
        row.call.cancel()
        row.events.append(Event(row.id, (), (), self.version, ended="aborted"))

    def _ask(self, row: Asked) -> None:
        """Give a request to the threads."""
        self.asked.put(row)
        if len(self.threads) < min(self.num_parallel, len(self.rows)):
            self.threads.append(threading.Thread(target=self._work, daemon=True))
            self.threads[-1].start()

    def _work(self) -> None:
        """A thread's life: ask what there is to ask, one after another."""
        while (row := self.asked.get()) is not None:
            try:
                answer: Answer | Exception = self._persist(row)
            except Exception as error:  # raised by `step`
                answer = error
            self.answers.put((row, answer))

    def _persist(self, row: Asked) -> Answer:
        """Ask until there is an answer, or no more hope of one. Raises Failed."""
        tokens, seed = row.tokens, np.array([row.request.seed & (2**64 - 1)], np.uint64)
        options = self._options(row.request)
        options["seed"] = int(mix(mix(seed) + np.uint64(len(tokens)))[0] >> np.uint64(1))
        options["max_tokens"] = row.full - len(tokens)
        return RETRIES(lambda: self._pass(row, options), lambda wait: row.call.over.wait(wait))

    def _pass(self, row: Asked, options: dict[str, Any]) -> Answer:
        """Ask once, but for what is broken off by a change at the server. Raises Failed."""
        while True:
            with self.gate.passing():
                row.call = Call()
                if row.ended:
                    raise Failed("aborted")
                try:
                    return self.client.ask(
                        row.tokens, row.call, **options, **self._model_of(row.request)
                    )
                except Failed:
                    if self.gate.is_open:
                        raise

    def _take(self, row: Asked, answer: Answer | Exception) -> None:
        """Report what a request was answered, and ask on where that is not all."""
        if row.ended:  # aborted meanwhile
            return
        if isinstance(answer, Exception):
            self._fail(row, answer)
            return
        self.num_failed = 0
        size, stopped = self._until_stop(row, answer.ids)
        row.tokens += answer.ids[:size]
        ended: Ended = "stop" if stopped else ""
        if not stopped and len(row.tokens) >= row.full:
            ended = "length"
        void, zeros, logp = (math.nan,) * size, (0.0,) * size, answer.logp[:size]
        drawn, model = knows(self.client.told, row.request)
        sampled = zeros if row.request.temperature == 0 else logp if drawn else void
        wanted = model and "logp_model" in row.request.want
        event = Event(
            row.id, answer.ids[:size], sampled, self.version, logp if wanted else (), ended=ended
        )
        row.events.append(event)
        self.events.append(event)
        if ended:
            row.ended = True
        else:  # the server broke off, as at an end-of-text token that the request does not name
            self._ask(row)

    def _fail(self, row: Asked, error: Exception) -> None:
        """End a request that has no answer. UserError where the server gives none to anybody."""
        row.ended = True
        if not isinstance(error, Failed):
            raise error
        why = (
            f"the server at {self.client.url}: a request of {len(row.tokens)} tokens failed: "
            f"{error}"
        )
        self.num_failed += 1
        if self.num_failed >= MOST_FAILURES:
            raise UserError(f"{why} (as did the {self.num_failed - 1} before)") from error
        row.events.append(Event(row.id, (), (), self.version, ended="failed", why=why))
        self.events.append(row.events[-1])

    def _model_of(self, request: Request) -> dict[str, Any]:
        """Which model of the server draws it now, where it is not the one that was met."""
        return {}

    def _options(self, request: Request) -> dict[str, Any]:
        """How the tokens are drawn and end, as the server is told. UserError for another rule."""
        kinds = [type(rule) for rule in request.rules]
        for place, kind in enumerate(kinds):
            if kind not in CUTS or kind in kinds[:place]:
                raise UserError(
                    f"a completions server cannot apply {request.rules[place]!r}: it takes one "
                    "TopK, one MinP and one TopP; take engine.kind=local, or leave the rule out"
                )
        if TopP in kinds[:-1]:
            raise UserError(
                f"a completions server cuts by top_p last, and here {kinds[-1].__name__} comes "
                "behind it: give one of the two, or take engine.kind=local"
            )
        cuts = {CUTS[type(rule)][0]: getattr(rule, CUTS[type(rule)][1]) for rule in request.rules}
        return {
            **(cuts if request.temperature else {}),
            "temperature": request.temperature,
            "stop_token_ids": list(request.stop_ids),
            "stop": list(request.stop_strings),
        }


def knows(told: Told, request: Request) -> tuple[bool, bool]:
    """Whether log-probabilities of this kind are those of what is drawn from, and the model's."""
    cut = bool(request.rules) and request.temperature > 0
    if told == "drawn":
        return True, not cut
    model = told == "tempered" or (told == "model" and request.temperature in (0, 1))
    return model and not cut, model
