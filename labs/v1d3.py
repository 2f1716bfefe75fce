"""One value of place and time that matches drivers with orders and sends idle ones on, learnt
online and mixed with an older one. After V1D3, arXiv 2105.08791, of which the abstract and the
opening could be read; docs/LABS.md says what is inferred.

    strop labs v1d3
    strop labs v1d3 --seeds 3 --days 20 --picture v1d3.svg

A city of 8 by 8 cells has a demand that changes over the day. In each window orders are matched
with idle drivers so that the sum over pairs of fare + gamma^duration V(end) - V(here) is largest;
idle drivers move on by values. Four dispatchers serve the same orders: a myopic one (V = 0), one
with the value of logged days (offline), one that learns while it serves (online), and one that
does so and at fixed times takes V <- w V_online + (1 - w) V_offline. The city is the one of the
logged days, or its demand has moved.

Takes: half a minute.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from strop import UserError
from strop.api.plot import Plot
from strop.evaluation.seeds import over_seeds
from strop.report.charts import COLOURS, Chart

Floats = NDArray[np.float64]
SIDE, WINDOWS, SLOT = 8, 60, 5  # cells of a side; windows of a day; windows that share a value
CELLS = np.stack(np.divmod(np.arange(SIDE**2), SIDE), axis=1)
APART = np.abs(CELLS[:, None] - CELLS[None]).sum(-1)  # blocks between cells
DRIVERS, ORDERS, REACH = 25, 6.0, 2  # orders of a window; blocks to an order
GAMMA, RATE = 0.97, 0.1
SLOTS = WINDOWS // SLOT + 1  # the last is the end of the day, which is worth 0
POLICIES = ("myopic", "offline", "online", "mixed")


def assigned(weights: Floats) -> list[tuple[int, int]]:
    """Pairs of rows and columns with the largest sum of weights; a weight of 0 or less is none.

    Each row in turn takes a column along the cheapest path of changes (Kuhn and Munkres).
    """
    rows, columns = weights.shape
    cost = np.hstack([-np.maximum(weights, 0.0), np.zeros((rows, rows))])  # a column for nobody
    of_row, of_column = np.zeros(rows), np.zeros(columns + rows)
    holder = np.full(columns + rows, -1)
    for row in range(rows):
        shortest, came = np.full(columns + rows, np.inf), np.full(columns + rows, -1)
        done = np.zeros(columns + rows, dtype=bool)
        at, here, paid = row, -1, 0.0
        while True:
            reduced = paid + cost[at] - of_row[at] - of_column
            better = ~done & (reduced < shortest)
            shortest[better], came[better] = reduced[better], here
            here = int(np.where(done, np.inf, shortest).argmin())
            paid = float(shortest[here])
            if holder[here] < 0:
                break
            done[here] = True
            at = int(holder[here])
        reached = np.flatnonzero(done)
        of_row[row] += paid
        of_row[holder[reached]] += paid - shortest[reached]
        of_column[reached] -= paid - shortest[reached]
        while here >= 0:
            before = came[here]
            holder[here] = row if before < 0 else holder[before]
            here = before
    taken = [(int(holder[c]), c) for c in range(columns) if holder[c] >= 0]
    return sorted((r, c) for r, c in taken if weights[r, c] > 0)


@dataclass(frozen=True)
class City:
    """Where orders begin and end: from home to a centre in the morning, back in the evening."""

    centre: tuple[int, int]
    homes: tuple[int, int]

    def orders(self, rng: np.random.Generator, window: int) -> tuple[NDArray[np.int64], ...]:
        """Beginnings and ends of a window's orders."""
        near = [np.exp(-np.abs(CELLS - np.array(place)).sum(1) / 1.5) + 0.02
                for place in (self.homes, self.centre)]  # fmt: skip
        first, second = near if window < WINDOWS / 2 else near[::-1]
        number = rng.poisson(ORDERS)
        return (rng.choice(SIDE**2, number, p=first / first.sum()),
                rng.choice(SIDE**2, number, p=second / second.sum()))  # fmt: skip


def fare(begin: NDArray[np.int64], end: NDArray[np.int64]) -> Floats:
    """What an order pays."""
    return 1.0 + APART[begin, end]


def duration(driver: NDArray[np.int64], begin: NDArray[np.int64], end: NDArray[np.int64]) -> Floats:
    """Windows that an order takes, with the way to it: two blocks each, and one."""
    return 1 + (APART[driver, begin] + APART[begin, end]) // 2


def slot(window: NDArray[np.int64] | int) -> NDArray[np.int64]:
    """The row of the value table at a window."""
    return np.minimum(np.asarray(window) // SLOT, SLOTS - 1)


def worth(value: Floats, window: int, driver: Floats, begin: Floats, end: Floats) -> Floats:
    """The advantage of each order for each driver, [orders, drivers]; none beyond reach."""
    far = APART[driver[None], begin[:, None]] > REACH
    lasts = duration(driver[None], begin[:, None], end[:, None])
    then = value[slot(window + lasts), end[:, None]]
    gain = fare(begin, end)[:, None] + GAMMA**lasts * then - value[slot(window), driver[None]]
    return np.where(far, 0.0, gain)


def step_on(
    value: Floats, window: int, cells: NDArray[np.int64], rng: np.random.Generator
) -> NDArray[np.int64]:
    """Where idle drivers go: to a cell beside theirs or nowhere, softly by what it is worth."""
    score = GAMMA * value[slot(window + 1)][None] + 0.3 * rng.gumbel(size=(len(cells), SIDE**2))
    return np.where(APART[cells] <= 1, score, -np.inf).argmax(1)


def one_day(
    city: City, value: Floats, seed: int, rate: float
) -> tuple[float, list[tuple[int, int, float, int, int]]]:
    """A day's income, and its transitions (window, cell, fare, windows, next cell). With a rate the
    value learns in place from each of them. The seed sets the orders, whatever the policy."""
    demand, own = np.random.default_rng([seed, 1]), np.random.default_rng([seed, 2])
    cell, free = own.integers(0, SIDE**2, DRIVERS), np.zeros(DRIVERS)
    income, told = 0.0, []
    for window in range(WINDOWS):
        begin, end = city.orders(demand, window)
        idle = np.flatnonzero(free <= window)
        made = []
        if len(begin) and len(idle):
            weights = worth(value, window, cell[idle], begin, end)
            for order, column in assigned(weights):
                driver = idle[column]
                lasts = int(duration(cell[driver], begin[order], end[order]))
                paid = float(fare(begin[order], end[order]))
                made.append((window, int(cell[driver]), paid, lasts, int(end[order])))
                income += paid
                cell[driver], free[driver] = end[order], window + lasts
        rest = np.flatnonzero(free <= window)
        after = step_on(value, window, cell[rest], own)
        made += [(window, int(cell[d]), 0.0, 1, int(to)) for d, to in zip(rest, after, strict=True)]
        cell[rest] = after
        if rate:
            learn(value, made, rate)
        told += made
    return income, told


def learn(value: Floats, made: Sequence[tuple[int, int, float, int, int]], rate: float) -> None:
    """V(here) <- V(here) + rate (fare + gamma^windows V(there) - V(here)), for each transition."""
    for window, at, paid, lasts, to in made:
        target = paid + GAMMA**lasts * value[slot(window + lasts), to]
        value[slot(window), at] += rate * (target - value[slot(window), at])


def logged(city: City, seed: int, days: int, sweeps: int = 4) -> Floats:
    """The value of the myopic dispatcher's logged days, backwards in time and several times."""
    value = np.zeros((SLOTS, SIDE**2))
    told = [one_day(city, np.zeros_like(value), 10**6 * (seed + 1) + day, 0.0)[1]
            for day in range(days)]  # fmt: skip
    for _ in range(sweeps):
        for each in told:
            learn(value, each[::-1], RATE)
    value[-1] = 0.0
    return value


def served(
    city: City, offline: Floats, policy: str, seed: int, days: int, weight: float, every: int
) -> list[float]:
    """Income of each day. mixed: V <- weight V + (1 - weight) V_offline after every so many."""
    value = np.zeros_like(offline) if policy in ("myopic", "online") else offline.copy()
    incomes = []
    for day in range(days):
        rate = RATE if policy in ("online", "mixed") else 0.0
        incomes.append(one_day(city, value, 1000 * seed + day, rate)[0])
        if policy == "mixed" and (day + 1) % every == 0:
            value = weight * value + (1 - weight) * offline
    return incomes


def main(words: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="One value that dispatches and repositions.")
    add = parser.add_argument
    add("--seeds", type=int, default=5)
    add("--days", type=int, default=10, help="that are served; as many are logged before")
    add("--weight", type=float, default=0.5, help="of the online value when it is mixed")
    add("--every", type=int, default=1, help="days between mixtures")
    add("--picture", type=Path, help="draw incomes over days into this file (.svg)")
    options = parser.parse_args(words)
    if min(options.seeds, options.days, options.every) < 1 or not 0 <= options.weight <= 1:
        parser.error("seeds, --days and --every must be 1 or more, --weight from 0 to 1")
    known = City((2, 2), (6, 6))
    offline = [logged(known, seed, options.days) for seed in range(options.seeds)]
    charts = []
    for title, city in (("Same demand", known), ("Demand has moved", City((6, 1), (1, 6)))):
        print(f"{title}: income of a day")
        found = {
            policy: [served(city, own, policy, seed, options.days, options.weight, options.every)
                     for seed, own in enumerate(offline)]
            for policy in POLICIES
        }  # fmt: skip
        traces = []
        for colour, (policy, days) in zip(COLOURS, found.items(), strict=False):
            mean = [float(np.mean(each)) for each in days]
            more = [a - float(np.mean(b)) for a, b in zip(mean, found["myopic"], strict=True)]
            print(f"  {policy:8} {over_seeds(mean):.1f}, "
                  f"more than myopic by {over_seeds(more):.1f}")  # fmt: skip
            traces.append({"x": list(range(1, options.days + 1)), "name": policy, "mode": "lines",
                           "y": np.mean(days, axis=0).tolist(),
                           "line": {"color": colour, "width": 2}})  # fmt: skip
        pairs = zip(found["mixed"], found["online"], strict=True)
        more = [float(np.mean(a) - np.mean(b)) for a, b in pairs]
        print(f"  mixed more than online by {over_seeds(more):.1f}")
        charts.append(Chart(f"{title}: income by day", "", tuple(traces), {"showlegend": True}))
    if options.picture:
        try:
            print(f"wrote {Plot(tuple(charts)).save(options.picture)}")
        except UserError as error:
            parser.error(str(error))


if __name__ == "__main__":
    main()
