"""Samples with a server of Tinker's API, and says what goes wrong there."""

from __future__ import annotations

import math
import queue
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from strop.engines.base import Ended, Event, Request
from strop.engines.completions import MOST_FAILURES
from strop.engines.remote_rows import Row, RowEngine
from strop.engines.sampling import mix
from strop.support.errors import RunStopped, UserError


@contextmanager
def told(url: str, kind: type[Exception] = RunStopped) -> Iterator[None]:
    """Inside, what the client or the server says of a failure becomes an error of this kind."""
    import tinker

    try:
        yield
    except (UserError, RunStopped):
        raise
    except (tinker.AuthenticationError, tinker.PermissionDeniedError) as error:
        raise kind(f"the server at {url} refuses the key: {first_line(error)}") from error
    except Exception as error:  # the client asserts what a server of another version does not do
        raise kind(f"the server at {url}: {first_line(error)}") from error


def first_line(error: Exception) -> str:
    """The first line of an error, with its type where it is none of the client's own."""
    line = (str(error).strip().splitlines() or [""])[0]
    plain = isinstance(error, (OSError, ValueError)) or type(error).__module__ != "builtins"
    return line if plain and line else f"{type(error).__name__}: {line}".rstrip(": ")


def seed_of(request: Request, size: int) -> int:
    """The seed, of 31 bits, that a server is sent for a request behind so many tokens: what goes on
    does not repeat what it goes on from.
    """
    seed = np.array([request.seed & (2**64 - 1)], np.uint64)
    return int(mix(mix(seed) + np.uint64(size))[0] >> np.uint64(33))


class TinkerEngine(RowEngine[Row]):
    """Samples with the server's sampler of the weights of now, each request by a call of its own.

    What is begun ends with the weights that it began with. An answer that fails ends its request as
    "failed"; where MOST_FAILURES do so one after another, `step` raises RunStopped. server: as
    `integrations.tinker` has it.
    """

    capabilities = frozenset({"weights", "logp_model"})
    renews_alone = True

    def __init__(self, server: Any, tokenizer: Any, context_length: int) -> None:
        super().__init__(tokenizer.decode, context_length)
        self.server = server
        self.sampler: Any = None  # until it is first asked
        self.num_failed = 0  # since the last answer
        self.answers: queue.SimpleQueue[tuple[Row, Any]] = queue.SimpleQueue()

    def step(self) -> list[Event]:
        """Wait for an answer; return what there is to report."""
        while not self.events and self.busy():
            self._take(*self.answers.get())
        while not self.answers.empty():
            self._take(*self.answers.get())
        events, self.events = self.events, []
        return events

    def load_weights(self, state: Any, version: int) -> None:
        """Sample with the weights that the server has now, from the next request on."""
        self.sampler, self.version = None, version

    def close(self) -> None:
        """End the sessions."""
        self.server.settings.close()

    # ---- from here on: how

    def _check(self, request: Request) -> int:
        """At how many tokens the request is full. UserError for one that does not fit."""
        if len(request.ids) >= self.context_length:
            raise UserError(
                f"the prompt has {len(request.ids)} tokens, the server's context "
                f"{self.context_length}; shorten the prompt, at least one new token must fit"
            )
        return min(len(request.ids) + request.max_tokens, self.context_length)

    def _row(self, id: int, request: Request, tokens: list[int], full: int) -> Row:
        return Row(id, request, tokens, full)

    def _drop(self, row: Row) -> None:
        """Its answer is let go when it comes."""
        row.events.append(Event(row.id, (), (), self.version, ended="aborted"))

    def _ask(self, row: Row) -> None:
        """Begin the call for a request."""
        import tinker

        if self.sampler is None:
            self.sampler = self.server.sampler()
        request, size = row.request, len(row.tokens)
        params = tinker.SamplingParams(
            max_tokens=row.full - size, temperature=request.temperature,
            seed=seed_of(request, size),
            stop=list(request.stop_strings or request.stop_ids),
        )  # fmt: skip
        with told(self.server.url):
            future = self.sampler.sample(tinker.ModelInput.from_ints(row.tokens), 1, params)
        future.future().add_done_callback(lambda done: self.answers.put((row, done)))

    def _take(self, row: Row, done: Any) -> None:
        """Report what a request was answered. Raises RunStopped where the server answers none."""
        if row.ended:  # aborted meanwhile
            return
        row.ended = True
        try:
            with told(self.server.url):
                answer = done.result().sequences[0]
        except RunStopped as error:
            self.num_failed += 1
            if self.num_failed >= MOST_FAILURES:
                raise
            row.events.append(Event(row.id, (), (), self.version, ended="failed", why=str(error)))
        else:
            self.num_failed = 0
            row.events.append(self._event(row, list(answer.tokens), list(answer.logprobs or ())))
        self.events.append(row.events[-1])

    def _event(self, row: Row, ids: list[int], logp: list[float]) -> Event:
        """The whole answer; what lies behind its end is cut off."""
        request = row.request
        size, stopped = self._until_stop(row, ids)
        full = len(row.tokens) + size >= row.full and not stopped
        ended: Ended = "length" if full else "stop"
        row.tokens += ids[:size]
        known = logp[:size] if request.temperature == 1 else []
        void = (0.0 if request.temperature == 0 else math.nan,) * size
        wanted = "logp_model" in request.want
        return Event(
            row.id, tuple(ids[:size]), tuple(known) or void, self.version,
            tuple(known) if wanted else (), ended=ended,
        )  # fmt: skip
