"""Simulates rounds of answers, each of which begins when the one before has been graded.

    round s begins   when the answers of round s - 1 are graded and the weights trained by
                     s - 1 - staleness steps are available on all engines

Only weights of earlier steps can arrive before a round ends.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from strop.planning.course import Course, Floats, Ints
from strop.planning.work import Costs, Layout, Work

SEED = 0


class Round(NamedTuple):
    """A step's answers: when they were begun, drawn and graded, and their lengths."""

    started: float
    ended: float
    graded: float
    lengths: Ints


class Rounds:
    """The engines of a layout, which start a step's draws together, and the running rows."""

    def __init__(self, costs: Costs, work: Work, layout: Layout) -> None:
        self.costs, self.work, self.layout = costs, work, layout
        self.rng = np.random.default_rng(SEED)
        self.graded = 0.0  # when the answers of the previous round are graded
        self.waiting = 0  # number of groups that have not been trained on
        self.group, self.engine = np.empty(0, np.int64), np.empty(0, np.int64)
        self.length, self.done = np.empty(0, np.int64), np.empty(0, np.int64)
        self.prompt = np.empty(0)  # prompt tokens that a row prefills: its group shares them

    def collect(self, step: int, there: Sequence[float], drawn: Floats) -> Round:
        """The next round. there: when each step's weights are available. drawn: is set to each
        engine's end.
        """
        needed = step - self.layout.staleness
        begin = max(self.graded, there[needed - 1] if needed > 0 else 0.0)
        renew = there[max(needed, 0) :] if self.layout.renew else ()
        ended, lengths = self._round(begin, [when for when in renew if when > begin], drawn)
        self.graded = ended + self.costs.reward * len(lengths) / self.layout.generate
        return Round(begin, ended, self.graded, lengths)

    def _round(self, begin: float, late: list[float], drawn: Floats) -> tuple[float, Ints]:
        """Draw until enough groups have ended; return when, and the lengths of their answers.

        late: when newer weights arrive. drawn: is set to the end of each engine's rows.
        """
        first = 0 if self.waiting else round(self.layout.spare * self.work.num_groups)
        self._add(self.work.num_groups + first)
        open_ = np.flatnonzero(self.done < self.length)
        done, prompt = self.done[open_], self.prompt[open_]
        course = Course(
            self.engine[open_], self.length[open_] - done, self.work.prompt + done, prompt + done,
            done == 0, self.layout.generate, self.work.slots, self.costs.speed,
        )  # fmt: skip
        shift = np.zeros(self.layout.generate)
        ends = np.full(len(self.group), begin)
        ends[open_] = begin + course.ends
        for when in late:
            if when >= self._last(ends)[0]:
                break
            own = when - begin - shift
            new, running = course.drawn(own)
            size = (prompt + done + new) * running
            again = np.bincount(course.engine, size, self.layout.generate)
            pause = self.costs.speed.read * again + self.costs.speed.begin * (again > 0)
            ends[open_] += np.where(course.ends > own[course.engine], pause[course.engine], 0.0)
            shift += pause
        stop, taken = self._last(ends)
        drawn[:] = begin
        np.maximum.at(drawn, course.engine, np.minimum(ends[open_], stop))
        new, _ = course.drawn(stop - begin - shift)
        self.done[open_] += np.where(ends[open_] <= stop, course.left, new)
        return stop, self._take(taken)

    def _last(self, ends: Floats) -> tuple[float, Ints]:
        """When the last needed group ends, and which groups have ended by then."""
        group_ends = np.zeros(self.waiting)
        np.maximum.at(group_ends, self.group, ends)
        order = np.argsort(group_ends, kind="stable")[: self.work.num_groups]
        return float(group_ends[order[-1]]), order

    def _add(self, count: int) -> None:
        """Start `count` more groups; each row goes to the engine with the fewest rows."""
        chosen = self.rng.integers(len(self.work.groups), size=count)
        groups = [self.work.groups[index] for index in chosen]
        sizes = np.array([len(group) for group in groups])
        length = np.concatenate(groups)
        load = np.bincount(self.engine[self.done < self.length], minlength=self.layout.generate)
        self.group = np.append(self.group, np.repeat(np.arange(count) + self.waiting, sizes))
        self.engine = np.append(self.engine, assign_engines(load, len(length)))
        self.length = np.append(self.length, length)
        self.done = np.append(self.done, np.zeros(len(length), np.int64))
        self.prompt = np.append(self.prompt, np.repeat(self.work.prompt / sizes, sizes))
        self.waiting += count

    def _take(self, taken: Ints) -> Ints:
        """Remove these groups; return the lengths of their answers."""
        gone = np.zeros(self.waiting, np.bool_)
        gone[taken] = True
        rows, left = gone[self.group], np.cumsum(~gone) - 1
        found = self.length[rows]
        self.group = left[self.group[~rows]]
        self.engine, self.length = self.engine[~rows], self.length[~rows]
        self.done, self.prompt = self.done[~rows], self.prompt[~rows]
        self.waiting -= len(taken)
        return found


def assign_engines(load: Ints, count: int) -> Ints:
    """The engines of `count` more rows, each assigned to the engine with the fewest so far."""
    level = -(-(int(load.sum()) + count) // len(load))
    room = np.maximum(level - load, 0)
    engine = np.repeat(np.arange(len(load)), room)
    place = np.arange(len(engine)) - np.repeat(np.cumsum(room) - room, room) + load[engine]
    order = np.argsort(place, kind="stable")
    return engine[order[:count]]
