"""Simulates asynchronous layouts whose draws start and end singly: `training/collect/in_flight.py`.

step s is drawn    when the weights trained by s - 1 - staleness steps are available, and all
                   draws of earlier steps have started
draws start        in order, up to the rollouts of one step (or of in_flight steps), whenever at
                   most the share FULL of these is running
step s is graded   when its last answer has ended and s - 1 is graded; other draws continue
"""

import bisect
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from strop.planning.course import Course, Floats, Ints
from strop.planning.rounds import SEED, Round, assign_engines
from strop.planning.work import Costs, Layout, Work

FULL = 0.75  # share of a step's rollouts; see training/collect/in_flight.py
NEVER = float("inf")


def one_by_one(layout: Layout) -> bool:
    """Whether a layout's draws start one by one: its engines take new weights while rows are
    running, and a step trains on the prompts that it drew.
    """
    return not layout.shared and layout.staleness > 0 and layout.renew and not layout.spare


class Going(NamedTuple):
    """A course, its rows (counted over the whole run), its engines' starts, and its rows' ends."""

    course: Course
    rows: Ints
    began: Floats
    ends: Floats


class Draws:
    """The engines of a layout, their running rows, and the draws left to start.

    Rows are in the order in which they began: those of a prompt, and of a step, are adjacent.
    """

    def __init__(self, costs: Costs, work: Work, layout: Layout) -> None:
        self.costs, self.work, self.layout = costs, work, layout
        self.rng = np.random.default_rng(SEED)
        self.now = 0.0
        self.since = np.zeros(layout.generate)  # seconds since each engine's last token
        self.drawn = 0  # number of steps drawn so far
        self.version = 0  # number of steps that trained the engines' weights
        self.size = 0  # rollouts of the last step that was drawn
        self.left: list[Ints] = []  # the lengths of its groups that have not started
        self.started: dict[int, int] = {}  # number of started rows of each step not graded yet
        # for each running row, and each ended row whose step has not been graded
        self.engine, self.length, self.done = np.empty((3, 0), np.int64)
        self.prompt = np.empty(0)  # prompt tokens that a row prefills: its group shares them
        self.unread = np.empty(0)  # tokens to prefill before the row continues
        self.forgotten = 0  # number of rows of graded steps, which are removed
        self.course: Going | None = None  # valid until rows begin or weights arrive

    def collect(self, step: int, there: Sequence[float], drawn: Floats) -> Round:
        """Simulate until step `step` is graded. there: when each step's weights are available.

        drawn: is set to when each engine would have ended, had it not waited in between.
        """
        started = graded = ended = NEVER
        lengths = self.length[:0]
        busy = np.zeros(self.layout.generate)
        while True:
            self._take_weights(there)
            self._begin()
            whole = self.drawn > step and not (self.left and self.drawn == step + 1)
            own = slice(0, self.started.get(step, 0))  # rows of earlier steps are removed
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
            started = min(started, self.now)
            self._go_on(own if whole and graded == NEVER else None, until, busy)
        self._forget(self.started.pop(step))
        started = min(started, ended)
        drawn[:] = started + busy
        return Round(started, max(ended, min(float(drawn.max()), graded)), graded, lengths)

    def _take_weights(self, there: Sequence[float]) -> None:
        """Load the newest weights; the caches of running rows are then prefilled again, once."""
        newest = bisect.bisect_right(there, self.now)
        if newest > self.version:
            self.version = newest
            self.unread = self.prompt + self.done
            self.course = None

    def _begin(self) -> None:
        """Start the draws for which there is room, of this step and of the next."""
        running = int((self.done < self.length).sum())
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
        self.started[step] = self.started.get(step, 0) + len(length)
        self.engine = np.append(self.engine, assign_engines(load, len(length)))
        self.length = np.append(self.length, length)
        self.done = np.append(self.done, np.zeros(len(length), np.int64))
        self.prompt, self.unread = (np.append(x, prompt) for x in (self.prompt, self.unread))
        self.course = None

    def _go_on(self, whole: slice | None, until: float, busy: Floats) -> None:
        """Advance to the second `until`, or earlier to when draws can start or the rows of `whole`
        have ended.

        busy: the engines' working seconds are added to it.
        """
        going = self.course = self.course or self._goes_on()
        course, began = going.course, going.began
        gone = int(np.searchsorted(going.rows, self.forgotten))  # number of removed rows
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
        """The course of the running rows from now on."""
        open_ = np.flatnonzero(self.done < self.length)
        done, engine = self.done[open_], self.engine[open_]
        course = Course(
            engine, self.length[open_] - done, self.work.prompt + done, self.unread[open_],
            done == 0, self.layout.generate, self.work.slots, self.costs.speed,
        )  # fmt: skip
        began = self.now - self.since
        return Going(course, open_ + self.forgotten, began, began[engine] + course.ends)

    def _room(self, ends: Floats) -> float:
        """When enough rollouts have ended for draws to start; NEVER, if no draw waits for that."""
        last = ends[self.done < self.length]
        most = FULL * self.most
        if len(last) <= most and not self.left:
            return NEVER
        # by end: `most` are left after it; it is the first end if the next draw has no room now
        place = max(math.ceil(len(last) - 1 - most), 0)
        return float(np.partition(last, place)[place])

    @property
    def most(self) -> float:
        """The maximum number of running rollouts."""
        return self.size * self.layout.in_flight

    def _forget(self, count: int) -> None:
        """Remove the first `count` rows."""
        self.forgotten += count
        self.engine, self.length, self.done = (
            x[count:] for x in (self.engine, self.length, self.done)
        )
        self.prompt, self.unread = self.prompt[count:], self.unread[count:]
