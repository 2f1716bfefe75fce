"""Estimates the costs of a run's stages from its metrics.

Slow steps do not count, as long as other work on the machine slowed fewer than half of them. If the
engine measured its passes, each cost is taken from where it arises:

    seconds of decode steps = a steps + b rows + c tokens in their caches
    seconds of prefill      = d times + f tokens
    seconds of an answer    = all else of generating / answers

Otherwise all costs follow from the seconds of whole rollouts:

    seconds of rollout = a ticks + b tokens drawn + c tokens seen + f tokens read

ticks: decode steps until the last answer ended; tokens seen: tokens in the caches, summed over all
decode steps. f is then the cost of a forward pass: of the refresh, else a third of an update.

    seconds of refresh and update = u tokens + a constant
"""

import itertools
from collections.abc import Sequence

import numpy as np

from strop.engines.base import Passes, Sums
from strop.planning.course import Floats, Speed, begins
from strop.planning.recorded import COLLECTING, Recorded
from strop.planning.work import Costs
from strop.support.errors import UserError

SCATTER = 0.05  # minimum relative noise of the seconds
APART = 1 / 3  # prior standard deviation of a term's share of the seconds


def likeliest(terms: Floats, seconds: Floats, shares: Floats) -> tuple[Floats, Floats, Floats]:
    """The cost of each term: seconds = terms @ costs, none negative; see `likeliest_of_sums`.

    terms: [N, K]; the noise is relative to the seconds.
    """
    relative = np.column_stack([terms / seconds[:, None], np.ones(len(seconds))])
    costs, found, deviations = likeliest_of_sums(relative.T @ relative, len(seconds), shares)
    return costs * seconds.sum() / (terms @ costs).sum(), found, deviations


def likeliest_of_sums(
    products: Floats, number: float, shares: Floats, sums: Floats | None = None
) -> tuple[Floats, Floats, Floats]:
    """The same from sums of the pairwise products of K terms and, as the last one, the seconds.

    products: [K + 1, K + 1]; number: how many observations are summed. sums: [K + 1], the sum of
    each term; by default those for seconds that are all 1. shares: [K], the prior share of the
    seconds for each term, give or take APART. Returns the costs, the terms' shares and their
    standard deviations; the costs reproduce the measured total of seconds.
    """
    *whole, seconds = products[-1] if sums is None else sums
    used = np.array(whole) > 0
    scale = np.ones(len(whole))
    scale[used] = seconds / np.array(whole)[used]
    square, answer = products[:-1, :-1] * np.outer(scale, scale), products[:-1, -1] * scale
    values, axes = np.linalg.eigh(square)
    kept = values > values.max() * 1e-12
    root = np.sqrt(values[kept])
    ours, wanted = root[:, None] * axes.T[kept], axes.T[kept] @ answer / root
    found: Floats = np.zeros(len(whole))
    system: Floats = ours
    scatter = least = SCATTER * seconds / number
    for _ in range(2):
        system = np.vstack([ours / scatter, np.eye(len(whole)) / APART])
        found = _not_negative(system, np.concatenate([wanted / scatter, shares / APART]))
        off = products[-1, -1] - 2 * found @ answer + found @ square @ found
        scatter = max(least, float(np.sqrt(max(off, 0.0) / number)))
    costs = found * scale
    deviations = np.sqrt(np.linalg.inv(system.T @ system).diagonal())
    return costs * seconds / (np.array(whole) @ costs), found / found.sum(), deviations


def typical(seconds: Floats, expected: Floats) -> float:
    """The ratio of seconds to expected ones: the median, weighted by the expected ones.

    Steps that other work on the machine slowed do not affect it, up to half of all.
    """
    known = expected > 0
    ratio, weight = seconds[known] / expected[known], expected[known]
    order = np.argsort(ratio)
    before = np.cumsum(weight[order]) - weight[order] / 2
    return float(np.interp(weight.sum() / 2, before, ratio[order]))


def _not_negative(system: Floats, wanted: Floats) -> Floats:
    """Least squares without negative numbers: the best solution over all subsets set to 0."""
    best, least = np.zeros(system.shape[1]), np.inf
    for size in range(1, system.shape[1] + 1):
        for chosen in map(list, itertools.combinations(range(system.shape[1]), size)):
            found = np.linalg.lstsq(system[:, chosen], wanted, rcond=None)[0]
            off = float(((system[:, chosen] @ found - wanted) ** 2).sum())
            if (found >= 0).all() and off < least:
                best, least = np.zeros(system.shape[1]), off
                best[chosen] = found
    return best


FORWARD = 1 / 3  # share of a forward pass in an update
SHARES = np.full(3, 1 / 3)  # prior shares of a decode step's terms
BESIDE = "timing_s/waiting"  # present when another process drew and graded


def costs_of(runs: Sequence[Recorded]) -> tuple[Costs, Floats, Floats]:
    """Costs, and the shares of a decode step's terms with their deviations.

    Raises UserError when the number of decode steps is unknown.
    """
    measuring = [run for run in runs if run.measured]
    speed, shares, unsure = _by_passes(measuring) if measuring else _by_rollouts(runs)
    steps = [step for run in runs for step in run.steps]
    trained = np.array([[s["tokens"], 1.0] for s in steps])
    seconds = np.array([s["timing_s/update"] + s.get("timing_s/refresh", 0.0) for s in steps])
    found, _, _ = likeliest(trained, seconds, np.array([1.0, 0.0]))
    token, constant = found * typical(seconds, trained @ found)
    inside = seconds + _column(runs, BESIDE)
    for name in ("timing_s/rollout", "timing_s/reward"):
        inside += np.array([0.0 if BESIDE in each else each.get(name, 0.0) for each in steps])
    rest = max(float(np.median(_column(runs, "step_time") - inside)), 0.0)
    reward = typical(_column(runs, "timing_s/reward"), _column(runs, "data/rollouts_sampled"))
    return Costs(speed, reward, float(token), float(constant) + rest), shares, unsure


def _total(runs: Sequence[Recorded], name: str) -> float:
    return sum(run.total(name) for run in runs)


def _column(runs: Sequence[Recorded], name: str) -> Floats:
    """A metric's value at every step; 0 where it is missing."""
    return np.array([step.get(name, 0.0) for run in runs for step in run.steps])


def _by_passes(runs: Sequence[Recorded]) -> tuple[Speed, Floats, Floats]:
    """From the engines' own measurements: speed, shares of a decode step and their deviations."""
    passes = Passes()
    (step, row, cached), shares, unsure = _by_sums(runs, "decode", passes.decode, SHARES)
    (begin, read), _, _ = _by_sums(runs, "prefill", passes.prefill, np.full(2, 1 / 2))
    spent = [_column([run], COLLECTING if run.apart else "timing_s/rollout") for run in runs]
    inside = sum(_column(runs, f"perf/{kind}/seconds") for kind in ("decode", "prefill"))
    answers = np.concatenate([_answers(run) for run in runs])
    answer = max(typical(np.concatenate(spent) - inside, answers), 0.0)
    speed = Speed(float(step), float(row), float(cached), float(read), float(begin), answer)
    return speed, shares, unsure


def _answers(run: Recorded) -> Floats:
    """The number of answers that its engine drew in the seconds of each step. When they may belong
    to other steps, the step's tokens are divided by the mean tokens of an answer.
    """
    answers = _column([run], "data/rollouts_sampled")
    tokens = _column([run], "perf/decode/rows")
    return tokens * answers.sum() / tokens.sum() if run.apart else answers


def _by_sums(
    runs: Sequence[Recorded], kind: str, sums: Sums, shares: Floats
) -> tuple[Floats, Floats, Floats]:
    """The costs of the terms of one kind of pass."""
    size = len(sums.terms)
    products = np.zeros((size, size))
    values = [_total(runs, f"perf/{kind}/{name}") for name in sums.as_dict()]
    products[np.triu_indices(size)] = values
    products = np.triu(products) + np.triu(products, 1).T
    if not products[0, 0]:  # prompts have a single token, which is decoded: nothing to prefill
        return np.zeros(size - 1), shares, shares
    costs, found, unsure = likeliest_of_sums(products, products[0, 0], shares, products[0])
    sizes = [_column(runs, f"perf/{kind}/{name}") for name in sums.terms]
    return costs * typical(sizes[-1], costs @ sizes[:-1]), found, unsure


def refreshed(runs: Sequence[Recorded]) -> bool:
    """Whether a forward pass came before updates; without one the stage still takes some time."""
    update = _total(runs, "timing_s/update")
    return _total(runs, "timing_s/refresh") >= FORWARD * update / 10


def _by_rollouts(runs: Sequence[Recorded]) -> tuple[Speed, Floats, Floats]:
    """The same from the seconds of whole rollouts."""
    tokens = _total(runs, "tokens")
    forward = FORWARD * _total(runs, "timing_s/update")
    read = (_total(runs, "timing_s/refresh") if refreshed(runs) else forward) / tokens
    terms = np.array([row for run in runs for row in _decoded(run, read)])
    if not len(terms):
        raise UserError(
            f"{runs[0].folder} has recorded no rollouts and draws more of them than the engine has "
            "slots, so its decode steps are unknown: train with training.rollouts_every above 0"
        )
    (step, row, cached), shares, unsure = likeliest(terms[:, 1:], terms[:, 0], SHARES)
    return Speed(float(step), float(row), float(cached), read), shares, unsure


def _decoded(run: Recorded, read: float) -> list[tuple[float, ...]]:
    """Seconds of decode steps, ticks, tokens drawn and tokens seen, for each step that has them."""
    groups = [group for each in run.groups.values() for group in each]
    known = np.concatenate(groups).astype(float) if groups else np.ones(1)
    uneven = float((known**2).mean() / known.mean() ** 2)
    found: list[tuple[float, ...]] = []
    for step in run.steps:
        count, mean = step["data/rollouts_sampled"], step["completions/mean_length"]
        if step["step"] in run.groups:
            own = np.concatenate(run.groups[int(step["step"])])
            ticks = int((begins(np.zeros(len(own), np.int64), own, run.slots) + own).max())
            mean, square = own.mean(), (own.astype(float) ** 2).mean()
        elif count <= run.slots:
            ticks, square = int(step["completions/max_length"]), uneven * mean**2
        else:
            continue
        seen = run.prompt * mean + (square - mean) / 2
        seconds = step["timing_s/rollout"] - read * count * run.prompt / run.size
        found.append(
            (max(seconds, step["timing_s/rollout"] / 10), ticks, count * mean, count * seen)
        )
    return found
