"""Four lessons about gradients and estimates, each exact or simulated in seconds.

    strop labs estimators              # all
    strop labs estimators cut_ends

cut_ends        what an answer that was cut off is worth: nothing, what a critic says, or no sample
shifted         an importance weighted estimate, moved so that it has a floor
differentiable  a gradient through the simulator beside one by likelihoods
stock           what was earned so far in the prompt, where the worst outcomes count

After arXiv 2402.12527 (edges of reach), 2301.12942 (refined regret), 2306.11246 (differentiable
policy optimisation) and 2501.13028 (stock-augmented returns); docs/LABS.md says what each showed.

Takes: a quarter of a minute.
"""

import argparse
import itertools
import math
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

STOP = 2  # of the tokens 0, 1 and 2


class Row(NamedTuple):
    """A line of a table: what it is of, and its numbers."""

    name: str
    numbers: tuple[float, ...]


class Lesson(NamedTuple):
    """A table with the names of its columns."""

    columns: tuple[str, ...]
    rows: tuple[Row, ...]

    def __str__(self) -> str:
        head = f"{'':44}" + "".join(f"{name:>16}" for name in self.columns)
        lines = [f"{r.name:44}" + "".join(f"{x:16.3f}" for x in r.numbers) for r in self.rows]
        return "\n".join([head, *lines])

    def __getitem__(self, name: str) -> tuple[float, ...]:
        return next(row.numbers for row in self.rows if row.name == name)


# ---- answers that are cut off


def cut_ends(seed: int = 0, longest: int = 4, limit: int = 2) -> Lesson:
    """Expected gradients of a policy whose answers are cut after `limit` tokens, beside the exact.

    Answers are all sequences of tokens 0 and 1 with a stop; each has a reward, the longer ones a
    larger one, and a node has logits of its own. A cut answer would have gone on. Columns: cosine
    with, and distance from, the gradient of the reward without a limit (shares of its length), and
    the same for the reward of what is finished inside the limit.
    """
    torch.manual_seed(seed)
    inner = [n for d in range(longest) for n in itertools.product((0, 1), repeat=d)]
    logits = {node: torch.randn(3, dtype=torch.float64) for node in inner}
    ends = [n for d in range(longest + 1) for n in itertools.product((0, 1), repeat=d)]
    rewards = {end: torch.rand((), dtype=torch.float64).item() + 0.3 * len(end) for end in ends}
    trained = [node for node in inner if len(node) < limit]
    for node in trained:
        logits[node].requires_grad_()

    def value(node: tuple[int, ...], last: Callable[[tuple[int, ...]], float | Tensor],
              depth: int) -> float | Tensor:  # fmt: skip
        """The expected reward from a node on; `last` is what a node at `depth` is worth."""
        if len(node) == depth:
            return last(node)
        p = logits[node].softmax(0)
        further = [p[token] * value((*node, token), last, depth) for token in (0, 1)]
        return p[STOP] * rewards[node] + further[0] + further[1]

    def gradient(objective: float | Tensor) -> Tensor:
        assert isinstance(objective, Tensor)
        return torch.cat(torch.autograd.grad(objective, [logits[n] for n in trained]))

    def beyond(node: tuple[int, ...]) -> float:
        """What the answer would be worth if it went on."""
        return float(value(node, lambda leaf: rewards[leaf], longest))

    whole = gradient(value((), lambda leaf: rewards[leaf], longest))
    finished = gradient(value((), lambda node: 0.0, limit))
    stops = value((), lambda node: 0.0, limit)
    share = _chance_of_stop(logits, limit)
    mean = float(torch.as_tensor(stops / share).detach())  # reward of what is finished
    ways = {
        "worth nothing": finished,
        "worth what the true critic says": gradient(value((), beyond, limit)),
        # A critic that learns from finished answers alone keeps its start at ends it never leaves.
        "worth an untrained critic's 0.5": gradient(value((), lambda node: 0.5, limit)),
        "worth an untrained critic's 3": gradient(value((), lambda node: 3.0, limit)),
        "dropped, baseline of what is finished": finished - mean * gradient(share),
    }
    rows = [Row(name, (*_beside(found, whole), *_beside(found, finished)))
            for name, found in ways.items()]  # fmt: skip
    return Lesson(("cos no limit", "bias no limit", "cos finished", "bias finished"), tuple(rows))


def _chance_of_stop(logits: dict[tuple[int, ...], Tensor], limit: int) -> Tensor:
    """The chance that an answer ends by itself inside the limit."""

    def chance(node: tuple[int, ...]) -> Tensor | float:
        if len(node) == limit:
            return 0.0
        p = logits[node].softmax(0)
        return p[STOP] + p[0] * chance((*node, 0)) + p[1] * chance((*node, 1))

    found = chance(())
    assert isinstance(found, Tensor)
    return found


def _beside(found: Tensor, exact: Tensor) -> tuple[float, float]:
    """Cosine with the exact gradient, and the distance from it as a share of its length."""
    cosine = float(found @ exact / (found.norm() * exact.norm()))
    return cosine, float((found - exact).norm() / exact.norm())


# ---- estimates with a floor


def shifted(seed: int = 0, num_problems: int = 500, num_arms: int = 6) -> Lesson:
    """An arm's loss estimated from another arm's, plain and moved by its own negative part.

        plain x L,   moved x L - min(x, 0) + E[min(x, 0)],   x = phi(a)' S^+ phi(b), b behaviour's

    L in [0, 1] is linear in two features and a constant; one arm is drawn with 0.9. Exact over the
    arms that can be drawn, for every arm of random problems. Columns: largest error of the mean,
    medians of the least value and of the variance, share of arms whose variance is the smaller.
    """
    rng = np.random.default_rng(seed)
    chance = np.array([0.9] + [0.1 / (num_arms - 1)] * (num_arms - 1))
    found: dict[str, list[tuple[float, float, float]]] = {"plain": [], "moved": []}
    for _ in range(num_problems):
        features = rng.standard_normal((num_arms, 2))
        loss = features @ rng.standard_normal(2)
        loss = (loss - loss.min()) / (loss.max() - loss.min())
        features = np.hstack([features, np.ones((num_arms, 1))])
        x = features @ np.linalg.pinv((features * chance[:, None]).T @ features) @ features.T
        plain = x * loss  # [arm judged, arm drawn]
        moved = plain - np.minimum(x, 0) + (np.minimum(x, 0) @ chance)[:, None]
        for name, values in (("plain", plain), ("moved", moved)):
            mean = values @ chance
            variance = (values - mean[:, None]) ** 2 @ chance
            found[name] += zip(np.abs(mean - loss), values.min(1), variance, strict=True)
    tables = {name: np.array(rows) for name, rows in found.items()}
    smaller = tables["moved"][:, 2] < tables["plain"][:, 2]
    rows = [
        Row(name, (float(table[:, 0].max()), *np.median(table[:, 1:], axis=0).tolist(),
                   float(np.mean(smaller if name == "moved" else ~smaller))))
        for name, table in tables.items()
    ]  # fmt: skip
    return Lesson(("largest error", "least", "variance", "smaller in"), tuple(rows))


# ---- a simulator with a derivative


def differentiable(seed: int = 0, num_traces: int = 20000) -> Lesson:
    """The gradient of an inventory's cost by its order-up-to level, in two ways.

    Each of 20 periods orders up to the level plus a normal draw of deviation 1, with a lead time of
    2, a demand of Poisson(5), holding 1 a unit and lacking 9. Pathwise: through the simulated
    costs. Likelihood: (cost to come - its mean) times the score of the order. Columns: mean, its
    standard error, and the variance as a multiple of the pathwise one.
    """
    rng = np.random.default_rng(seed)
    periods, lead, level, price = 20, 2, 17.0, 9.0
    demand = rng.poisson(5.0, (num_traces, periods)).astype(float)
    noise = rng.standard_normal((num_traces, periods))
    position = np.full(num_traces, level)  # on hand and on order, after the period's order
    slope = np.zeros(num_traces)  # of the position by the level
    costs, slopes, before = [], [], []
    for t in range(periods):
        wanted = level + noise[:, t]
        orders = wanted > position  # nothing is sent back
        position, slope = np.where(orders, wanted, position), np.where(orders, 1.0, slope)
        before.append((position, slope))
        past = demand[:, max(0, t - lead) : t + 1].sum(1) - demand[:, t]
        then, by = before[max(0, t - lead)]  # what was ordered up to then has come
        on_hand = then - past - demand[:, t]
        costs.append(np.where(on_hand > 0, on_hand, -price * on_hand))
        slopes.append(np.where(on_hand > 0, 1.0, -price) * by)
        position = position - demand[:, t]
    cost = np.stack(costs, 1)
    pathwise = np.stack(slopes, 1).mean(1)
    to_come = cost[:, ::-1].cumsum(1)[:, ::-1] / periods
    likelihood = ((to_come - to_come.mean(0)) * noise).sum(1)  # score of N(level, 1)
    ways = {"through the simulator": pathwise, "by likelihoods, centred": likelihood}
    rows = [
        Row(name, (float(x.mean()), float(x.std() / math.sqrt(num_traces)),
                   float(x.var() / pathwise.var())))
        for name, x in ways.items()
    ]  # fmt: skip
    return Lesson(("gradient", "error", "variance"), tuple(rows))


# ---- the worst outcomes


def cvar(values: Sequence[float], chances: Tensor, tail: float = 0.5) -> Tensor:
    """The mean of the worst share of outcomes."""
    left, total = torch.tensor(tail, dtype=chances.dtype), torch.zeros((), dtype=chances.dtype)
    for place in np.argsort(values, kind="stable"):
        taken = torch.minimum(chances[place], left)
        total, left = total + taken * values[place], left - taken
    return total / tail


def stock(steps: int = 400, seed: int = 0) -> Lesson:
    """Two choices between 0.5 for sure and 5 (with 0.7) or -2; the mean of the worse half counts.

    A policy learns by the exact gradient of that mean, from ten starts; its second choice sees the
    first outcome (the stock) or not. Columns: the best and the mean over the starts, and the best
    plan by enumeration.
    """
    rows = []
    for name, seen in (("without the stock in its prompt", False), ("with it", True)):
        found = [_learnt(seen, steps, seed + start) for start in range(10)]
        rows.append(Row(name, (max(found), sum(found) / len(found), _best_plan(seen))))
    return Lesson(("best learnt", "mean learnt", "best plan"), tuple(rows))


OUTCOMES = ((5.0, 0.7), (-2.0, 0.3))
SAFE = 0.5


def _outcomes(first: Tensor, second: Tensor) -> tuple[list[float], Tensor]:
    """Returns and chances, given the chance of the risky choice at first, and then after 5, -2 and
    0.5, float [3].
    """
    values, chances = list[float](), list[Tensor]()
    branches = [(value, first * p) for value, p in OUTCOMES] + [(SAFE, 1 - first)]
    for place, (value, chance) in enumerate(branches):
        for more, p in OUTCOMES:
            values.append(value + more)
            chances.append(chance * second[place] * p)
        values.append(value + SAFE)
        chances.append(chance * (1 - second[place]))
    return values, torch.stack(chances)


def _learnt(seen: bool, steps: int, seed: int) -> float:
    torch.manual_seed(seed)
    logits = torch.randn(4 if seen else 2, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.Adam([logits], lr=0.1)
    for _ in range(steps):
        p = logits.sigmoid()
        objective = cvar(*_outcomes(p[0], p[1:] if seen else p[1].expand(3)))
        optimiser.zero_grad()
        (-objective).backward()
        optimiser.step()
    return float(objective.detach())


def _best_plan(seen: bool) -> float:
    best = -math.inf
    for choices in itertools.product((0.0, 1.0), repeat=4 if seen else 2):
        p = torch.tensor(choices, dtype=torch.float64)
        best = max(best, float(cvar(*_outcomes(p[0], p[1:] if seen else p[1].expand(3)))))
    return best


LESSONS: dict[str, Callable[[], Lesson]] = {
    "cut_ends": cut_ends,
    "shifted": shifted,
    "differentiable": differentiable,
    "stock": stock,
}


def main(words: Sequence[str] | None = None) -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("lesson", nargs="*", help=f"of {', '.join(LESSONS)}; default: all")
    chosen = parser.parse_args(words).lesson or [*LESSONS]
    for name in chosen:
        if name not in LESSONS:
            print(f"error: no lesson {name}: give some of {', '.join(LESSONS)}", file=sys.stderr)
            return 2
    for name in chosen:
        print(f"\n{name}\n{LESSONS[name]()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
