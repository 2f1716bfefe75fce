"""Harvesting a stock whose model is unknown, with a Gaussian process inside dynamic programming.
After Gaussian Process Dynamic Programming, arXiv 1412.8081, whose manuscript and code are public;
docs/LABS.md says what differs.

    strop labs gpdp
    strop labs gpdp --seeds 3 --picture gpdp.svg

A fish stock grows by Allen's rule: below a tipping point it dies out. Forty years without harvest,
all of them above that point, are what is known. Three models are fitted, each with a posterior by
Metropolis: a Gaussian process; Ricker's rule, which has no tipping point; and Allen's own. Each
posterior is averaged into transitions, value iteration finds the harvest for each stock, and the
policy is tried on the true dynamics, 100 times for fifty years. What it earns is given as a share
of what the policy of the true model earns, as in Figure 5 of the paper.

Takes: half a minute.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from strop import UserError
from strop.api.plot import Plot
from strop.evaluation.seeds import POSITIVE, SHARE, over_seeds
from strop.report.charts import COLOURS, Chart

Floats = NDArray[np.float64]
TRUE = (2.0, 8.0, 5.0)  # growth, capacity, tipping point
NOISE = 0.05  # standard deviation of the logarithm of growth's noise
CAPACITY = 10.0  # about: the grid ends at half as much again
GRID = np.linspace(0, 1.5 * CAPACITY, 50)  # of stocks and of harvests
YEARS, KNOWN = 50, 40
DISCOUNT = 1 / 1.01  # the paper's text multiplies by delta, its code sets delta to 0.01: a rate
# Draws of a posterior, of which the first are dropped and each so-manieth is kept.
DRAWS, DROPPED, EVERY = 12_000, 2_000, 100


def allen(x: Floats, growth: float, capacity: float, tipping: float) -> Floats:
    """The stock of the next year, without noise."""
    return x * np.exp(growth * (1 - x / capacity) * (x - tipping) / capacity)


def ricker(x: Floats, growth: float, capacity: float) -> Floats:
    """The same where there is no tipping point."""
    return x * np.exp(growth * (1 - x / capacity))


def observed(rng: np.random.Generator, years: int = KNOWN) -> Floats:
    """Stocks of a population that begins a little above its tipping point and never falls below
    it: a history that does is drawn anew, for what lies below is what nobody has seen."""
    while True:
        stock = [TRUE[2] + 0.5]
        for _ in range(years - 1):
            stock.append(float(allen(np.array(stock[-1]), *TRUE) * np.exp(NOISE * rng.normal())))
        if min(stock) > TRUE[2]:
            return np.array(stock)


# ---- posteriors


def metropolis(
    log_posterior: Callable[[Floats], float], start: Sequence[float], scale: Sequence[float],
    rng: np.random.Generator, draws: int = DRAWS,
) -> Floats:  # fmt: skip
    """Draws of a posterior by a random walk, after the first ones, each so-manieth."""
    at, kept = np.array(start), []
    now = log_posterior(at)
    for draw in range(draws):
        there = at + np.asarray(scale) * rng.normal(size=len(at))
        then = log_posterior(there)
        if np.log(rng.random()) < then - now:
            at, now = there, then
        if draw >= min(DROPPED, draws // 2) and draw % EVERY == 0:
            kept.append(at)
    return np.array(kept)


def inverse_gamma(value: float, shape: float, rate: float) -> float:
    """The logarithm of its density, without the constant."""
    return -(shape + 1) * float(np.log(value)) - rate / value


def kernel(x: Floats, y: Floats, length: float) -> Floats:
    """exp(-(x - y)^2 / (2 l^2))."""
    return np.exp(-((x[:, None] - y[None]) ** 2) / (2 * length**2))


def process(x: Floats, y: Floats, at: Floats, length: float, sigma: float) -> tuple[Floats, Floats]:
    """Mean and variance of the function at other places: a prior of mean 0 and variance 1."""
    inverse = np.linalg.inv(kernel(x, x, length) + sigma**2 * np.eye(len(x)))
    across = kernel(at, x, length)
    return across @ inverse @ y, 1 - ((across @ inverse) * across).sum(1)


def process_posterior(x: Floats, y: Floats, rng: np.random.Generator, draws: int) -> Floats:
    """Draws of (length, sigma) under the paper's inverse gamma priors."""

    def log_posterior(logs: Floats) -> float:
        length, sigma = np.exp(logs)
        if not (1e-3 < sigma < 1e3 and 1e-3 < length < 1e3):
            return -np.inf
        factor = np.linalg.cholesky(kernel(x, x, length) + sigma**2 * np.eye(len(x)))
        white = np.linalg.solve(factor, y)
        likelihood = -0.5 * white @ white - np.log(np.diag(factor)).sum()
        prior = inverse_gamma(length, 10, 10) + inverse_gamma(sigma, 5, 5)
        return float(likelihood + prior + logs.sum())  # the walk is in logarithms

    return np.exp(metropolis(log_posterior, (0.0, 0.0), (0.3, 0.15), rng, draws))


def rule_posterior(
    rule: Callable[..., Floats], most: Sequence[float], start: Sequence[float],
    scale: Sequence[float], stock: Floats, rng: np.random.Generator, draws: int,
) -> Floats:  # fmt: skip
    """Draws of a rule's parameters and of its noise, uniform priors from about 0 to `most`."""
    x, y = stock[:-1], stock[1:]

    def log_posterior(parameters: Floats) -> float:
        *own, sigma = parameters
        inside = all(0.01 < p < m for p, m in zip(own, most, strict=True)) and 1e-6 < sigma < 100
        if not inside:
            return -np.inf
        off = np.log(y) - np.log(rule(x, *own))
        return float(-0.5 * (off**2).sum() / sigma**2 - len(y) * np.log(sigma))

    return metropolis(log_posterior, start, scale, rng, draws)


# ---- transitions, [harvests, stocks, stocks of the next year]


def normalised(rows: Floats) -> Floats:
    """Rows that sum to 1; one without any weight is extinct."""
    total = rows.sum(-1, keepdims=True)
    extinct = np.zeros_like(rows)
    extinct[..., 0] = 1.0
    return np.where(total > 0, rows / np.where(total > 0, total, 1.0), extinct)


def left() -> Floats:
    """What is left of each stock after each harvest."""
    return np.maximum(GRID[None] - GRID[:, None], 0.0)


def of_rule(mean: Floats, sigma: float) -> Floats:
    """Transitions to a mean with lognormal noise; a mean below the second point is extinct."""
    below = mean < (GRID[0] + GRID[1]) / 2
    ratio = GRID[None, None] / np.where(below, 1.0, mean)[..., None]
    with np.errstate(divide="ignore"):
        off = np.log(ratio) / sigma
    density = np.where(ratio > 0, np.exp(-0.5 * off**2) / np.where(ratio > 0, ratio, 1.0), 0.0)
    return normalised(np.where(below[..., None], 0.0, density))


def of_process(mean: Floats, variance: Floats) -> Floats:
    """Transitions of a Gaussian process, of which mean and variance at `left()` are given."""
    below = (mean < (GRID[0] + GRID[1]) / 2) | (left() == 0)
    off = GRID[None, None] - mean[..., None]
    density = np.exp(-0.5 * off**2 / np.maximum(variance, 1e-12)[..., None])
    return normalised(np.where(below[..., None], 0.0, density))


def policy(transitions: Floats, steps: int = 1000) -> NDArray[np.int64]:
    """The best harvest for each stock: V(x) = max_h min(x, h) + discount E V(x')."""
    earned = np.minimum(GRID[None], GRID[:, None])
    value = np.zeros(len(GRID))
    for _ in range(steps):
        worth = earned + DISCOUNT * transitions @ value
        before, value = value, worth.max(0)
        if np.abs(value - before).max() < 1e-6 * max(value.max(), 1.0):
            break
    return worth.argmax(0)


def tried(
    harvest: NDArray[np.int64], rng: np.random.Generator, times: int
) -> tuple[Floats, Floats]:
    """What a policy earns of the true stock in fifty years, and the stock that is left then."""
    stock, total = np.full(times, CAPACITY), np.zeros(times)
    for _ in range(YEARS):
        taken = np.minimum(GRID[harvest[np.abs(GRID - stock[:, None]).argmin(1)]], stock)
        total += taken
        noise = np.exp(NOISE * rng.normal(size=times))
        stock = allen(stock - taken, *TRUE) * noise
    return total, stock


@dataclass(frozen=True)
class Managed:
    """A policy on the true dynamics."""

    harvest: Floats  # for each stock
    share: float  # of what the policy of the true model earns
    alive: float  # share of stocks that are above the tipping point at the end


def one_seed(seed: int, draws: int, times: int) -> dict[str, Managed]:
    """Fit the three models to one history, and try the policies of each and of the true one."""
    rng = np.random.default_rng(seed)
    stock, rest = observed(rng), left()
    x, y = np.append(0.0, stock[:-1]), np.append(0.0, stock[1:])  # no stock, no offspring
    found = {"true": of_rule(allen(rest, *TRUE), NOISE)}
    drawn = process_posterior(x, y, rng, draws)
    sums = np.zeros_like(found["true"])
    for length, sigma in drawn:
        mean, variance = process(x, y, GRID, length, sigma)
        step = np.rint(rest / GRID[1]).astype(int)  # harvests lie on the grid of stocks
        sums += of_process(mean[step], variance[step])
    found["process"] = sums / len(drawn)
    for name, rule, most, start, scale in (
        ("Ricker", ricker, (20, 40), (0.5, 8, 0.05), (0.06, 0.2, 0.006)),
        ("Allen", allen, (6, 20, 20), (1.5, 8, 5, 0.05), (0.25, 0.15, 0.3, 0.006)),
    ):
        fits = rule_posterior(rule, most, start, scale, stock, rng, draws)
        found[name] = sum(of_rule(rule(rest, *own), sigma) for *own, sigma in fits) / len(fits)
    best = None
    managed = {}
    for name, transitions in found.items():
        harvest = policy(transitions)
        total, end = tried(harvest, np.random.default_rng(10**6 + seed), times)
        best = total if best is None else best
        managed[name] = Managed(
            GRID[harvest], float((total / best).mean()), float((end > TRUE[2]).mean())
        )
    return managed


def main(words: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="A Gaussian process inside dynamic programming.")
    add = parser.add_argument
    add("--seeds", type=int, default=10, help="histories of the stock")
    add("--draws", type=int, default=DRAWS, help="of each posterior, the dropped ones too")
    add("--times", type=int, default=100, help="that a policy is tried")
    add("--picture", type=Path, help="draw what each policy leaves of a stock (.svg)")
    options = parser.parse_args(words)
    if options.seeds < 1 or options.draws < 2 * EVERY or options.times < 1:
        parser.error(f"there must be one seed, one trial and {2 * EVERY} draws at least")
    seeds = [one_seed(seed, options.draws, options.times) for seed in range(options.seeds)]
    traces = []
    for colour, name in zip(COLOURS, seeds[0], strict=False):
        shares, alive = [s[name].share for s in seeds], [s[name].alive for s in seeds]
        print(f"{name:8} share of the best income {over_seeds(shares, POSITIVE):.3f}, "
              f"alive {over_seeds(alive, SHARE):.3f}")  # fmt: skip
        escaped = np.mean([GRID - s[name].harvest for s in seeds], axis=0)
        traces.append({"x": GRID.tolist(), "y": escaped.tolist(), "name": name, "mode": "lines",
                       "line": {"color": colour, "width": 2}})  # fmt: skip
    if options.picture:
        chart = Chart("Stock that is left, by stock", "", tuple(traces), {"showlegend": True})
        try:
            print(f"wrote {Plot((chart,)).save(options.picture)}")
        except UserError as error:
            parser.error(str(error))


if __name__ == "__main__":
    main()
