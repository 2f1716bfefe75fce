"""Tournaments inside a group: generators that yield the pairs of a round and receive scores."""

from collections.abc import Callable, Generator, Sequence
from typing import TypeAlias

Pair: TypeAlias = tuple[int, int]
# Yields the pairs of a round, is sent the two scores of each, returns rewards in [0, 1].
Tournament: TypeAlias = Generator[list[Pair], list[tuple[float, float]], list[float]]


def against_anchor(num: int) -> Generator[list[Pair], list[tuple[float, float]], list[list[float]]]:
    """Everyone plays player 0; returns the list of scores of each player."""
    pairs = [(0, other) for other in range(1, num)]
    scores: list[list[float]] = [[] for _ in range(num)]
    _note(scores, pairs, (yield pairs))
    return scores


def anchor(num: int, released: bool = False) -> Tournament:
    """Rank by the score against player 0, whose own is its mean; `released`: ties share a place."""
    scores = yield from against_anchor(num)
    if released:
        return _by_shared_place([_mean(own) for own in scores])
    return _by_place(_seeded(scores))


def elimination(num: int, released: bool = False) -> Tournament:
    """Seeds from the anchor's round, then single elimination.

    Unless their number is a power of two, the best seeds have byes; `released`: empty places of the
    bracket are left out and the rest are paired in order; an odd one at the end has the bye and
    comes first in the next round.
    """
    scores = yield from against_anchor(num)
    seeds = _seeded(scores)
    slots = [seeds[s] if s < num else None for s in _bracket(num)]
    if released:
        slots = [player for player in slots if player is not None]
    out: list[list[int]] = []
    while len(slots) > 1:
        winners, losers, pairs, places = _byes(slots, released)
        outcomes = yield pairs
        _note(scores, pairs, outcomes)
        for place, (one, other), (first, second) in zip(places, pairs, outcomes, strict=True):
            wins = first >= second  # a tie goes to the first
            winners[place] = one if wins else other
            losers.append(other if wins else one)
        out.append(sorted(losers, key=lambda player: -_mean(scores[player])))
        slots = winners
    champion = [player for player in slots if player is not None]
    return _by_place([*champion, *(player for losers in reversed(out) for player in losers)])


def round_robin(num: int, released: bool = False) -> Tournament:
    """Everyone plays everyone: a win is 1, a tie 1/2; equal sums share the better place."""
    pairs = [(i, j) for i in range(num) for j in range(i + 1, num)]
    wins = [0.0] * num
    for (one, other), (first, second) in zip(pairs, (yield pairs), strict=True):
        wins[one] += (first > second) + 0.5 * (first == second)
        wins[other] += (second > first) + 0.5 * (first == second)
    return _by_shared_place(wins)


SCHEMES: dict[str, Callable[[int, bool], Tournament]] = {
    "elimination": elimination, "anchor": anchor, "round_robin": round_robin,
}  # fmt: skip


def _note(
    scores: list[list[float]], pairs: Sequence[Pair], outcomes: Sequence[tuple[float, float]]
) -> None:
    for players, pair_scores in zip(pairs, outcomes, strict=True):
        for player, score in zip(players, pair_scores, strict=True):
            scores[player].append(score)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _seeded(scores: Sequence[Sequence[float]]) -> list[int]:
    """Players by their mean score, best first; ties keep the players' order."""
    return sorted(range(len(scores)), key=lambda player: -_mean(scores[player]))


def _bracket(num: int) -> list[int]:
    """Seeds (from 0) in the order of a bracket of the next power of two: 8 -> 0 7 3 4 1 6 2 5."""
    order = [0]
    while len(order) < num:
        size = 2 * len(order)
        order = [seed for s in order for seed in (s, size - 1 - s)]
    return order


def _byes(
    slots: Sequence[int | None], consecutive: bool
) -> tuple[list[int | None], list[int], list[Pair], list[int]]:
    """The next round's places with byes filled in, no losers yet, the pairs and their places."""
    rest: list[int | None] = list(slots)
    winners: list[int | None] = []
    if consecutive and len(rest) % 2:
        winners.append(rest.pop())
    pairs, places = [], []
    for one, other in zip(rest[::2], rest[1::2], strict=True):
        if one is not None and other is not None:
            pairs.append((one, other))
            places.append(len(winners))
            winners.append(None)
        else:
            winners.append(other if one is None else one)
    return winners, [], pairs, places


def _by_shared_place(values: Sequence[float]) -> list[float]:
    """(worst place - place) / (worst place - 1), equal values in the better place; all equal: 0."""
    place = [1 + sum(other > own for other in values) for own in values]
    worst = max(place)
    return [(worst - p) / (worst - 1) if worst > 1 else 0.0 for p in place]


def _by_place(players: Sequence[int]) -> list[float]:
    """1 - place / (N - 1) for each player, in the players' order."""
    rewards = [0.0] * len(players)
    for place, player in enumerate(players):
        rewards[player] = 1 - place / (len(players) - 1)
    return rewards
