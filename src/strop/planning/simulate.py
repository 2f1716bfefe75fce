"""Simulates a run in a layout: who generates, who trains, and when each step begins and ends.

    step s begins    when its answers are graded and step s - 1 is trained

Its answers come round by round (rounds.py) or draw by draw (draws.py). Only weights of earlier
steps can arrive meanwhile, so one pass over the steps visits all events in order. For a number of
workers it proposes layouts, asynchronous ones with the best number of generating workers.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from strop.planning.course import Floats, Ints
from strop.planning.draws import Draws, one_by_one
from strop.planning.parallel import Sharing
from strop.planning.rounds import Rounds
from strop.planning.work import Costs, Layout, Work

STEPS = 20  # number of simulated steps that count
FEWEST = 5  # minimum number of counted steps before they can be called steady
SETTLING = 10  # additional warm-up steps until the number of running long answers is steady


@dataclass(frozen=True, eq=False)
class Outcome:
    """The times of all events in seconds, one row for each step; `drawn` has a column an engine.

    begun, drawn, ended, graded: begin of a round, end of each engine's rows, end of the round, end
    of its rewards. trains, trained: begin and end of a step's training; unshared: the seconds of it
    for which the training workers wait, on average, for the one with the longest answer. window:
    the first and the last step that count. sharing: how GPUs share the model, if that was planned.
    """

    layout: Layout
    window: tuple[int, int]
    started: Floats
    drawn: Floats
    ended: Floats
    graded: Floats
    trains: Floats
    trained: Floats
    unshared: Floats
    tokens: Floats
    sharing: Sharing | None = None

    @property
    def span(self) -> tuple[float, float]:
        """Begin and end of the steps that count, in seconds."""
        first, last = self.window
        return float(self.trained[first]), float(self.trained[last])

    @property
    def step_seconds(self) -> float:
        """Mean seconds of a step."""
        low, high = self.span
        return (high - low) / (self.window[1] - self.window[0])

    @property
    def tokens_per_second(self) -> float:
        """Trained policy tokens a second."""
        first, last = self.window
        return float(self.tokens[first + 1 : last + 1].mean()) / self.step_seconds

    @property
    def waits(self) -> tuple[float, float]:
        """Seconds a step for which the engines wait for weights, and the trainers for answers."""
        low, high = self.window
        engines = self.started[low + 1 : high + 1] - self.graded[low:high]
        return float(engines.mean()), float((self.trains[1:] - self.trained[:-1])[low:high].mean())

    @cached_property
    def shares(self) -> dict[str, float]:
        """Shares of all workers' time by use, and the idle share of each kind's own time."""
        low, high = self.span
        whole = high - low

        def inside(begin: Floats, end: Floats) -> float:
            return float((np.clip(end, low, high) - np.clip(begin, low, high)).sum()) / whole

        layout = self.layout
        generating = inside(self.started[:, None], self.drawn) / layout.generate
        grading = inside(self.ended, self.graded)
        training = inside(self.trains, self.trained - self.unshared)
        count = layout.workers
        of_all = {
            "generating": generating * layout.generating / count,
            "grading": grading * layout.generating / count,
            "training": training * layout.training / count,
        }
        of_engines = sum(of_all.values()) if layout.shared else generating + grading
        of_trainers = of_engines if layout.shared else training
        busy = {"idle": sum(of_all.values()), "idle engines": of_engines,
                "idle trainers": of_trainers}  # fmt: skip
        return {**of_all, **{name: max(1.0 - share, 0.0) for name, share in busy.items()}}


def simulate(
    costs: Costs, work: Work, layout: Layout, steps: int = STEPS, steady: float = 0.0
) -> Outcome:
    """Simulate a run, with the same answers in every layout; warm-up steps do not count.

    steady: the simulation ends when the relative error of the mean seconds of a step is at most
    this; with 0 all steps are simulated.
    """
    warm = 3 + 2 * layout.staleness + (SETTLING if layout.spare else 0)
    ahead = layout.staleness + 1  # steps by which engines run ahead of the last counted step
    engines = (Draws if one_by_one(layout) else Rounds)(costs, work, layout)
    there: list[float] = []  # when each step's weights are available
    lines: list[tuple[float, ...]] = []
    drawn = np.zeros((warm + steps + ahead, layout.generate))
    trained, last = 0.0, warm - 1 + steps
    for step in range(len(drawn)):
        started_at, ended, graded, lengths = engines.collect(step, there, drawn[step])
        even, longest = _updates(costs, work, layout, lengths)
        trains = max(graded, trained)
        trained = trains + longest + costs.rest + costs.exchange * (layout.train > 1)
        there.append(trained + (costs.exchange + costs.send) * (not layout.shared))
        tokens = work.kept * float(lengths.sum())
        lines.append((started_at, ended, graded, trains, trained, longest - even, tokens))
        if step < last and _is_steady([line[4] for line in lines[warm - 1 :]], steady):
            last = step
        if step == last + ahead:
            break
    started, *others = np.array(lines).T
    return Outcome(layout, (warm - 1, last), started, drawn[: len(lines)], *others)


def _is_steady(trained: Sequence[float], steady: float) -> bool:
    """Whether the mean duration of steps that ended at these seconds is precise enough."""
    spent = np.diff(trained)
    if not steady or len(spent) < FEWEST:
        return False
    return float(spent.std()) <= steady * float(spent.mean()) * len(spent) ** 0.5


def _updates(costs: Costs, work: Work, layout: Layout, lengths: Ints) -> tuple[float, float]:
    """Seconds of a step's updates: with even shares, and with whole answers for each worker."""
    even = longest = 0.0
    for some in np.array_split(costs.training(lengths + work.prompt), work.updates):
        share = work.kept * float(some.sum()) / layout.train
        even += share
        longest += max(share, min(float(some.max(initial=0.0)), share * layout.train))
    return even, longest


NEAR = 1 / 16  # resolution of divisions, as a share of the smaller number of workers
ROUGH, FINE = 0.03, 0.01  # errors of a step's seconds: of tried divisions, and of the best ones


Progress = Callable[[str], None]


def silent(what: str) -> None:
    """Ignores a progress message."""


def layouts(
    costs: Costs, work: Work, num_workers: int, staleness: Sequence[int], spare: float,
    apart: Costs | None = None, progress: Progress = silent,
) -> list[Outcome]:  # fmt: skip
    """Every layout of `num_workers` workers, the asynchronous ones with their best division.

    apart: costs of asynchronous layouts, if they differ. progress: called with what is computed.
    """
    found = []
    for kind in kinds(num_workers, staleness, spare):
        progress(f"{num_workers:,} workers, {kind.name}")
        found.append(
            simulate(costs, work, kind, steady=FINE) if kind.shared
            else divided(apart or costs, work, num_workers, kind.staleness, kind.spare)
        )  # fmt: skip
    return found


def kinds(num_workers: int, staleness: Sequence[int], spare: float) -> list[Layout]:
    """The kinds of layout planned for `num_workers` workers, each with all of them."""
    return [
        Layout(num_workers, num_workers, not bound, bound, more)
        for bound in (0, *staleness) if num_workers > 1 or not bound
        for more in dict.fromkeys((0.0, spare))
    ]  # fmt: skip


def divided(
    costs: Costs, work: Work, num_workers: int, staleness: int, spare: float = 0.0
) -> Outcome:
    """The asynchronous layout with the highest throughput."""

    def with_engines(count: int, steady: float) -> Outcome:
        layout = Layout(count, num_workers - count, False, staleness, spare)
        return simulate(costs, work, layout, steady=steady)

    return best_division(with_engines, 1, num_workers - 1)


def best_division(
    at: Callable[[int, float], Outcome], few: int, many: int, error: float = FINE
) -> Outcome:
    """The fastest division; later ones have more engines.

    With more engines, trainers wait less and engines more: bisection finds the two neighbours
    between which the waits balance, and divisions around them are tried too. at: simulates a
    division until its step's seconds are known within an error. That is rough at first; divisions
    too close to the best one to be distinguished are simulated once more.
    """
    first, last = few, many
    known: dict[int, Outcome] = {}

    def tried(count: int) -> Outcome:
        if count not in known:
            known[count] = at(count, max(error, ROUGH))
        return known[count]

    while many - few > max(NEAR * min(few - first + 1, last - many + 1), 1):
        middle = (few + many) // 2
        engines_wait, trainers_wait = tried(middle).waits
        few, many = (middle, many) if trainers_wait > engines_wait else (few, middle)
    width = max(many - few, 1)
    for count in range(few - width, many + width + 1, width):
        tried(min(max(count, first), last))
    best = fastest([*known.values()])
    if error >= ROUGH:
        return best
    least = best.tokens_per_second * (1 - ROUGH)
    close = [count for count in known if known[count].tokens_per_second >= least]
    whole = {count for count in close if np.ptp(known[count].window) == STEPS}
    return fastest([known[count] if count in whole else at(count, error) for count in close])


def fastest(outcomes: Sequence[Outcome]) -> Outcome:
    """The outcome with the highest throughput; among equals the first."""
    return max(outcomes, key=lambda outcome: outcome.tokens_per_second)
