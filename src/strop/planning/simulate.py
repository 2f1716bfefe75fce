"""A run in a layout: who generates, who trains, when each begins and ends, step by step.

    step s begins    when its answers are graded and step s - 1 is trained

Its answers come round by round (rounds.py) or draw by draw (draws.py), of whose weights those of
earlier steps are all that can come: one pass over the steps visits every event in its order. For
so many workers layouts are proposed, of an asynchronous one with the best number that generate.
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

STEPS = 20  # that are measured
FEWEST = 5  # steps that are measured before they are taken for steady
SETTLING = 10  # more steps until as many long answers are under way as will be


@dataclass(frozen=True, eq=False)
class Outcome:
    """When everything was: a line a step, in seconds; `drawn` has a column an engine.

    begun, drawn, ended, graded: a round's begin, the end of each engine's rows, of the round and
    of its rewards. trains, trained: a step's begin and end; unshared: of these the seconds for
    which all but one training worker, on average, wait for the longest answer. window: the first
    and the last step that count. sharing: how GPUs share the model, where that was planned.
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
    sharing: Sharing | None = None

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
    """The run, after as many steps as it needs to settle. The same answers in every layout.

    steady: the error of the mean step's seconds, as a share, at which no more steps are simulated;
    with 0 all of them are.
    """
    warm = 3 + 2 * layout.staleness + (SETTLING if layout.spare else 0)
    ahead = layout.staleness + 1  # steps by which engines are ahead of the last one that counts
    engines = (Draws if one_by_one(layout) else Rounds)(costs, work, layout)
    there: list[float] = []  # when each step's weights are
    lines: list[tuple[float, ...]] = []
    drawn = np.zeros((warm + steps + ahead, layout.generate))
    trained, last = 0.0, warm - 1 + steps
    for step in range(len(drawn)):
        begun_at, ended, graded, lengths = engines.collect(step, there, drawn[step])
        even, longest = _updates(costs, work, layout, lengths)
        trains = max(graded, trained)
        trained = trains + longest + costs.rest + costs.exchange * (layout.train > 1)
        there.append(trained + (costs.exchange + costs.send) * (not layout.shared))
        tokens = work.kept * float(lengths.sum())
        lines.append((begun_at, ended, graded, trains, trained, longest - even, tokens))
        if step < last and _is_steady([line[4] for line in lines[warm - 1 :]], steady):
            last = step
        if step == last + ahead:
            break
    begun, *others = np.array(lines).T
    return Outcome(layout, (warm - 1, last), begun, drawn[: len(lines)], *others)


def _is_steady(trained: Sequence[float], steady: float) -> bool:
    """Whether the mean of the steps that ended at these seconds is known well enough."""
    spent = np.diff(trained)
    if not steady or len(spent) < FEWEST:
        return False
    return float(spent.std()) <= steady * float(spent.mean()) * len(spent) ** 0.5


def _updates(costs: Costs, work: Work, layout: Layout, lengths: Ints) -> tuple[float, float]:
    """Seconds of a step's updates: at even shares, and as whole answers let workers share them."""
    even = longest = 0.0
    for some in np.array_split(costs.training(lengths + work.prompt), work.updates):
        share = work.kept * float(some.sum()) / layout.train
        even += share
        longest += max(share, min(float(some.max(initial=0.0)), share * layout.train))
    return even, longest


NEAR = 1 / 16  # of the fewer workers: how finely divisions are told apart
ROUGH, FINE = 0.03, 0.01  # errors of a step's seconds, of divisions that are tried and of the best


Progress = Callable[[str], None]


def silent(what: str) -> None:
    """Says nothing of what is computed."""


def layouts(
    costs: Costs, work: Work, num_workers: int, staleness: Sequence[int], spare: float,
    apart: Costs | None = None, progress: Progress = silent,
) -> list[Outcome]:  # fmt: skip
    """Every layout of so many workers, the asynchronous ones with their best division.

    apart: costs of asynchronous ones, where they have others. progress: is told what is computed.
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
    """What is planned for so many workers, all of which are in each."""
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
    """The fastest of divisions, of which a later one has more engines.

    More engines let the trainers wait less and the engines more: the balance is between two
    neighbours, found by halving. Those around it are tried too. at: simulates a division until its
    step is known within an error, which is rough at first; those that it does not tell from the
    best one are simulated once more.
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
    """The one with the highest throughput; of equals the first."""
    return max(outcomes, key=lambda outcome: outcome.tokens_per_second)
