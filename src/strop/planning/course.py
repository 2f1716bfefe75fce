"""Simulates generating engines from event to event: when every row ends.

    a decode step of n rows with m tokens in their caches   a(n) + b n + c m  seconds
    k such steps, in which no row begins or ends            k (a(n) + b n + c m) + c n k (k - 1) / 2
    a prefill of t tokens                                   f t, and d once for all rows of a step
    an answer that begins                                   e

An event is the begin or the end of a row; between two events the seconds have this closed form. All
engines are computed at once, so a thousand engines take as long as one with as many rows.
"""

import heapq
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.floating]
ROUNDING = 1e-9  # tolerance, in decode steps


@dataclass(frozen=True)
class Weights:
    """Seconds in which a decode step reads the weights, or computes if that takes longer.

    dense: to read the weights that every step needs; experts: to read all experts; miss: the
    probability that a row does not need a given expert; compute: for each row. Used with assumed
    costs; a run measures `a` as a whole.
    """

    dense: float = 0.0
    experts: float = 0.0
    miss: float = 0.0
    compute: float = 0.0

    def seconds(self, rows: Ints) -> Floats:
        """The seconds of a decode step by its number of rows."""
        reading = self.dense + self.experts * (1 - self.miss**rows)
        return np.maximum(reading, self.compute * rows)


@dataclass(frozen=True)
class Speed:
    """Seconds that an engine takes.

    step: a, for a decode step; row: b, for each row in it; cached: c, for each token in the caches;
    read: f, for each prefilled token; begin: d, once for all rows of a step that prefill. answer:
    e, for the work on an answer besides all passes. weights: the part of a that depends on the
    number of rows.
    """

    step: float
    row: float
    cached: float
    read: float
    begin: float = 0.0
    answer: float = 0.0
    weights: Weights | None = None

    def of_rows(self, rows: Ints) -> Floats:
        """The seconds of a decode step with empty caches, by its number of rows."""
        linear: Floats = self.step + self.row * rows
        return linear if self.weights is None else linear + self.weights.seconds(rows)


class Course:
    """Rows in engines, from second 0 until the last one has ended.

    engine, left, held, read: for each row its engine, the tokens left to draw (at least 1), the
    tokens in its cache when it begins, and how many of these it prefills then. fresh: whether it
    has drawn no token before. Rows beyond `slots` of an engine wait, in order, until one ends.
    """

    def __init__(
        self, engine: Ints, left: Ints, held: Floats, read: Floats, fresh: NDArray[np.bool_],
        num_engines: int, slots: int, speed: Speed,
    ) -> None:  # fmt: skip
        self.engine, self.left, self.speed, self.num_engines = engine, left, speed, num_engines
        self.begins = begins(engine, left, slots)
        stops, count = self.begins + left, len(left)
        ticks = np.concatenate([stops, self.begins])
        kind = np.repeat([0, 1], count)  # at the same tick, ends of rows come before begins
        at = np.concatenate([engine, engine])
        # one sort key for engine, tick and kind together sorts many times faster than three keys
        key = (at * (int(ticks.max(initial=0)) + 1) + ticks) * 2 + kind
        order = np.argsort(key, kind="stable")
        self.at = at[order]
        self.ticks = ticks[order]
        self.rows = np.cumsum(np.repeat([-1, 1], count)[order])
        gap = np.diff(self.ticks, append=0) * (self.rows > 0)
        change = np.concatenate([-(held + left), held])[order]
        grown = np.concatenate([[0], self.rows * gap])[:-1]
        self.cached = np.maximum(np.cumsum(change + grown), 0.0)
        beside = np.concatenate([np.zeros(count), speed.read * read + speed.answer * fresh])
        self.reading = beside[order] + speed.begin * self._lets_in(order, read)
        before = np.concatenate([[0.0], np.cumsum(self.reading + self._seconds(gap))])
        self.first = np.searchsorted(self.at, np.arange(num_engines + 1))
        self.seconds = before[:-1] - before[self.first[self.at]]  # the time of each event
        self.ends = np.empty(count)  # of rows, in seconds
        ended = order < count
        self.ends[order[ended]] = self.seconds[ended]

    def _lets_in(self, order: Ints, read: Floats) -> NDArray[np.bool_]:
        """Marks events that are the first of their decode step at which a row begins to prefill."""
        found = np.append(np.zeros(len(read), np.bool_), read > 0)[order]
        place = np.flatnonzero(found)
        same = (np.diff(self.at[place]) == 0) & (np.diff(self.ticks[place]) == 0)
        found[place[1:][same]] = False
        return found

    def _seconds(self, k: Ints) -> Floats:
        """The seconds of k decode steps after each event."""
        n, m, speed = self.rows, self.cached, self.speed
        return k * speed.of_rows(n) + speed.cached * (k * m + n * k * (k - 1) / 2)

    def drawn(self, when: Floats) -> tuple[Ints, NDArray[np.bool_]]:
        """How many tokens each row has drawn at the second `when` of its engine, and whether it
        is running. An unfinished decode step does not count.
        """
        if not len(self.left):
            return self.left, np.empty(0, np.bool_)
        drawn, tick, _ = self.drawn_by(when)
        started = self.begins <= tick[self.engine]
        return drawn, started & (self.ends > when[self.engine])

    def drawn_by(self, when: Floats) -> tuple[Ints, Ints, Floats]:
        """How many tokens each row has drawn at the second `when` of its engine; for each engine
        the number of decode steps by then, and the second at which the last of them ended.
        """
        passed = self.seconds <= when[self.at]
        last = self.first[:-1] + np.bincount(self.at[passed], minlength=self.num_engines) - 1
        last = np.where(last < self.first[:-1], -1, last)  # an engine without rows
        into = np.maximum(when - self.seconds[last] - self.reading[last], 0.0)
        n, m = self.rows[last], self.cached[last]
        half = self.speed.cached * n / 2
        slope = self.speed.of_rows(n) + self.speed.cached * m - half
        k = np.floor(_root(half, slope, into) + ROUNDING)
        k = np.where(n > 0, k, 0)
        tick = self.ticks[last] + k.astype(np.int64)
        drawn = np.clip(tick[self.engine] - self.begins, 0, self.left)
        # rows that begin at one step are prefilled one after the other: it begins with the first
        same = np.append(False, (np.diff(self.at) == 0) & (np.diff(self.ticks) == 0))
        opens = np.maximum.accumulate(np.where(same, 0, np.arange(len(same))))
        gone = k * slope + k * k * half + self.seconds[last] + self.reading[last]
        return drawn, tick, np.where(k > 0, gone, self.seconds[opens[last]])


def begins(engine: Ints, left: Ints, slots: int) -> Ints:
    """The decode step of its engine before which each row begins."""
    found = np.zeros(len(left), np.int64)
    counts = np.bincount(engine)
    crowded = np.flatnonzero(counts > slots)
    if not len(crowded):
        return found
    rows = np.argsort(engine, kind="stable")
    stops = np.cumsum(counts)
    for each in crowded.tolist():
        own = rows[stops[each] - counts[each] : stops[each]]
        lengths = left[own].tolist()
        ends = lengths[:slots]
        heapq.heapify(ends)
        began = []
        for length in lengths[slots:]:
            began.append(ends[0])
            heapq.heapreplace(ends, ends[0] + length)
        found[own[slots:]] = began
    return found


def _root(half: Floats, slope: Floats, seconds: Floats) -> Floats:
    """Solves half k^2 + slope k = seconds for k; half is not negative."""
    root = np.sqrt(slope**2 + 4 * half * seconds)
    below = np.where(slope > 0, slope + root, 1.0)
    above = np.where(half > 0, 2 * half, 1.0)
    return np.where(slope > 0, 2 * seconds / below, (root - slope) / above)
