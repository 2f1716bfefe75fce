"""The engines of a fleet as Ray actors: Ray starts them, starts them anew, and carries weights."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from strop.errors import RunStopped, UserError
from strop.rollout.engines.fleet import Back, Facts, Lost, News, Order
from strop.training.cluster.broadcast import Broadcast
from strop.training.cluster.connect import BEGIN_SECONDS, LOOK_SECONDS, connect, first_line
from strop.training.cluster.engines import begun_or_new
from strop.training.cluster.member import STAGED, packed
from strop.training.config import RunConfig

MOST_LOSSES = 3  # of one engine in a row, without a turn between them
TURNS = 2  # that an engine is asked for at once, so that it works while its last answer is read


@dataclass(eq=False)
class Seat:
    """An engine's actor. turns, opening: what it was asked and has not answered, in this order.

    since: when it began with the first of them, as far as can be seen from here.
    """

    actor: Any
    opening: Any = None
    turns: list[Any] = field(default_factory=list)
    since: float = 0.0
    version: int = -1  # of the weights that it was given
    staged: int = -1  # of those that were broadcast to it
    losses: int = 0
    outbox: list[Order] = field(default_factory=list)


class RayCrew:
    """Speaks with the actors; see strop.rollout.engines.fleet.Crew.

    An actor that dies is begun anew by Ray, on whatever machine has room. One that gives no answer
    within `ray.timeout_seconds` is ended first.
    """

    def __init__(self, config: RunConfig) -> None:
        self.ray = connect(config.ray)
        self.limit = config.ray.timeout_seconds
        self.weights: Any = None  # in the object store
        self.kept: Mapping[str, Any] = {}  # what was broadcast, for engines that lack it
        self.version = -1
        self.name = uuid.uuid4().hex  # engines heed who has opened them last
        self.engines = begun_or_new(self.ray, config)
        self.broadcast: Broadcast | None = None
        if config.ray.weights == "broadcast":
            self.broadcast = Broadcast(self.ray, self.name)
        self.seats = [Seat(actor) for actor in self.engines.actors]

    def facts(self) -> list[Facts]:
        """Of every engine, once it can work. Raises UserError."""
        for seat in self.seats:
            self._open(seat)
        found = []
        for number, seat in enumerate(self.seats):
            try:
                found.append(self._got(seat.opening))
            except self.ray.exceptions.RayError as error:
                raise UserError(f"engine {number} does not start: {first_line(error)}") from error
            seat.opening = None
        return found

    def publish(self, weights: Mapping[str, Any], version: int) -> None:
        """Put weights into the object store, from where every machine takes them once; or
        broadcast them to the engines that are there.
        """
        self.version = version
        if self.broadcast is None:
            self.weights = self.ray.put(packed(weights))
            return
        self.weights = None
        self.kept = {name: value.detach().to("cpu", copy=True) for name, value in weights.items()}
        there = [seat for seat in self.seats if seat.opening is None]
        have = self.broadcast.send([seat.actor for seat in there], weights, version)
        for seat, has in zip(there, have, strict=True):
            seat.staged = version if has else -1

    def exchange(
        self, orders: Mapping[int, list[Order]], busy: set[int], wait: bool, behind: set[int]
    ) -> list[tuple[int, News]]:
        """Let engines work, and tell what came; see Crew."""
        for number, own in orders.items():
            self.seats[number].outbox += own
        for number, seat in enumerate(self.seats):
            renew = seat.version != self.version and number not in behind
            wanted = seat.outbox or renew or number in busy
            if wanted and len(seat.turns) < TURNS and seat.opening is None:
                self._start(seat, renew)
        news: list[tuple[int, News]] = []
        while wait and not news:
            asked = {
                ref: n for n, seat in enumerate(self.seats)
                for ref in (seat.turns or [seat.opening])[:1] if ref is not None
            }  # fmt: skip
            if not asked:
                break
            ready, _ = self.ray.wait(list(asked), num_returns=1, timeout=LOOK_SECONDS)
            if ready:
                ready, _ = self.ray.wait(list(asked), num_returns=len(asked), timeout=0)
            for ref in sorted(ready, key=lambda ref: asked[ref]):
                news += self._answered(asked[ref], ref)
            news += self._overdue()
        return news

    def close(self) -> None:
        """End the engines that it has begun."""
        self.engines.end()

    # ---- from here on: how

    def _open(self, seat: Seat) -> None:
        """Ask it to begin, as soon as its process is there."""
        seat.opening = seat.actor.open.options(max_task_retries=-1).remote(self.name)
        seat.since, seat.version, seat.outbox = time.monotonic(), -1, []
        seat.staged = -1
        if self.broadcast is not None:
            self.broadcast.group = None

    def _start(self, seat: Seat, renew: bool) -> None:
        weights: Any = None
        if renew:
            weights = STAGED if seat.staged == self.version else self._stored()
        if not seat.turns:
            seat.since = time.monotonic()
        seat.turns.append(seat.actor.turn.remote(self.name, seat.outbox, weights, self.version))
        seat.outbox = []
        if renew:
            seat.version = self.version

    def _stored(self) -> Any:
        """The newest weights in the object store."""
        if self.weights is None and self.kept:
            self.weights = self.ray.put(packed(self.kept))
        return self.weights

    def _got(self, ref: Any) -> Any:
        """What an engine answers. Raises what it raised, and RayError where it is gone."""
        try:
            return self.ray.get(ref)
        except self.ray.exceptions.RayTaskError as error:
            raise error.cause from error

    def _answered(self, number: int, ref: Any) -> list[tuple[int, News]]:
        seat = self.seats[number]
        try:
            answer = self._got(ref)
        except self.ray.exceptions.RayError as error:
            return self._lost(number, first_line(error))
        if not seat.turns:
            seat.opening = None
            return [(number, Back())]
        if answer is None:
            return self._lost(number, "it was begun anew")
        del seat.turns[0]
        seat.since, seat.losses = time.monotonic(), 0
        return [(number, answer)]

    def _lost(self, number: int, why: str) -> list[tuple[int, News]]:
        seat = self.seats[number]
        seat.losses += 1
        if seat.losses >= MOST_LOSSES:
            raise RunStopped(f"engine {number} was lost {seat.losses} times in a row ({why})")
        had = bool(seat.turns)
        seat.turns = []  # what was asked for besides is of a holder that the new process has not
        self._open(seat)
        return [(number, Lost(why))] if had else []

    def _overdue(self) -> list[tuple[int, News]]:
        """End engines that give no answer. Raises RunStopped where none is left for too long."""
        now, news = time.monotonic(), list[tuple[int, News]]()
        for number, seat in enumerate(self.seats):
            if seat.turns and now - seat.since > self.limit:
                self.ray.kill(seat.actor, no_restart=False)
                news += self._lost(number, f"no answer for {self.limit:g} s")
        waits = [now - seat.since for seat in self.seats if seat.opening is not None]
        limit = max(self.limit, BEGIN_SECONDS)
        if len(waits) == len(self.seats) and min(waits) > limit:
            raise RunStopped(
                f"no engine is left, and Ray has begun none within {limit:g} s: is there room on a "
                "machine that lives?"
            )
        return news
