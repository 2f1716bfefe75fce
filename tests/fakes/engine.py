"""An engine without a model: next-token probabilities come from a function of the tokens so far."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from strop.engines.asynchronous import asynchronous
from strop.engines.base import (
    CAPABILITIES,
    Answer,
    Ended,
    Engine,
    Event,
    Request,
    Source,
)
from strop.engines.sampling import ENTROPY, LOGP_MODEL, TOP, draw, make_plan, uniforms
from strop.support.errors import UserError

Probabilities = Callable[[tuple[int, ...]], Sequence[float]]


def sample(engine: Engine, requests: Sequence[Request]) -> list[Answer]:
    """What an engine answers to requests."""
    return asynchronous(engine).sample(requests)


def in_pieces(engine: Engine, asked: Sequence[tuple[Request, int]]) -> list[Answer]:
    """Answers to requests, each in pieces of so many tokens that go on from one another."""
    answers = [Answer(request, ()) for request, _ in asked]
    going: dict[int, int] = {}

    def go_on(place: int, before: int | None = None) -> None:
        request, every = asked[place]
        left = request.max_tokens - len(answers[place].ids)
        more = answers[place].more(min(every, left), keep=True)
        source = None if before is None else (before, len(more.ids))
        going[engine.submit(more, source)] = place

    for place in range(len(asked)):
        go_on(place)
    while going:
        for event in engine.step():
            if event.ended and event.request in going:
                place = going.pop(event.request)
                answers[place] += engine.abort(event.request)
                if event.ended == "length" and len(answers[place].ids) < asked[place][0].max_tokens:
                    go_on(place, event.request)
    return answers


def by_last_token(table: Mapping[int, Sequence[float]]) -> Probabilities:
    """A Markov chain: the probabilities depend on the last token alone."""
    return lambda tokens: table[tokens[-1]]


@dataclass
class _Row:
    request: Request
    new: list[int] = field(default_factory=list)
    ended: bool = False
    events: list[Event] = field(default_factory=list)


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
        self.next_id = self.num_steps = self.num_tokens = 0

    def submit(self, request: Request, source: Source = None) -> int:
        if len(request.ids) >= self.context_length:
            raise UserError("the prompt does not fit the context")
        if source is not None:
            row = self._row(source[0])
            assert request.ids[: source[1]] == (*row.request.ids, *row.new)[: source[1]]
        self.rows[self.next_id] = _Row(request)
        self.next_id += 1
        return self.next_id - 1

    def abort(self, id: int) -> Answer:
        row = self._row(id)
        if not row.ended:
            row.ended = True
            row.events.append(Event(id, (), (), self.version, ended="aborted"))
        return Answer(row.request, tuple(row.events))

    def release(self, id: int) -> None:
        self.abort(id)
        del self.rows[id]

    def busy(self) -> bool:
        return any(not row.ended for row in self.rows.values())

    def step(self) -> list[Event]:
        events = []
        running = [(id, row) for id, row in self.rows.items() if not row.ended]
        self.num_steps += bool(running)
        for id, row in running[: self.num_slots]:
            events.append(self._draw(id, row))
            row.events.append(events[-1])
        return events

    def load_weights(self, state: Probabilities | None, version: int) -> None:
        self.probabilities = state or self.probabilities
        self.version = version

    def _row(self, id: int) -> _Row:
        if id not in self.rows:
            raise UserError(f"the engine has no request {id}")
        return self.rows[id]

    def _draw(self, id: int, row: _Row) -> Event:
        request, tokens = row.request, (*row.request.ids, *row.new)
        probabilities = torch.tensor([self.probabilities(tokens)], dtype=torch.float64)
        seed = np.array([request.seed & (2**64 - 1)], np.uint64)
        uniform = uniforms(seed, np.array([len(tokens)], np.uint64))
        plan = make_plan([request], probabilities.shape[1], torch.device("cpu"))
        token, record, sets = draw(probabilities.log(), plan, torch.from_numpy(uniform))
        values = record[0].tolist()
        if not math.isfinite(values[1]):
            return self._failed(id, row, "no token could be drawn")
        row.new.append(int(token))
        self.num_tokens += 1
        top = dict(zip(map(int, values[TOP::2]), values[TOP + 1 :: 2], strict=True))
        return Event(
            request=id,
            ids=(int(token),),
            logp=(values[1],),
            version=self.version,
            logp_model=(values[LOGP_MODEL],) if "logp_model" in request.want else (),
            entropy=(values[ENTROPY],) if "entropy" in request.want else (),
            top=(top,) if request.num_top else (),
            ended=self._ended(row),
            kept=(b"" if sets is None else sets[0],) if "kept" in request.want else (),
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
