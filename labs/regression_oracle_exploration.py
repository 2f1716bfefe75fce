"""Exploring by the gap between predicted rewards, with models that are refitted on their own logs.
After a study at Adyen, arXiv 2412.00569, whose variants, settings and data are not public;
docs/LABS.md says what is inferred.

    strop labs regression_oracle_exploration
    strop labs regression_oracle_exploration --seeds 3 --generations 20 --picture bandits.svg

Payments with a context choose one of the actions that are available for them; the reward is 0 or 1.
In each generation a model of the reward is fitted on logs, and draws the actions of the next
generation: uniformly, by inverse gap weighting (SquareCB), or by FastCB. Looked at are

1. the reward while exploring, and
2. the reward of the greedy policy of each generation's model, whether it falls from one generation
   to the next, with logs of all generations or of the last one alone, and with a model that can
   represent the reward or cannot.

Takes: a quarter of a minute.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from strop import UserError
from strop.api.plot import Plot
from strop.evaluation.seeds import over_seeds
from strop.report.charts import COLOURS, Chart

Floats = NDArray[np.float64]
Rule = Callable[[Floats, NDArray[np.bool_], float], Floats]


def uniform(cost: Floats, there: NDArray[np.bool_], gamma: float) -> Floats:
    """Each action that is there alike."""
    return there / there.sum(-1, keepdims=True)


def square_cb(cost: Floats, there: NDArray[np.bool_], gamma: float) -> Floats:
    """p_a = 1 / (K + gamma (f_a - f_b)) for all but the best action b, which has the rest.

    cost: f [..., actions]; there: which are available, K of them; others have probability 0.
    """
    return _but_the_best(cost, there, lambda best, number: number + gamma * (cost - best))


def fast_cb(cost: Floats, there: NDArray[np.bool_], gamma: float) -> Floats:
    """p_a = f_b / (K f_b + gamma (f_a - f_b)): bolder where the best cost is near 0."""
    return _but_the_best(cost, there, lambda b, number: number + gamma * (cost - b) / b)


def _but_the_best(
    cost: Floats, there: NDArray[np.bool_], inverse: Callable[[Floats, Floats], Floats]
) -> Floats:
    masked = np.where(there, cost, np.inf)
    best = masked.min(-1, keepdims=True)
    others = there / inverse(best, there.sum(-1, keepdims=True))
    first = np.arange(cost.shape[-1]) == masked.argmin(-1)[..., None]
    others = np.where(first, 0.0, others)
    return np.where(first, 1 - others.sum(-1, keepdims=True), others)


RULES: dict[str, Rule] = {"uniform": uniform, "SquareCB": square_cb, "FastCB": fast_cb}


@dataclass(frozen=True)
class World:
    """Payments: what their reward depends on, and which actions are there for them."""

    weights: Floats  # [actions, features]
    bends: Floats  # of products of features, which a linear model cannot represent

    @classmethod
    def drawn(
        cls, rng: np.random.Generator, bent: bool, actions: int = 5, features: int = 6
    ) -> "World":
        """A world; bent: its rewards also depend on products of features."""
        weights = rng.normal(size=(actions, features)) / features**0.5
        return cls(weights, rng.normal(size=(actions, features)) * (1.0 if bent else 0.0))

    def payments(self, rng: np.random.Generator, number: int) -> tuple[Floats, NDArray[np.bool_]]:
        """Contexts with a constant, and which actions are there, at least one."""
        x = rng.normal(size=(number, self.weights.shape[1]))
        x[:, 0] = 1.0
        there = rng.random((number, len(self.weights))) < 0.8
        there[~there.any(1)] = True
        return x, there

    def success(self, x: Floats) -> Floats:
        """The probability of reward 1 of each action."""
        score = x @ self.weights.T + (x * np.roll(x, 1, axis=1)) @ self.bends.T / 2
        return 1 / (1 + np.exp(-2 * score))


def fitted(x: Floats, action: NDArray[np.int64], reward: Floats, actions: int) -> Floats:
    """A ridge regression of each action's reward, every log with weight 1: [actions, features]."""
    found = np.zeros((actions, x.shape[1]))
    for a in range(actions):
        rows = x[action == a]
        square = rows.T @ rows + np.eye(x.shape[1])
        found[a] = np.linalg.solve(square, rows.T @ (reward[action == a] - 0.5))
    return found


def cost_of(model: Floats, x: Floats) -> Floats:
    """1 - the predicted probability of success, on a fixed scale as the rules ask."""
    return np.clip(0.5 - x @ model.T, 0.01, 0.99)


def greedy_reward(model: Floats, world: World, x: Floats, there: NDArray[np.bool_]) -> float:
    """The expected reward of the likeliest action by a model."""
    chosen = np.where(there, cost_of(model, x), np.inf).argmin(1)
    return float(world.success(x)[np.arange(len(x)), chosen].mean())


@dataclass(frozen=True)
class Course:
    """What the generations of a run came to."""

    explored: list[float]  # reward while exploring
    greedy: list[float]  # expected reward of the greedy policy of each generation's model
    rarest: list[int]  # logs of the action that was taken least
    successes: list[float]  # share of rewards that are 1, the balance of classes


def run(rule: Rule, world: World, seed: int, generations: int, logs: int, all_logs: bool) -> Course:
    """Generations of exploring and refitting. All rules see the same payments."""
    rng, test = np.random.default_rng(seed), np.random.default_rng(10**6 + seed)
    held_x, held_there = world.payments(test, 4000)
    actions = len(world.weights)
    model = np.zeros((actions, held_x.shape[1]))
    seen: list[tuple[Floats, NDArray[np.int64], Floats]] = []
    course = Course([], [], [], [])
    for generation in range(generations):
        x, there = world.payments(rng, logs)
        gamma = 10 * ((generation + 1) * logs) ** 0.5  # the reference rule's, t logs so far
        chances = (rule if generation else uniform)(cost_of(model, x), there, gamma)
        drawn = (chances.cumsum(1) < rng.random((logs, 1))).sum(1).clip(0, actions - 1)
        won = (rng.random(logs) < world.success(x)[np.arange(logs), drawn]).astype(float)
        seen = [*(seen if all_logs else []), (x, drawn, won)]
        model = fitted(*(np.concatenate(each) for each in zip(*seen, strict=True)), actions)
        if generation:
            course.explored.append(float(won.mean()))
        course.greedy.append(greedy_reward(model, world, held_x, held_there))
        course.rarest.append(int(np.bincount(drawn, minlength=actions).min()))
        course.successes.append(float(won.mean()))
    return course


def falls(greedy: Sequence[float]) -> float:
    """How much reward is lost, on average, from one generation to the next; gains count as 0."""
    return sum(max(0.0, a - b) for a, b in pairwise(greedy)) / (len(greedy) - 1)


def compared(courses: dict[str, list[Course]]) -> None:
    """Print each rule, and its difference from uniform exploration on the same payments."""
    for name, own in courses.items():
        explored = [float(np.mean(c.explored)) for c in own]
        print(f"  {name:9} reward while exploring {np.mean(explored):.3f}, rarest action "
              f"{own[0].rarest[0]} -> {own[0].rarest[-1]} logs, success in logs "
              f"{own[0].successes[0]:.2f} -> {own[0].successes[-1]:.2f}")  # fmt: skip
        change = [c.greedy[-1] - c.greedy[0] for c in own]
        print(f"    greedy policy, last generation - first: {over_seeds(change):+.3f}")
        if name != "uniform":
            pairs = list(zip(own, courses["uniform"], strict=True))
            more = [float(np.mean(c.explored) - np.mean(u.explored)) for c, u in pairs]
            print(f"    less uniform: exploring {over_seeds(more):+.3f}")
            lost = [falls(c.greedy) - falls(u.greedy) for c, u in pairs]
            last = [c.greedy[-1] - u.greedy[-1] for c, u in pairs]
            print(f"    less uniform: greedy, last {over_seeds(last):+.3f}, "
                  f"falls {over_seeds(lost):+.3f}")  # fmt: skip


def drawn(title: str, courses: dict[str, list[Course]]) -> Chart:
    """The greedy policies' rewards over generations, means over seeds."""
    traces = []
    for colour, (name, own) in zip(COLOURS, courses.items(), strict=False):
        mean = np.mean([c.greedy for c in own], axis=0)
        traces.append({"x": list(range(1, len(mean) + 1)), "y": mean.tolist(), "name": name,
                       "mode": "lines", "line": {"color": colour, "width": 2}})  # fmt: skip
    return Chart(title, "", tuple(traces), {"showlegend": True})


def main(words: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="Exploring by gaps, refitted on its own logs.")
    add = parser.add_argument
    add("--seeds", type=int, default=10, help="each has a world of its own")
    add("--generations", type=int, default=12)
    add("--logs", type=int, default=2000, help="payments of a generation")
    add("--picture", type=Path, help="draw the greedy policies' rewards into this file (.svg)")
    options = parser.parse_args(words)
    if options.seeds < 1 or options.generations < 2 or options.logs < 1:
        parser.error("there must be one seed, two generations and one log at least")
    charts = []
    for bent in (False, True):
        for all_logs in (True, False):
            kind, memory = "bent" if bent else "linear", "all" if all_logs else "the last"
            print(f"{kind} rewards, a linear model of {memory} logs")
            courses = {
                name: [
                    run(rule, World.drawn(np.random.default_rng(seed), bent), seed,
                        options.generations, options.logs, all_logs)
                    for seed in range(options.seeds)
                ]
                for name, rule in RULES.items()
            }  # fmt: skip
            compared(courses)
            charts.append(drawn(f"Greedy reward: {kind}, {memory} logs", courses))
    if options.picture:
        try:
            print(f"wrote {Plot(tuple(charts)).save(options.picture)}")
        except UserError as error:
            parser.error(str(error))


if __name__ == "__main__":
    main()
