"""A run in a layout: who generates, who trains, when each begins and ends, step by step.

    round s begins   when the answers of round s - 1 are graded and, on all engines, the weights
                     are there that s - 1 - staleness steps have trained
    step s begins    when round s is graded and step s - 1 is trained

A round of which later weights are known arrives at its end only through earlier steps, so one pass
over the steps visits every event in its order.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from strop.planning.course import Course, Floats, Ints, Speed

SEED = 0
STEPS = 20  # that are measured
SETTLING = 10  # more steps until as many long answers are under way as will be


@dataclass(frozen=True)
class Costs:
    """Seconds that one worker takes.

    speed: of an engine. reward: of a rollout, beside drawing it. token: training, of a token.
    rest: what a step costs however many share it. exchange: until all training workers have a
    step's gradients, where there are several, and until other workers have its weights.
    """

    speed: Speed
    reward: float
    token: float
    rest: float
    exchange: float = 0.0


@dataclass(frozen=True)
class Work:
    """What a step draws and trains on.

    groups: lengths of the answers to a prompt, of as many prompts as are known; steps draw among
    them. num_groups: prompts of a step. prompt: tokens of one. kept: share of the answers that is
    trained on. slots: rows that an engine has room for.
    """

    groups: tuple[Ints, ...]
    num_groups: int
    prompt: float
    kept: float
    slots: int


@dataclass(frozen=True)
class Layout:
    """Which workers do what.

    generate, train: how many. shared: the same ones, taking turns. staleness: steps by which the
    weights that begin a round may be behind. spare: prompts under way beyond those of a step, as a
    share of them; a round then ends with its last needed prompt, and the others go on in the next.
    renew: new weights are taken while rows are under way, whose caches are then read again.
    """

    generate: int
    train: int
    shared: bool = True
    staleness: int = 0
    spare: float = 0.0
    renew: bool = True

    @property
    def name(self) -> str:
        """As in the table."""
        kind = "synchronous" if self.shared else f"async {self.staleness}"
        if not self.spare:
            return kind
        return "partial" if self.shared else f"{kind}, partial"

    @property
    def workers(self) -> int:
        """All of them."""
        return self.generate if self.shared else self.generate + self.train


@dataclass(frozen=True, eq=False)
class Outcome:
    """When everything was: a line a step, in seconds; `drawn` has a column an engine.

    begun, drawn, ended, graded: a round's begin, the end of each engine's rows, of the round and
    of its rewards. trains, trained: a step's begin and end; unshared: of these the seconds for
    which all but one training worker, on average, wait for the longest answer. window: the first
    and the last step that count.
    """

    layout: Layout
    window: tuple[int, int]
    begun: Floats
    drawn: Floats
    ended: Floats
    graded: Floats
    trains: Floats
    trained: Floats
    unshared: Floats
    tokens: Floats

    @property
    def span(self) -> tuple[float, float]:
        """The seconds that count."""
        first, last = self.window
        return float(self.trained[first]), float(self.trained[last])

    @property
    def step_seconds(self) -> float:
        """Mean of a step."""
        low, high = self.span
        return (high - low) / (self.window[1] - self.window[0])

    @property
    def tokens_per_second(self) -> float:
        """Policy tokens that are trained on."""
        first, last = self.window
        return float(self.tokens[first + 1 : last + 1].mean()) / self.step_seconds

    @property
    def waits(self) -> tuple[float, float]:
        """Seconds a step for which the engines wait for weights, and the trainers for answers."""
        low, high = self.window
        engines = self.begun[low + 1 : high + 1] - self.graded[low:high]
        return float(engines.mean()), float((self.trains[1:] - self.trained[:-1])[low:high].mean())

    @cached_property
    def shares(self) -> dict[str, float]:
        """Of the time of all workers, and idle ones of each kind's own."""
        low, high = self.span
        whole = high - low

        def inside(begin: Floats, end: Floats) -> float:
            return float((np.clip(end, low, high) - np.clip(begin, low, high)).sum()) / whole

        layout = self.layout
        generating = inside(self.begun[:, None], self.drawn) / layout.generate
        grading = inside(self.ended, self.graded)
        training = inside(self.trains, self.trained - self.unshared)
        count = layout.workers
        of_all = {
            "generating": generating * layout.generate / count,
            "grading": grading * layout.generate / count,
            "training": training * layout.train / count,
        }
        of_engines = sum(of_all.values()) if layout.shared else generating + grading
        of_trainers = of_engines if layout.shared else training
        busy = {"idle": sum(of_all.values()), "idle engines": of_engines,
                "idle trainers": of_trainers}  # fmt: skip
        return {**of_all, **{name: max(1.0 - share, 0.0) for name, share in busy.items()}}


def simulate(costs: Costs, work: Work, layout: Layout, steps: int = STEPS) -> Outcome:
    """The run, after as many steps as it needs to settle. The same answers in every layout."""
    warm = 3 + 2 * layout.staleness + (SETTLING if layout.spare else 0)
    count = warm + steps + layout.staleness + 1  # engines are ahead of the last step that counts
    engines = Engines(costs, work, layout)
    there: list[float] = []  # when each step's weights are
    lines: list[tuple[float, ...]] = []
    drawn = np.zeros((count, layout.generate))
    graded = trained = 0.0
    for step in range(count):
        needed = step - layout.staleness
        begin = max(graded, there[needed - 1] if needed > 0 else 0.0)
        late = [when for when in there[max(needed, 0) :] if when > begin and layout.renew]
        ended, lengths = engines.round(begin, late, drawn[step])
        graded = ended + costs.reward * len(lengths) / layout.generate
        sizes = lengths + work.prompt
        even = costs.token * work.kept * sizes.sum() / layout.train
        longest = max(even, min(costs.token * float(sizes.max()), even * layout.train))
        trains = max(graded, trained)
        trained = trains + longest + costs.rest + costs.exchange * (layout.train > 1)
        there.append(trained + costs.exchange * (not layout.shared))
        tokens = work.kept * float(lengths.sum())
        lines.append((begin, ended, graded, trains, trained, longest - even, tokens))
    begun, *others = np.array(lines).T
    return Outcome(layout, (warm - 1, warm - 1 + steps), begun, drawn, *others)


class Engines:
    """The engines of a layout and the rows that they have under way."""

    def __init__(self, costs: Costs, work: Work, layout: Layout) -> None:
        self.costs, self.work, self.layout = costs, work, layout
        self.rng = np.random.default_rng(SEED)
        self.waiting = 0  # groups that have not been trained on
        self.group, self.engine = np.empty(0, np.int64), np.empty(0, np.int64)
        self.length, self.done = np.empty(0, np.int64), np.empty(0, np.int64)
        self.prompt = np.empty(0)  # tokens of it that a row reads: its group shares it

    def round(self, begin: float, late: list[float], drawn: Floats) -> tuple[float, Ints]:
        """Draw until enough groups have ended: when that is, and the lengths of their answers.

        late: when newer weights come. drawn: takes the end of each engine's rows.
        """
        first = 0 if self.waiting else round(self.layout.spare * self.work.num_groups)
        self._add(self.work.num_groups + first)
        open_ = np.flatnonzero(self.done < self.length)
        done, prompt = self.done[open_], self.prompt[open_]
        course = Course(
            self.engine[open_], self.length[open_] - done, self.work.prompt + done, prompt + done,
            self.layout.generate, self.work.slots, self.costs.speed,
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
            pause = self.costs.speed.read * again
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
        """More groups; each row goes to the engine with the fewest."""
        chosen = self.rng.integers(len(self.work.groups), size=count)
        groups = [self.work.groups[index] for index in chosen]
        sizes = np.array([len(group) for group in groups])
        length = np.concatenate(groups)
        load = np.bincount(self.engine[self.done < self.length], minlength=self.layout.generate)
        self.group = np.append(self.group, np.repeat(np.arange(count) + self.waiting, sizes))
        self.engine = np.append(self.engine, _dealt(load, len(length)))
        self.length = np.append(self.length, length)
        self.done = np.append(self.done, np.zeros(len(length), np.int64))
        self.prompt = np.append(self.prompt, np.repeat(self.work.prompt / sizes, sizes))
        self.waiting += count

    def _take(self, taken: Ints) -> Ints:
        """The lengths of the answers of these groups, which are then gone."""
        gone = np.zeros(self.waiting, np.bool_)
        gone[taken] = True
        rows, left = gone[self.group], np.cumsum(~gone) - 1
        found = self.length[rows]
        self.group = left[self.group[~rows]]
        self.engine, self.length = self.engine[~rows], self.length[~rows]
        self.done, self.prompt = self.done[~rows], self.prompt[~rows]
        self.waiting -= len(taken)
        return found


def _dealt(load: Ints, count: int) -> Ints:
    """The engines of `count` more rows, one after the other to the one that has the fewest."""
    level = -(-(int(load.sum()) + count) // len(load))
    room = np.maximum(level - load, 0)
    engine = np.repeat(np.arange(len(load)), room)
    place = np.arange(len(engine)) - np.repeat(np.cumsum(room) - room, room) + load[engine]
    order = np.argsort(place, kind="stable")
    return engine[order[:count]]
