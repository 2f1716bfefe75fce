"""Asynchronous layouts whose draws begin and end one by one, as in `training/collect/in_flight.py`.

step s is drawn    when the weights are there that s - 1 - staleness steps have trained, and no
                   draw of an earlier one is left to begin
draws begin        in order, up to a step's rollouts (or those of in_flight steps), whenever no
                   more than FULL of these are under way
step s is graded   when its last answer has ended and s - 1 is graded; the others go on meanwhile
"""

import bisect
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from strop.planning.course import Course, Floats, Ints
from strop.planning.rounds import SEED, Round, assign_engines
from strop.planning.work import Costs, Layout, Work

FULL = 0.75  # of a step's rollouts; see training/collect/in_flight.py
NEVER = float("inf")


def one_by_one(layout: Layout) -> bool:
    """Whether a layout's draws begin so: where engines take new weights while rows are under way,
    and a step trains on the prompts that it drew.
    """
    return not layout.shared and layout.staleness > 0 and layout.renew and not layout.spare


class Going(NamedTuple):
    """A course of rows, counted from the first of all, when each engine's began, and their ends."""

    course: Course
    rows: Ints
    began: Floats
    ends: Floats


class Draws:
    """The engines of a layout, the rows that they have under way, and the draws left to begin.

    Rows lie in the order in which they began: those of a prompt, and of a step, are neighbours.
    """

    def __init__(self, costs: Costs, work: Work, layout: Layout) -> None:
        self.costs, self.work, self.layout = costs, work, layout
        self.rng = np.random.default_rng(SEED)
        self.now = 0.0
        self.since = np.zeros(layout.generate)  # seconds since each engine's last token
        self.drawn = 0  # steps
        self.version = 0  # weights that engines have: of so many steps
        self.size = 0  # rollouts of the last step that was drawn
        self.left: list[Ints] = []  # the lengths of its groups that have not begun
        self.begun: dict[int, int] = {}  # rows of each step, while it is not whole
        # of each row under way, and of those that have ended while their step has not
        self.engine, self.length, self.done = np.empty((3, 0), np.int64)
        self.prompt = np.empty(0)  # tokens of it that a row reads: its group shares it
        self.unread = np.empty(0)  # tokens that are read before it goes on
        self.forgotten = 0  # rows of steps that are graded
        self.course: Going | None = None  # until rows begin or weights come

    def collect(self, step: int, there: Sequence[float], drawn: Floats) -> Round:
        """All until step `step` is graded. there: when each step's weights are.

        drawn: takes when each engine would have ended, had it not waited in between.
        """
        begun = graded = ended = NEVER
        lengths = self.length[:0]
        busy = np.zeros(self.layout.generate)
        while True:
            self._take_weights(there)
            self._begin()
            whole = self.drawn > step and not (self.left and self.drawn == step + 1)
            own = slice(0, self.begun.get(step, 0))  # those of earlier steps are gone
            if graded == NEVER and whole and (self.done[own] == self.length[own]).all():
                ended, lengths = self.now, self.length[own]
                graded = ended + self.costs.reward * len(lengths) / self.layout.generate
            if self.now >= graded:
                break
            newer = there[self.version] if self.version < len(there) else NEVER
            until = min(newer, graded)
            if (self.done == self.length).all():
                self.now = until
                continue
            begun = min(begun, self.now)
            self._go_on(own if whole and graded == NEVER else None, until, busy)
        self._forget(self.begun.pop(step))
        begun = min(begun, ended)
        drawn[:] = begun + busy
        return Round(begun, max(ended, min(float(drawn.max()), graded)), graded, lengths)

    def _take_weights(self, there: Sequence[float]) -> None:
        """Caches of rows under way are read again, once for all weights that have come."""
        newest = bisect.bisect_right(there, self.now)
        if newest > self.version:
            self.version = newest
            self.unread = self.prompt + self.done
            self.course = None

    def _begin(self) -> None:
        """Begin the draws for which there is room, of this step and of the next."""
        running = self._running()
        while running <= FULL * self.most:
            if not self.left:
                if self.version < self.drawn - self.layout.staleness:
                    return
                chosen = self.rng.integers(len(self.work.groups), size=self.work.num_groups)
                self.left = [self.work.groups[index] for index in chosen]
                self.size = sum(map(len, self.left))
                self.drawn += 1
            count = 0
            for group in self.left:
                if running and running + len(group) > self.most:
                    break
                running, count = running + len(group), count + 1
            if count:
                self._add(self.left[:count])
            self.left = self.left[count:]
            if self.left:
                return

    def _add(self, groups: list[Ints]) -> None:
        sizes = np.array([len(group) for group in groups])
        length, prompt = np.concatenate(groups), np.repeat(self.work.prompt / sizes, sizes)
        load = np.bincount(self.engine[self.done < self.length], minlength=self.layout.generate)
        step = self.drawn - 1
        self.begun[step] = self.begun.get(step, 0) + len(length)
        self.engine = np.append(self.engine, assign_engines(load, len(length)))
        self.length = np.append(self.length, length)
        self.done = np.append(self.done, np.zeros(len(length), np.int64))
        self.prompt, self.unread = (np.append(x, prompt) for x in (self.prompt, self.unread))
        self.course = None

    def _go_on(self, whole: slice | None, until: float, busy: Floats) -> None:
        """Until a second at most; draws can begin, or the rows of `whole` have ended, before.

        busy: takes what engines work.
        """
        going = self.course = self.course or self._goes_on()
        course, began = going.course, going.began
        gone = int(np.searchsorted(going.rows, self.forgotten))  # rows that are not there any more
        open_ = going.rows[gone:] - self.forgotten
        ended, engine = going.ends[gone:], course.engine[gone:]
        ends = np.full(len(self.length), self.now)
        ends[open_] = ended
        stop = min(until, self._room(ends))
        if whole is not None:
            stop = min(stop, float(ends[whole].max()))
        new, tick, seconds = course.drawn_by(stop - began)
        drawn = np.where(ended <= stop, course.left[gone:], new[gone:])
        self.done[open_] = self.length[open_] - course.left[gone:] + drawn
        self.unread[open_[course.begins[gone:] < tick[engine]]] = 0.0
        last = np.full(self.layout.generate, self.now)
        np.maximum.at(last, engine, ended)
        busy += np.minimum(last, stop) - self.now
        self.since = np.where(last <= stop, 0.0, stop - began - seconds)
        self.now = stop

    def _goes_on(self) -> Going:
        """The course of the rows under way from now on."""
        open_ = np.flatnonzero(self.done < self.length)
        done, engine = self.done[open_], self.engine[open_]
        course = Course(
            engine, self.length[open_] - done, self.work.prompt + done, self.unread[open_],
            done == 0, self.layout.generate, self.work.slots, self.costs.speed,
        )  # fmt: skip
        began = self.now - self.since
        return Going(course, open_ + self.forgotten, began, began[engine] + course.ends)

    def _room(self, ends: Floats) -> float:
        """When so many rollouts have ended that draws may begin; never, if none wait for that."""
        last = ends[self.done < self.length]
        most = FULL * self.most
        if len(last) <= most and not self.left:
            return NEVER
        # in order: as many are left behind it; the first if the next draw does not fit beside all
        place = max(math.ceil(len(last) - 1 - most), 0)
        return float(np.partition(last, place)[place])

    @property
    def most(self) -> float:
        """Rollouts that may be under way."""
        return self.size * self.layout.in_flight

    def _running(self) -> int:
        """Rollouts that have not ended."""
        return int((self.done < self.length).sum())

    def _forget(self, count: int) -> None:
        """The first rows."""
        self.forgotten += count
        self.engine, self.length, self.done = (
            x[count:] for x in (self.engine, self.length, self.done)
        )
        self.prompt, self.unread = self.prompt[count:], self.unread[count:]
