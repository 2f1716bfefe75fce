"""Computes mean and spread of a method's step over all groups of answers that could be drawn."""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from strop.auditing.bench import Bench, Groups, Uncountable
from strop.auditing.tree import Tree, Truth
from strop.method.algorithm import Algorithm
from strop.method.chains import generators
from strop.support.students_t import t_quantile

MOST_ROUNDS = 100  # in which curation may ask for more answers of a group
BLOCKS = 20  # number of blocks of drawn groups, over which intervals are computed
BY_ORDER = frozenset({"order_matters", "order_breaks_ties"})  # facts of parts


class Number(NamedTuple):
    """A value and half the width of its 95% interval; 0 where it is exact."""

    value: float
    within: float = 0.0


@dataclass(frozen=True)
class Audit:
    """The average effect of a step. All fields except `truth` follow the equations of `audit`."""

    truth: Truth
    exact: bool
    num_groups: int  # number of evaluated groups
    scale: Number
    bias: Number
    cosine: Number
    noise: Number
    success_change: Number
    entropy_change: Number
    ess: float
    no_signal: Number
    thrown_away: Number
    cut_scale: Number
    cut_bias: Number
    ratio: float
    token_bias: Number
    error: Number


@dataclass(frozen=True)
class Limits:
    """Limits on groups: up to `most` are enumerated; of more than that, `draws` are sampled."""

    most: int = 1500
    draws: int = 1000


def audit(
    algorithm: Algorithm,
    tree: Tree,
    theta: Tensor,
    *,
    group_size: int,
    behaviour: Tensor | None = None,
    teacher: Tensor | None = None,
    step: float = 0.1,
    seed: int = 0,
    limits: Limits = Limits(),
) -> Audit:
    """How a method's step compares with the true policy gradient, over everything it could draw.

    With d the move of the logits over the step size, J the expected reward and H the entropy:

        scale   = <E d, grad J> / |grad J|^2           how many times the true gradient it goes
        bias    = |E d - scale grad J| / |scale grad J|
        cosine  = <E d, grad J> / (|E d| |grad J|)
        noise   = sqrt(E |d - E d|^2) / |E d|
        error   = N E |d_N - E d|^2 / |E d|^2, d_N of N answers: see _error
        success_change, entropy_change = <grad J, E d>, <grad H, E d>, first order, per unit of step
        ess     = E_b[p / b]^2 / E_b[(p / b)^2], the share of the behaviour b's answers that count
        no_signal = P(d = 0); thrown_away = P(curation asks for other groups); others given not
        cut_scale, cut_bias: relative to the gradient of J under the rollout's top_p, top_k, min_p
        ratio   = E_b[p / b] of a token

    b is the answers' policy, cut by those rules; p the learner's policy: the whole one, or with
    sampling_mask=renormalise the one renormalised over what the rules left of b.

    A method that learns from a teacher, whose logits are then given, is compared with J = minus the
    divergence of the policy from it, over whole answers; token_bias is the bias relative to the
    gradient of the divergences at all tokens of given answers.

    There is one group of `group_size` answers for each prompt. If there are few enough groups, all
    are enumerated: as multisets with multinomial weights, or in every order if a part states that
    it may depend on the order of answers. Where curation asks for more answers of the groups, all
    ways to draw those follow each group. If there are too many, or if a step draws random numbers
    of its own, groups are sampled, and every number has a Student-t interval over blocks: see
    `_lengths` for those that are lengths. Raises Uncountable for a method whose step needs more
    than answers and rewards.
    """
    drawn_by = theta if behaviour is None else behaviour
    bench = Bench(algorithm, tree, theta, drawn_by, step, teacher)
    logp_PL = tree.logp_PL(bench.cut)
    ordered, sizes = bool(algorithm.facts() & BY_ORDER), [group_size] * tree.num_prompts
    blocks = _enumerated(bench, logp_PL, sizes, ordered, limits.most, seed)
    exact = bool(blocks)
    if not exact:
        blocks = _sampled(bench, logp_PL, sizes, limits.draws, seed)
    truth = tree.truth(theta, teacher)
    cut_slope = tree.success_slope(theta, bench.rules) if bench.rules and teacher is None else None
    numbers = _numbers(blocks, truth, cut_slope, exact)
    sums = _joined(blocks)
    answers = group_size + sums.more / sums.weight
    numbers["error"] = _error(numbers["noise"], answers, tree.num_prompts)
    ess, ratio = _weights(bench, theta)
    return Audit(truth=truth, exact=exact, num_groups=sums.groups, ess=ess, ratio=ratio, **numbers)


def _error(noise: Number, group_size: float, prompts: int) -> Number:
    """N E |d_N - E d|^2 / |E d|^2 = G (P noise^2 + P - 1). Here d_N is the mean over groups with N
    answers in total, G each on average; each group's prompt is drawn among the tree's P, which
    share no logits.
    """
    most = (noise.value + noise.within) ** 2
    return Number(
        group_size * (prompts * noise.value**2 + prompts - 1),
        group_size * prompts * (most - noise.value**2),
    )


def _weights(bench: Bench, theta: Tensor) -> tuple[float, float]:
    """Effective sample size of the drawn answers under the learner's policy, and the mean ratio."""
    p = theta.masked_fill(bench.cut == -math.inf, -math.inf) if bench.renormalises else theta
    drawn_PL = bench.tree.logp_PL(bench.cut)
    ratio_PL = torch.where(drawn_PL > -math.inf, bench.tree.logp_PL(p) - drawn_PL, 0)
    mean, square = ((drawn_PL + n * ratio_PL).exp().sum(1).mean() for n in (1, 2))
    return float(mean**2 / square), bench.tree.mean_ratio(p, bench.cut)


# All ways to draw so many answers to each prompt that are looked at, with their probabilities.
Ways = Callable[[Sequence[int]], Iterable[tuple[Groups, float]]]


class _Step(NamedTuple):
    """A step on given answers: its move, None where curation discarded them; its probability; how
    many answers curation asked for in addition, per prompt.
    """

    moved: Tensor | None
    p: float
    more: float


class _Sums(NamedTuple):
    """Sums over steps with their probabilities."""

    groups: int
    weight: float  # of kept groups
    thrown: float
    move: Tensor
    square: float
    silent: float
    more: float


class _TooMany(Exception):
    """Raised where not all groups stand for all steps."""


def _steps(
    bench: Bench, rounds: tuple[Groups, ...], p: float, seed: int, ways: Ways, more: float = 0.0
) -> Iterator[_Step]:
    """The steps on a group, with every way to draw the answers that curation asks for."""
    moved = bench.moved(rounds[0], seed, rounds[1:])
    if not isinstance(moved, tuple):
        yield _Step(moved, p, more)
        return
    if len(rounds) > MOST_ROUNDS:
        raise Uncountable(f"curation asks for more answers of a group in {MOST_ROUNDS} rounds")
    asked = sum(moved) / len(moved)
    for answers, chance in ways(moved):
        yield from _steps(bench, (*rounds, answers), p * chance, seed, ways, more + asked)


def _collect(bench: Bench, steps: Iterable[_Step]) -> _Sums:
    move, square, weight = torch.zeros_like(bench.theta), 0.0, 0.0
    thrown, silent, more, groups = 0.0, 0.0, 0.0, 0
    for step in steps:
        groups += 1
        if step.moved is None:
            thrown += step.p
            continue
        weight += step.p
        more += step.p * step.more
        move = move + step.p * step.moved
        size = float(step.moved.square().sum())
        square += step.p * size
        silent += step.p * (size == 0)
    return _Sums(groups, weight, thrown, move, square, silent, more)


def _enumerated(
    bench: Bench, logp_PL: Tensor, sizes: Sequence[int], ordered: bool, most: int, seed: int
) -> list[_Sums]:
    """One block of all groups; empty when there are more than `most`, or when a step draws random
    numbers of its own.
    """

    def ways(sizes: Sequence[int]) -> Iterable[tuple[Groups, float]]:
        if _num_groups(bench.tree, sizes, ordered) > most:
            raise _TooMany
        return _all_groups(logp_PL, sizes, ordered)

    def steps() -> Iterator[_Step]:
        every = (_steps(bench, (group,), p, seed, ways) for group, p in ways(sizes))
        for number, step in enumerate(itertools.chain.from_iterable(every), 1):
            if bench.drew or number > most:
                raise _TooMany
            yield step

    try:
        return [_collect(bench, steps())]
    except _TooMany:
        return []


def _sampled(
    bench: Bench, logp_PL: Tensor, sizes: Sequence[int], draws: int, seed: int
) -> list[_Sums]:
    """Blocks of drawn groups. Raises Uncountable where curation keeps groups of fewer than two."""
    drawn = list(_drawn_groups(logp_PL, sizes, draws, torch.Generator().manual_seed(seed)))
    rng = generators(seed, 0)("further", 0)

    def ways(sizes: Sequence[int]) -> Iterable[tuple[Groups, float]]:
        return _drawn_groups(logp_PL, sizes, 1, rng)

    each = [
        _steps(bench, (groups,), p, seed + number, ways) for number, (groups, p) in enumerate(drawn)
    ]
    per = max(1, len(drawn) // BLOCKS)
    found = [
        _collect(bench, itertools.chain.from_iterable(each[i : i + per]))
        for i in range(0, len(drawn), per)
    ]
    if sum(block.weight > 0 for block in found) < 2:  # an interval leaves one out
        kept = sum(block.weight for block in found)
        raise Uncountable(f"curation keeps {kept:g} of {len(drawn)} drawn groups: draw more")
    return found


def _joined(blocks: list[_Sums]) -> _Sums:
    columns = zip(*blocks, strict=True)
    return _Sums(*(sum(column[1:], column[0]) for column in columns))


def _numbers(
    blocks: list[_Sums], truth: Truth, cut_slope: Tensor | None, exact: bool
) -> dict[str, Number]:
    """The numbers of an Audit that come from the moves, with intervals unless they are exact."""
    whole = _summary(_joined(blocks), truth, cut_slope)
    if exact:
        return {name: Number(value) for name, value in whole.items()}
    within = _within(blocks, truth, cut_slope)
    slopes = {"bias": truth.success_slope, "token_bias": truth.token_slope, "cut_bias": cut_slope}
    return {
        **{name: Number(value, within[name]) for name, value in whole.items()},
        **_lengths(blocks, slopes, whole["scale"]),
    }


def _summary(sums: _Sums, truth: Truth, cut_slope: Tensor | None) -> dict[str, float]:
    """The values of those numbers."""
    if sums.weight == 0:
        raise Uncountable("curation requests other groups whatever is drawn")
    mean, slope = sums.move / sums.weight, truth.success_slope
    along, length = float((mean * slope).sum()), float(mean.norm())
    scale, bias = _beside(mean, slope)
    tokens = (math.nan,) * 2 if truth.token_slope is None else _beside(mean, truth.token_slope)
    cut_scale, cut_bias = (math.nan,) * 2 if cut_slope is None else _beside(mean, cut_slope)
    spread = math.sqrt(max(0.0, sums.square / sums.weight - length**2))
    return {
        "scale": scale,
        "bias": bias,
        "cut_scale": cut_scale,
        "cut_bias": cut_bias,
        "cosine": _over(along, length * float(slope.norm())),
        "noise": _over(spread, length),
        "success_change": along,
        "entropy_change": float((mean * truth.entropy_slope).sum()),
        "no_signal": sums.silent / sums.weight,
        "thrown_away": sums.thrown / (sums.thrown + sums.weight),
        "token_bias": tokens[1],
    }


def _beside(mean: Tensor, slope: Tensor) -> tuple[float, float]:
    """Scale and bias of the mean step relative to a true gradient."""
    length = float(slope.norm())
    scale = float((mean * slope).sum()) / length**2 if length else math.nan
    return scale, _over(float((mean - scale * slope).norm()), abs(scale) * length)


def _over(top: float, bottom: float) -> float:
    return top / bottom if bottom > 1e-12 else math.nan


def _left_out(blocks: list[_Sums]) -> list[_Sums]:
    """The sums of all blocks but one, for each of them."""
    return [_joined([b for b in blocks if b is not block]) for block in blocks]


def _within(blocks: list[_Sums], truth: Truth, cut_slope: Tensor | None) -> dict[str, float]:
    """Half-widths of Student-t intervals by the jackknife: blocks are left out in turn."""
    left = [_summary(each, truth, cut_slope) for each in _left_out(blocks)]
    n = len(left)
    found = {}
    for name in left[0]:
        values = torch.tensor([each[name] for each in left], dtype=torch.float64)
        deviation = math.sqrt((n - 1) / n * float((values - values.mean()).square().sum()))
        found[name] = t_quantile(0.975, n - 1) * deviation
    return found


def _lengths(
    blocks: list[_Sums], slopes: Mapping[str, Tensor | None], scale: float
) -> dict[str, Number]:
    """Noise, biases and cosine of drawn groups: numbers that contain the length of a mean.

    A mean of draws is longer than what it estimates, by the draws' noise. So the square of that
    noise is subtracted from its square. The width of an interval is the larger of its two sides.
    """
    sums = [_joined(blocks), *_left_out(blocks)]
    means = torch.stack([each.move / each.weight for each in sums])
    ends = {"noise": _noise(sums)}
    ends |= {name: _bias(means, slope) for name, slope in slopes.items() if slope is not None}
    longest, value, shortest = (1 / math.sqrt(1 + end**2) for end in ends["bias"])
    shortest = shortest or -longest  # where the scale may be 0, it may be negative
    found = {name: Number(x, max(x - low, high - x)) for name, (low, x, high) in ends.items()}
    within = max(longest - value, value - shortest)
    return {**found, "cosine": Number(math.copysign(value, scale), within)}


def _noise(sums: list[_Sums]) -> tuple[float, float, float]:
    """The noise between the ends of its interval, infinite where the mean may be 0; NaN where it
    seems to be. sums: of all blocks, then with one left out.
    """
    signal = torch.tensor([_signal(each) for each in sums], dtype=torch.float64)
    if signal.isnan().any():
        return 0.0, math.nan, math.inf
    n = len(sums) - 1
    within = t_quantile(0.975, n - 1) * float(_deviations(signal).norm())
    found = float(signal[0])
    low, value, high = (
        1 / math.sqrt(x) if x > 0 else math.inf for x in (found + within, found, found - within)
    )
    return low, value if value < math.inf else math.nan, high


def _signal(sums: _Sums) -> float:
    """|E d|^2 / E |d - E d|^2, the former from pairs of different draws."""
    pairs = sums.weight * (sums.weight - 1)
    if not pairs or not sums.square:  # of draws that all move nothing
        return math.nan
    length = (float(sums.move.square().sum()) - sums.square) / pairs
    return length / max(sums.square / sums.weight - length, 1e-12 * abs(length))


def _bias(means: Tensor, slope: Tensor) -> tuple[float, float, float]:
    """The bias between the ends of its interval, infinite where the scale may be 0. means: the mean
    move of all blocks, then with one left out.

    b: a mean's part across the slope over its part along it, with covariance S, u its direction.
    Then |b|^2 - tr S estimates the square of the bias, and its own variance is 4 |b|^2 u S u + 2 tr
    S^2: the interval adds the deviations of both terms, so that it holds for any bias, 0 too.
    """
    axis = slope / slope.norm()
    along = (means * axis).sum((1, 2))
    if not abs(float(along[0])) > 1e-12:
        return 0.0, math.nan, math.inf
    across = (means / along[:, None, None] - axis).flatten(1)
    away, length = _deviations(across), float(across[0].norm())
    covariance, t = away @ away.T, t_quantile(0.975, len(means) - 2)
    within = t * float((away @ across[0]).norm()) / length if length else 0.0
    alone = t * math.sqrt(2 * float(covariance.square().sum()))
    value = math.sqrt(max(0.0, length**2 - float(covariance.trace())))
    doubt = (t * float(_deviations(along).norm()) / float(along[0])) ** 2  # by Fieller's theorem
    low = math.sqrt(max(0.0, max(0.0, value - within) ** 2 - alone))
    high = math.sqrt((value + within) ** 2 + alone)
    return low, value, high / (1 - doubt) if doubt < 1 else math.inf


def _deviations(values: Tensor) -> Tensor:
    """Of values with one block left out each, after the one of all: their deviations, whose squares
    add up to the variance by the jackknife.
    """
    left = values[1:]
    return (left - left.mean(0)) * math.sqrt(1 - 1 / len(left))


def _num_groups(tree: Tree, sizes: Sequence[int], ordered: bool) -> int:
    num = len(tree.paths)
    return math.prod(num**size if ordered else math.comb(num + size - 1, size) for size in sizes)


def _all_groups(
    logp_PL: Tensor, sizes: Sequence[int], ordered: bool = False
) -> Iterator[tuple[Groups, float]]:
    """Every group of answers for each prompt, in order or as a multiset, with its probability."""
    ways = []
    for logp_L, size in zip(logp_PL.tolist(), sizes, strict=True):
        numbers, found = range(len(logp_L)), []
        groups: Iterable[tuple[int, ...]] = itertools.combinations_with_replacement(numbers, size)
        for group in itertools.product(numbers, repeat=size) if ordered else groups:
            logp = sum(logp_L[number] for number in group)
            if not ordered:
                logp += math.lgamma(size + 1)
                logp -= sum(math.lgamma(group.count(number) + 1) for number in set(group))
            if logp > -math.inf:  # otherwise it is never drawn
                found.append((group, math.exp(logp)))
        ways.append(found)
    for chosen in itertools.product(*ways):
        yield [group for group, _ in chosen], math.prod(p for _, p in chosen)


def _drawn_groups(
    logp_PL: Tensor, sizes: Sequence[int], count: int, rng: torch.Generator
) -> Iterator[tuple[Groups, float]]:
    """`count` samples of a group for each prompt, each with weight 1."""
    most = max(sizes)
    for _ in range(count):
        drawn_PG = torch.multinomial(logp_PL.exp(), most, True, generator=rng).tolist()
        yield [group[:size] for group, size in zip(drawn_PG, sizes, strict=True)], 1.0
