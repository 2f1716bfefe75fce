"""Penalties on what a learnt model does not know, beside each other, and tuned as they should be.
After a study of offline model-based learning, arXiv 2110.04135, of which the abstract could be
read; docs/LABS.md says what is inferred.

    strop labs offline_mbrl_penalties
    strop labs offline_mbrl_penalties --seeds 3 --picture penalties.svg

A point on a line is pushed left or right. Data are given that have a gap; behind it lies the best
reward, and in it a current that carries off whoever enters. Ensembles of models are fitted, and a
policy is planned in them with reward - weight * penalty. Printed are

1. calibration: the rank correlation of each penalty with the model's true error, and
2. the true return of the policy at one weight by hand for all penalties, and at the weight and
   number of models that were best for each penalty on other data sets.

Takes: a quarter of a minute.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from strop import UserError
from strop.api.plot import Plot
from strop.evaluation.seeds import over_seeds
from strop.report.charts import COLOURS, Chart

Floats = NDArray[np.float64]

# ---- penalties: mean and deviation of each model, [models, ..., dimensions] -> [...]


def max_aleatoric(mean: Floats, sd: Floats) -> Floats:
    """max_i ||sd_i||, MOPO's."""
    return np.linalg.norm(sd, axis=-1).max(0)


def max_pairwise(mean: Floats, sd: Floats) -> Floats:
    """max_ij ||mean_i - mean_j||, MOReL's."""
    return np.linalg.norm(mean[:, None] - mean[None], axis=-1).max((0, 1))


def likelihood_variance(mean: Floats, sd: Floats) -> Floats:
    """How much the models differ in the log-likelihood of what they predict together."""
    off = (mean.mean(0) - mean) / sd
    return (-0.5 * off**2 - np.log(sd)).sum(-1).var(0)


def leave_one_out(mean: Floats, sd: Floats) -> Floats:
    """The divergence of a model from the others' mixture, merged into one normal distribution; the
    mean over models."""
    found = []
    for i in range(len(mean)):
        rest = [j for j in range(len(mean)) if j != i]
        m, v = mean[rest].mean(0), mixture_variance(mean[rest], sd[rest])
        found.append(0.5 * (np.log(v / sd[i] ** 2) + (sd[i] ** 2 + (mean[i] - m) ** 2) / v - 1))
    return np.stack(found).sum(-1).mean(0)


def mixture_variance(mean: Floats, sd: Floats) -> Floats:
    """mean_i (sd_i^2 + mean_i^2) - (mean_i mean_i)^2, of each dimension."""
    return (sd**2 + mean**2).mean(0) - mean.mean(0) ** 2


def mixture_deviation(mean: Floats, sd: Floats) -> Floats:
    """Its root, over all dimensions."""
    return np.sqrt(mixture_variance(mean, sd).sum(-1))


PENALTIES: dict[str, Callable[[Floats, Floats], Floats]] = {
    "aleatoric": max_aleatoric, "pairwise": max_pairwise,
    "likelihood": likelihood_variance, "one out": leave_one_out,
    "mixture": mixture_deviation,
}  # fmt: skip

# ---- the world, its data and models of it

GRID = np.linspace(-1, 1, 41)
PUSHES = np.linspace(-1, 1, 7)
DISCOUNT = 0.95
NOISE = 0.03
STATE, PUSH = (each.ravel() for each in np.meshgrid(GRID, PUSHES, indexing="ij"))


def moved(x: Floats, push: Floats) -> Floats:
    """The true next place: a current from 0.25 to 0.5 carries back and is stronger than a push."""
    current = np.where((x > 0.25) & (x < 0.5), -0.6, 0.0)
    return np.clip(x + 0.12 * push + current, -1, 1)


def reward(x: Floats) -> Floats:
    """A little near the middle, most at 0.8, and less than nothing where the current leads."""
    bump = 0.5 * np.exp(-(((x + 0.05) / 0.15) ** 2)) + np.exp(-(((x - 0.8) / 0.15) ** 2))
    return bump - 1.0 * np.exp(-(((x + 0.4) / 0.12) ** 2))


def data(rng: np.random.Generator, number: int = 150) -> tuple[Floats, Floats]:
    """Places and pushes, and what they led to. Hardly any of them lies in the current."""
    x = rng.uniform(-1, 1, 4 * number)
    x = x[(x < 0.22) | (x > 0.55) | (rng.random(len(x)) < 0.02)][:number]
    push = rng.choice(PUSHES, len(x))
    return np.stack([x, push], 1), moved(x, push) + NOISE * rng.normal(size=len(x))


def models(
    rng: np.random.Generator, at: Floats, then: Floats, number: int, features: int = 40
) -> tuple[Floats, Floats]:
    """Mean and deviation of each model at every place and push, [models, 41 * 7, 1]: ridge
    regressions on random waves, each of its own draw of the data; the deviation's is of the
    logarithm of squared errors."""
    found = []
    for _ in range(number):
        rows = rng.integers(0, len(at), len(at))
        wave = rng.normal(size=(2, features)) * np.array([[6.0], [1.0]])
        phase = rng.uniform(0, 2 * np.pi, features)

        def shown(places: Floats, wave: Floats = wave, phase: Floats = phase) -> Floats:
            return np.concatenate([np.cos(places @ wave + phase), places, places[:, :1] ** 0], 1)

        x, change = shown(at[rows]), then[rows] - at[rows, 0]
        inverse = np.linalg.inv(x.T @ x + 0.3 * np.eye(x.shape[1])) @ x.T
        mean = inverse @ change
        spread = inverse @ np.log((change - x @ mean) ** 2 + 1e-4)
        everywhere = shown(np.stack([STATE, PUSH], 1))
        sd = np.exp(np.clip(everywhere @ spread, -9, 0) / 2)
        found.append((STATE + everywhere @ mean, sd))
    mean, sd = (np.stack(each)[..., None] for each in zip(*found, strict=True))
    return mean, sd


def transitions(mean: Floats, sd: Floats) -> Floats:
    """Onto the grid, [41, 7, 41]: the mean over models."""
    off = (GRID - np.clip(mean, -1, 1)) / np.maximum(sd, GRID[1] - GRID[0])
    density = np.exp(-0.5 * off**2)
    return (density / density.sum(-1, keepdims=True)).mean(0).reshape(len(GRID), len(PUSHES), -1)


REAL = transitions(moved(STATE, PUSH)[None, :, None], np.full((1, len(STATE), 1), NOISE))


def planned(moves: Floats, penalty: Floats) -> NDArray[np.int64]:
    """The best push of each place, for rewards of [places, pushes] less a penalty of each."""
    value = np.zeros(len(GRID))
    gain = (moves @ reward(GRID)) - penalty
    for _ in range(150):
        worth = gain + DISCOUNT * moves @ value
        value = worth.max(1)
    return worth.argmax(1)


def true_return(push: NDArray[np.int64]) -> float:
    """What a policy is worth in the world, begun in the middle."""
    own = REAL[np.arange(len(GRID)), push]
    value = np.linalg.solve(np.eye(len(GRID)) - DISCOUNT * own, own @ reward(GRID))
    return float(value[np.abs(GRID + 0.05) < 0.1].mean() * (1 - DISCOUNT))


def rank_correlation(one: Floats, two: Floats) -> float:
    """Spearman's."""
    ranks = [each.argsort().argsort() for each in (one, two)]
    return float(np.corrcoef(ranks)[0, 1])


# ---- the study

BY_HAND = (1.0, 7)  # weight and models, those that MOPO and its successors begin with
WEIGHTS = (0.0, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
NUMBERS = (3, 7, 15)


@dataclass(frozen=True)
class Studied:
    """Of one data set: calibration by (penalty, models), returns by (penalty, weight, models)."""

    calibration: dict[tuple[str, int], float]
    returns: dict[tuple[str, float, int], float]


def studied(seed: int) -> Studied:
    """All penalties, weights and numbers of models on one data set."""
    rng = np.random.default_rng(seed)
    mean, sd = models(rng, *data(rng), max(NUMBERS))
    calibration, returns = {}, {}
    for number in NUMBERS:
        own = mean[:number], sd[:number]
        error = np.abs(own[0].mean(0)[:, 0] - moved(STATE, PUSH))
        moves = transitions(*own)
        for name, penalty in PENALTIES.items():
            found = penalty(*own)
            calibration[name, number] = rank_correlation(found, error)
            for weight in WEIGHTS:
                push = planned(moves, weight * found.reshape(len(GRID), len(PUSHES)))
                returns[name, weight, number] = true_return(push)
    return Studied(calibration, returns)


def tuned(penalty: str, sets: Sequence[Studied]) -> tuple[float, int]:
    """The weight and number of models with the best mean return of a penalty."""
    choices = [(weight, number) for weight in WEIGHTS for number in NUMBERS]
    return max(choices, key=lambda own: np.mean([s.returns[penalty, *own] for s in sets]))


def main(words: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="Penalties on what a model does not know.")
    add = parser.add_argument
    add("--seeds", type=int, default=20, help="data sets to tune on, and as many to judge on")
    add("--picture", type=Path, help="draw returns over weights into this file (.svg)")
    options = parser.parse_args(words)
    if options.seeds < 1:
        parser.error("there must be one seed at least")
    judged, tuning = (
        [studied(seed + first) for seed in range(options.seeds)] for first in (0, 10**6)
    )
    free = [each.returns["mixture", 0.0, 7] for each in judged]
    best = true_return(planned(REAL, np.zeros(REAL.shape[:2])))
    print(f"no penalty: true return {over_seeds(free):.3f}; the best policy {best:.3f}")
    traces = []
    for colour, name in zip(COLOURS, PENALTIES, strict=False):
        print(name)
        for number in NUMBERS:
            ranks = [s.calibration[name, number] for s in judged]
            print(f"  {number:2} models: rank correlation with the error {over_seeds(ranks):.3f}")
        at = tuned(name, tuning)
        hand, own = ([s.returns[name, *each] for s in judged] for each in (BY_HAND, at))
        print(f"  true return: weight 1, 7 models {over_seeds(hand):.3f}")
        print(f"    tuned, weight {at[0]:g}, {at[1]} models {over_seeds(own):.3f}, more by "
              f"{over_seeds([a - b for a, b in zip(own, hand, strict=True)]):.3f}")  # fmt: skip
        mean = [float(np.mean([s.returns[name, w, 7] for s in judged])) for w in WEIGHTS]
        traces.append({"x": list(range(len(WEIGHTS))), "y": mean, "name": name,
                       "mode": "lines+markers", "line": {"color": colour, "width": 2}})  # fmt: skip
    if options.picture:
        title = "True return at weights " + ", ".join(f"{weight:g}" for weight in WEIGHTS)
        try:
            chart = Chart(title, "", tuple(traces), {"showlegend": True})
            print(f"wrote {Plot((chart,)).save(options.picture)}")
        except UserError as error:
            parser.error(str(error))


if __name__ == "__main__":
    main()
