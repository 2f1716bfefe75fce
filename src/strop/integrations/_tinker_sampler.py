"""Samples with a server of Tinker's API, and reports the server's errors."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from strop.engines.base import Ended, Event, Request, Source, taken_out
from strop.engines.completions import MOST_FAILURES, CallEngine
from strop.engines.sampling import seed_behind
from strop.support.errors import RunStopped, UserError


@contextmanager
def translated_errors(url: str, kind: type[Exception] = RunStopped) -> Iterator[None]:
    """A context in which errors of the client or the server are raised as errors of this kind."""
    import tinker

    try:
        yield
    except (UserError, RunStopped):
        raise
    except (tinker.AuthenticationError, tinker.PermissionDeniedError) as error:
        raise kind(f"the server at {url} refuses the key: {first_line(error)}") from error
    except Exception as error:  # the client's assertions fail with servers of other versions
        raise kind(f"the server at {url}: {first_line(error)}") from error


def first_line(error: Exception) -> str:
    """The first line of an error, with its type if the error is not the client's own."""
    line = (str(error).strip().splitlines() or [""])[0]
    plain = isinstance(error, (OSError, ValueError)) or type(error).__module__ != "builtins"
    return line if plain and line else f"{type(error).__name__}: {line}".rstrip(": ")


class TinkerEngine(CallEngine):
    """Samples with the server's sampler of the current weights, with one call for each request.

    A request that has started finishes with the weights that it started with. A failed answer ends
    its request as "failed"; after MOST_FAILURES in a row, `poll` raises RunStopped. server: a
    `Server` of `integrations.tinker`.
    """

    capabilities = frozenset({"weights", "logp_model"})
    renews_alone = True

    def __init__(self, server: Any, tokenizer: Any, context_length: int) -> None:
        super().__init__(context_length)
        self.decode = tokenizer.decode
        self.server = server
        self.sampler: Any = None  # created at the first request

    def start(self, id: int, request: Request, source: Source = None) -> None:
        """Start the call for a request. Raises UserError for one that does not fit."""
        request.check_fits(self.context_length)
        self._ask(id, request)
        self.pending[id] = request

    def cancel(self, id: int) -> list[Event]:
        """Cancel a request; its answer is discarded when it arrives."""
        self.pending.pop(id, None)
        return taken_out(self.events, id)

    def load_weights(self, state: Any, version: int) -> None:
        """Sample with the server's current weights from the next request on."""
        self.sampler, self.version = None, version

    def close(self) -> None:
        """End the sessions."""
        self.server.settings.close()

    # ---- from here on: how

    def _ask(self, id: int, request: Request) -> None:
        import tinker

        if self.sampler is None:
            self.sampler = self.server.sampler()
        params = tinker.SamplingParams(
            max_tokens=request.room(self.context_length), temperature=request.temperature,
            seed=seed_behind(request, bits=31),
            stop=list(request.stop_strings or request.stop_ids),
        )  # fmt: skip
        with translated_errors(self.server.url):
            future = self.sampler.sample(tinker.ModelInput.from_ints(list(request.ids)), 1, params)
        version = self.version
        future.future().add_done_callback(lambda done: self.answers.put((id, (version, done))))

    def _take(self, id: int, answered: tuple[int, Any]) -> None:
        """Report the answer to a request. Raises RunStopped when the server answers none."""
        request = self.pending.pop(id, None)
        if request is None:  # cancelled meanwhile
            return
        version, done = answered
        try:
            with translated_errors(self.server.url):
                answer = done.result().sequences[0]
        except RunStopped as error:
            self.num_failed += 1
            if self.num_failed >= MOST_FAILURES:
                raise
            self.events.append(Event(id, (), (), version, ended="failed", why=str(error)))
            return
        self.num_failed = 0
        ids, logp = tuple(answer.tokens), tuple(answer.logprobs or ())
        self.events.append(self._event(id, request, version, ids, logp))

    def _event(
        self, id: int, request: Request, version: int, ids: tuple[int, ...], logp: tuple[float, ...]
    ) -> Event:
        """The event with the whole answer, without tokens after its end."""
        size, stopped = request.until_stop(request.ids, ids, self.decode)
        full = size >= request.room(self.context_length) and not stopped
        ended: Ended = "length" if full else "stop"
        known = logp[:size] if request.temperature == 1 else ()
        void = (0.0 if request.temperature == 0 else math.nan,) * size
        wanted = "logp_model" in request.want
        return Event(id, ids[:size], known or void, version, known if wanted else (), ended=ended)
