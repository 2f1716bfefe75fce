"""Which layout for so many workers, and of an asynchronous one how many generate."""

from collections.abc import Sequence

from strop.planning.simulate import Outcome, simulate
from strop.planning.work import Costs, Layout, Work

NEAR = 2  # workers on both sides of the balance that are tried as well


def layouts(
    costs: Costs, work: Work, num_workers: int, staleness: Sequence[int], spare: float,
    apart: Costs | None = None,
) -> list[Outcome]:  # fmt: skip
    """Every layout of so many workers, the asynchronous ones with their best division.

    apart: costs of asynchronous ones, where they have others.
    """
    found = [
        simulate(costs, work, Layout(num_workers, num_workers, spare=more))
        for more in dict.fromkeys((0.0, spare))
    ]
    if num_workers > 1:
        found += [
            divided(apart or costs, work, num_workers, bound, more)
            for bound in staleness
            for more in dict.fromkeys((0.0, spare))
        ]
    return found


def divided(
    costs: Costs, work: Work, num_workers: int, staleness: int, spare: float = 0.0
) -> Outcome:
    """The asynchronous layout with the highest throughput.

    More engines let the trainers wait less and the engines more: the balance is between two
    neighbours, found by halving. Those around it are tried too.
    """
    known: dict[int, Outcome] = {}

    def with_engines(count: int) -> Outcome:
        if count not in known:
            layout = Layout(count, num_workers - count, False, staleness, spare)
            known[count] = simulate(costs, work, layout)
        return known[count]

    few, many = 1, num_workers - 1
    while many - few > 1:
        middle = (few + many) // 2
        engines_wait, trainers_wait = with_engines(middle).waits
        few, many = (middle, many) if trainers_wait > engines_wait else (few, middle)
    for count in range(max(few - NEAR, 1), min(many + NEAR, num_workers - 1) + 1):
        with_engines(count)
    return max(known.values(), key=lambda outcome: outcome.tokens_per_second)


def fastest(outcomes: Sequence[Outcome]) -> Outcome:
    """The one with the highest throughput; of equals the first."""
    return max(outcomes, key=lambda outcome: outcome.tokens_per_second)
