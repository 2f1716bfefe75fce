"""An engine without a model: next-token probabilities come from a function of the tokens so far."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from strop.engines.asynchronous import AsyncEngine, asynchronous, gather, run
from strop.engines.base import CAPABILITIES, Account, Answer, Ended, Engine, Event, Request, Source
from strop.engines.sampling import ENTROPY, LOGP_MODEL, TOP, draw, make_plan, uniforms
from strop.support.errors import UserError

Probabilities = Callable[[tuple[int, ...]], Sequence[float]]
Drawn = tuple[int, list[float], bytes]  # a token, its record and the set that it was drawn from


def sample(engine: Engine, requests: Sequence[Request]) -> list[Answer]:
    """What an engine answers to requests."""
    return asynchronous(engine).sample(requests)


async def streamed(book: AsyncEngine, request: Request, every: int) -> AsyncIterator[Answer]:
    """The answer so far after every so many new tokens, each piece drawn when it is asked for."""
    answer, left, whole = Answer(request, ()), request.max_tokens, True
    while whole and left:
        room = min(every, left)
        piece = await book.generate(answer.more(room, keep=True))
        whole, left = piece.ended == "length" and len(piece.ids) == room, left - room
        answer += piece
        yield answer


def in_pieces(
    engine: Engine,
    asked: Sequence[tuple[Request, int]],
    beside: Coroutine[Any, Any, list[Answer]] | None = None,
) -> list[Answer]:
    """Answers to requests, each in pieces of so many tokens that go on from one another, and those
    that a coroutine `beside` them gives.
    """
    book = asynchronous(engine)

    async def whole(request: Request, every: int) -> Answer:
        return [answer async for answer in streamed(book, request, every)][-1]

    async def both() -> list[Answer]:
        work = gather(whole(*each) for each in asked)
        pieces, others = (await work, []) if beside is None else await gather([work, beside])
        return [*pieces, *others]

    return run(book, both(), Account())


def joined(answer: Answer, name: str = "ids") -> list[Any]:
    """What the answer's events have of this, one after the other."""
    return [each for event in answer.events for each in getattr(event, name)]


class Driven:
    """An engine that a test hands requests to and steps by itself. `answers`: so far, by number."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.answers: dict[int, Answer] = {}
        self.open: set[int] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def submit(self, request: Request, source: Source = None) -> int:
        id = len(self.answers)
        self.engine.start(id, request, source)
        self.answers[id] = Answer(request, ())
        self.open.add(id)
        return id

    def step(self) -> list[Event]:
        """What came; what was broken off is begun again."""
        found = [event for event in self.engine.poll() if event.request in self.open]
        again = [event.request for event in found if event.ended == "broken"]
        found = [event if event.ended != "broken" else event._replace(ended="") for event in found]
        found = [event for event in found if event.ids or event.ended]
        for event in found:
            self._hear(event)
        for id in again:
            answer = self.answers[id]
            left = answer.request.max_tokens - len(answer.ids)
            self.engine.start(id, answer.more(left))
        return found

    def finish(self) -> dict[int, list[Event]]:
        """Step until nothing runs; what came of each."""
        heard: dict[int, list[Event]] = {}
        while self.open:
            for event in self.step():
                heard.setdefault(event.request, []).append(event)
        return heard

    def cancel(self, id: int) -> Answer:
        """What came of it by now."""
        for event in self.engine.cancel(id):
            self._hear(event)
        self.open.discard(id)
        return self.answers[id]

    def _hear(self, event: Event) -> None:
        answer = self.answers[event.request]
        self.answers[event.request] = Answer(answer.request, (*answer.events, event))
        if event.ended:
            self.open.discard(event.request)


def by_last_token(table: Mapping[int, Sequence[float]]) -> Probabilities:
    """A Markov chain: the probabilities depend on the last token alone."""
    return lambda tokens: table[tokens[-1]]


@dataclass
class _Row:
    request: Request
    new: list[int] = field(default_factory=list)
    ended: bool = False


class TableEngine(Engine):
    """Same contract and same draws as the local engine, one event a token.

    num_slots: at most so many requests run at once, the oldest first; None: all. text: token ids
    -> text, for stop strings. `num_steps` counts steps that drew tokens, `num_tokens` the draws.
    """

    def __init__(
        self,
        probabilities: Probabilities,
        *,
        capabilities: frozenset[str] = CAPABILITIES,
        num_slots: int | None = None,
        context_length: int = 1 << 20,
        text: Callable[[Sequence[int]], str] = lambda ids: "".join(map(chr, ids)),
    ) -> None:
        self.probabilities = probabilities
        self.capabilities = capabilities
        self.num_slots = num_slots
        self.context_length = context_length
        self.text = text
        self.version = 0
        self.rows: dict[int, _Row] = {}
        self.drawn: dict[int, Drawn] = {}
        self.num_steps = self.num_tokens = 0

    def start(self, id: int, request: Request, source: Source = None) -> None:
        if len(request.ids) >= self.context_length:
            raise UserError("the prompt does not fit the context")
        if source is not None:
            row = self.rows[source[0]]
            assert request.ids[: source[1]] == (*row.request.ids, *row.new)[: source[1]]
        self.rows[id] = _Row(request)

    def cancel(self, id: int) -> list[Event]:
        self.rows.pop(id, None)
        return []

    def poll(self, seconds: float | None = None) -> list[Event]:
        running = [(id, row) for id, row in self.rows.items() if not row.ended]
        self.num_steps += bool(running)
        running = running[: self.num_slots]
        self.drawn = dict(zip((id for id, _ in running), self._all_drawn(running), strict=True))
        events = [self._draw(id, row) for id, row in running]
        for event in events:
            kept = self.rows[event.request].request.keep and event.ended != "failed"
            if event.ended and not kept:
                del self.rows[event.request]
        return events

    def load_weights(self, state: Probabilities | None, version: int) -> None:
        self.probabilities = state or self.probabilities
        self.version = version

    def _all_drawn(self, running: Sequence[tuple[int, _Row]]) -> list[Drawn]:
        """A token of each, at once."""
        if not running:
            return []
        requests = [row.request for _, row in running]
        tokens = [(*row.request.ids, *row.new) for _, row in running]
        probabilities = torch.tensor(
            [self.probabilities(each) for each in tokens], dtype=torch.float64
        )
        seeds = np.array([request.seed & (2**64 - 1) for request in requests], np.uint64)
        uniform = uniforms(seeds, np.array([len(each) for each in tokens], np.uint64))
        plan = make_plan(requests, probabilities.shape[1], torch.device("cpu"))
        token, record, sets = draw(probabilities.log(), plan, torch.from_numpy(uniform))
        kept = [b""] * len(requests) if sets is None else sets
        return list(zip(token.tolist(), record.tolist(), kept, strict=True))

    def _draw(self, id: int, row: _Row) -> Event:
        request = row.request
        token, values, kept = self.drawn[id]
        if not math.isfinite(values[1]):
            return self._failed(id, row, "no token could be drawn")
        row.new.append(token)
        self.num_tokens += 1
        likeliest = values[TOP : TOP + 2 * request.num_top]
        top = dict(zip(map(int, likeliest[::2]), likeliest[1::2], strict=True))
        return Event(
            request=id,
            ids=(token,),
            logp=(values[1],),
            version=self.version,
            logp_model=(values[LOGP_MODEL],) if "logp_model" in request.want else (),
            entropy=(values[ENTROPY],) if "entropy" in request.want else (),
            top=(top,) if request.num_top else (),
            ended=self._ended(row),
            kept=(kept,) if "kept" in request.want else (),
        )

    def _failed(self, id: int, row: _Row, why: str) -> Event:
        row.ended = True
        return Event(id, (), (), self.version, ended="failed", why=why)

    def _ended(self, row: _Row) -> Ended:
        request = row.request
        drawn = [*request.ids[len(request.ids) - request.drawn :], *row.new]
        text = self.text(drawn) if request.stop_strings else ""
        if row.new[-1] in request.stop_ids or any(s in text for s in request.stop_strings):
            row.ended = True
            return "stop"
        room = self.context_length - len(request.ids)
        if len(row.new) >= min(request.max_tokens, room):
            row.ended = True
            return "length"
        return ""
