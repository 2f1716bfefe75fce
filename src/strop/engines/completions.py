"""An engine over a server with OpenAI's completions protocol that returns token ids.

Token ids go out and come back; no text is ever tokenised again. vLLM and SGLang are such servers
(`return_token_ids`). They sample with weights of their own, so they serve for scores and samples,
not for training.
"""

from __future__ import annotations

import math
import queue
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar

from pydantic import Field, field_validator

from strop.engines.base import WAITING, Ended, Engine, Event, Request, Source, taken_out
from strop.engines.completions_client import (
    NO_LOGPROBS,
    UNIX,
    Answer,
    Client,
    Gate,
    LogprobKind,
)
from strop.engines.open import EngineSettings
from strop.engines.rules import MinP, TopK, TopP
from strop.engines.sampling import seed_behind
from strop.support.errors import UserError
from strop.support.http import Call, Failed, Retries, key_of, why_no_place

RETRIES = Retries(tries=5, first_wait_seconds=0.5)
# The options that servers have for rules, in the order in which they apply them.
CUTS: dict[type, tuple[str, str]] = {
    MinP: ("min_p", "p"), TopK: ("top_k", "k"), TopP: ("top_p", "p")
}  # fmt: skip
MOST_FAILURES = 16  # failed requests without an answer in between; then the server is at fault
# By kind: which log-probabilities a server gives that are not the wanted ones, and the remedy.
OTHERS: dict[LogprobKind, str] = {
    "model": "those at temperature 1: sample there, or start vLLM with --logprobs-mode "
    "processed_logprobs",
    "drawn": "those of what top_k, top_p and min_p leave: sample without, or start vLLM with "
    "--logprobs-mode raw_logprobs",
    "nothing": "not requested",
}


class CompletionsSettings(EngineSettings):
    """A server with OpenAI's completions protocol."""

    needs_model: ClassVar[bool] = False
    url: str = Field(default="http://127.0.0.1:8000", description="the server, without /v1")
    model: str = Field(
        default="", description="the model's name at the server; empty: the only one it serves"
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
    logprobs: bool = Field(default=True, description="request the tokens' log-probabilities")

    @field_validator("url")
    @classmethod
    def _is_a_place(cls, url: str) -> str:
        if not url.startswith(f"{UNIX}/") and (why := why_no_place(url)):
            raise UserError(why)
        return url.rstrip("/").removesuffix("/v1")

    def open(self, model: Any, tokenizer: Any, *, num_slots: int, context_length: int) -> Engine:
        """Open the engine. Raises UserError if the server is unavailable or returns no ids."""
        client, longest = self.meet(self.url, tokenizer, context_length)
        return CompletionsEngine(client, tokenizer, self.num_parallel, longest)

    def meet(self, url: str, tokenizer: Any, context_length: int) -> tuple[Client, int]:
        """A client of the server at this URL, and its longest sequence. Raises UserError."""
        client = self.client(url)
        limit = client.meet(self.model, len(tokenizer))
        return client, min(context_length, limit or context_length)

    def client(self, url: str) -> Client:
        """The client that calls the server. Raises UserError where its key is missing."""
        key = key_of(self.api_key_env, "engine.api_key_env")
        return Client(url, key, self.timeout_seconds, self.logprobs)


@dataclass(eq=False)
class PendingCall:
    """A request to a server."""

    id: int
    request: Request
    call: Call = field(default_factory=Call)  # the current call
    cancelled: bool = False


class CallEngine(Engine):
    """Samples elsewhere, each request by a call whose answer may come at any time.

    Subclasses make the calls, and put each answer into `answers`, with its request.
    """

    def __init__(self, context_length: int) -> None:
        self.version = 0
        self.longest = self.context_length = context_length
        self.pending: dict[int, Any] = {}
        self.events: list[Event] = []  # not yet returned by `poll`
        self.num_failed = 0  # since the last answer
        self.answers: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()

    def poll(self, seconds: float | None = None) -> list[Event]:
        """Wait for an answer; returns the events to report. Raises as `_take` does."""
        with suppress(queue.Empty):
            while not self.events and self.pending:
                self._take(*self.answers.get(timeout=seconds))
        while not self.answers.empty():
            self._take(*self.answers.get())
        events, self.events = self.events, []
        return events

    def _take(self, asked: Any, answer: Any) -> None:
        """Report the answer to a request. Raises where the server answers no request."""
        raise NotImplementedError


class CompletionsEngine(CallEngine):
    """Samples by calls of /v1/completions, one for each request, `num_parallel` at a time.

    A request that continues another one finds its prefix in the server's prefix cache. Whether
    equal seeds give equal tokens, whatever else runs, is up to the server.

    An answer ends where the request says, whatever the server takes for an end: surplus tokens are
    cut off, and an answer that the server ended too early is continued. A call with a transient
    failure is retried; a permanent failure ends its request as "failed", and the others continue.
    After MOST_FAILURES in a row `poll` raises UserError.

    A log-probability of an event is NaN where the server's are those of another distribution.
    """

    def __init__(
        self, client: Client, tokenizer: Any, num_parallel: int, context_length: int
    ) -> None:
        super().__init__(context_length)
        self.decode = tokenizer.decode
        self.most_requests = (WAITING + 1) * num_parallel
        statistics = {"logp_model"} if client.logprobs else set()
        self.capabilities = frozenset({"rules"} | statistics)
        self.client = client
        self.num_parallel = num_parallel
        self.gate = Gate()
        self.threads: list[threading.Thread] = []
        self.asked: queue.SimpleQueue[PendingCall | None] = queue.SimpleQueue()

    def start(self, id: int, request: Request, source: Source = None) -> None:
        """Give a request to the threads. Raises UserError where the server cannot do it."""
        self._check(request)
        row = self.pending[id] = PendingCall(id, request)
        self.asked.put(row)
        if len(self.threads) < min(self.num_parallel, len(self.pending)):
            self.threads.append(threading.Thread(target=self._work, daemon=True))
            self.threads[-1].start()

    def cancel(self, id: int) -> list[Event]:
        """Cancel its call; its thread may take another request."""
        if (row := self.pending.pop(id, None)) is not None:
            row.cancelled = True  # before its thread checks this
            row.call.cancel()
        return taken_out(self.events, id)

    def load_weights(self, state: Any, version: int) -> None:
        """The server has weights of its own. Raises UserError."""
        raise UserError(f"the server at {self.client.url} takes no weights from here")

    def close(self) -> None:
        """End the threads and close the connections."""
        for id in list(self.pending):
            self.cancel(id)
        for _ in self.threads:
            self.asked.put(None)
        self.threads = []
        self.client.close()

    # ---- implementation

    def _check(self, request: Request) -> None:
        """Raise UserError for a request that the server cannot sample."""
        request.check_fits(self.context_length)
        kind = self.client.logprob_kind
        if "logp_model" in request.want and not knows(kind, request)[1]:
            raise UserError(f"the server's log-probabilities are {OTHERS[kind]}; {NO_LOGPROBS}")
        self._options(request)

    def _work(self) -> None:
        """The loop of a thread: send the queued requests, one after another."""
        while (row := self.asked.get()) is not None:
            try:
                self._persist(row)
            except Exception as error:  # raised by `poll`
                self.answers.put((row, error))

    def _persist(self, row: PendingCall) -> None:
        """Call until there is an answer or a permanent failure. Raises Failed."""
        request = row.request
        options = self._options(request)
        options["seed"] = seed_behind(request, bits=63)
        options["max_tokens"] = request.room(self.context_length)
        RETRIES(lambda: self._pass(row, options), lambda wait: row.call.over.wait(wait))

    def _pass(self, row: PendingCall, options: dict[str, Any]) -> None:
        """Call once, and again after a call that a change at the server cut off. Raises Failed.

        The answer is put inside the gate, so that a change finds all that came before it.
        """
        while True:
            with self.gate.passing():
                row.call = Call()
                if row.cancelled:
                    raise Failed("cancelled")
                try:
                    answer = self.client.ask(
                        row.request.ids, row.call, **options, **self._model_of(row.request)
                    )
                except Failed:
                    if self.gate.is_open:
                        raise
                else:
                    self.answers.put((row, answer))
                    return

    def _take(self, row: PendingCall, answer: Answer | Exception) -> None:
        """Report the answer to a request."""
        if row.cancelled:
            return
        if isinstance(answer, Exception):
            self._fail(row, answer)
            return
        self.num_failed = 0
        request = row.request
        size, stopped = request.until_stop(request.ids, answer.ids, self.decode)
        ended: Ended = "broken"  # by the server, such as at an end-of-text token that is no stop id
        if stopped or size >= request.room(self.context_length):
            ended = "stop" if stopped else "length"
        void, zeros, logp = (math.nan,) * size, (0.0,) * size, answer.logp[:size]
        drawn, model = knows(self.client.logprob_kind, request)
        sampled = zeros if request.temperature == 0 else logp if drawn else void
        wanted = model and "logp_model" in request.want
        event = Event(
            row.id, answer.ids[:size], sampled, self.version, logp if wanted else (), ended=ended
        )
        self._end(event)

    def _end(self, event: Event) -> None:
        del self.pending[event.request]
        self.events.append(event)

    def _fail(self, row: PendingCall, error: Exception) -> None:
        """End a failed request. Raises UserError where the server answers no request at all."""
        if not isinstance(error, Failed):
            raise error
        why = (
            f"the server at {self.client.url}: a request of {len(row.request.ids)} tokens failed: "
            f"{error}"
        )
        self.num_failed += 1
        if self.num_failed >= MOST_FAILURES:
            raise UserError(f"{why} (as did the {self.num_failed - 1} before)") from error
        self._end(Event(row.id, (), (), self.version, ended="failed", why=why))

    def _model_of(self, request: Request) -> dict[str, Any]:
        """The option `model` of a request, where it is not the client's own model."""
        return {}

    def _options(self, request: Request) -> dict[str, Any]:
        """The server's options for sampling and ends. Raises UserError for an unsupported rule."""
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
                "after it: give one of the two, or take engine.kind=local"
            )
        cuts = {CUTS[type(rule)][0]: getattr(rule, CUTS[type(rule)][1]) for rule in request.rules}
        return {
            **(cuts if request.temperature else {}),
            "temperature": request.temperature,
            "stop_token_ids": list(request.stop_ids),
            "stop": list(request.stop_strings),
        }


def knows(kind: LogprobKind, request: Request) -> tuple[bool, bool]:
    """Whether log-probabilities of this kind are the sampling distribution's, and the model's."""
    cut = bool(request.rules) and request.temperature > 0
    if kind == "drawn":
        return True, not cut
    model = kind == "tempered" or (kind == "model" and request.temperature in (0, 1))
    return model and not cut, model
