"""A tree that grows by one token a step on all branches, and tests of how alike two are."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from strop.engines.base import Answer, Ended, Event, Request

NAN = float("nan")


class Forks(NamedTuple):
    """Which of the likeliest tokens begin a branch: probabilities before temperature and cuts."""

    num_candidates: int
    least: float  # a candidate's probability is above it
    within: float  # and below the likeliest one's by less than this


class Similarity(NamedTuple):
    """Bounds from which two windows of tokens are too alike."""

    edits: float  # share of tokens to change, less is alike; 0: no test
    suffix: float  # longest end of one in the other, more is alike; 1: no test
    common: float  # tokens in common and in order, more is alike; 1: no test

    def alike(self, a: Sequence[int], b: Sequence[int]) -> bool:
        """Whether windows of equal length are too alike by one of the tests."""
        return (
            edit_distance(a, b) / len(a) < self.edits
            or (self.suffix < 1 and suffix_match(a, b) > self.suffix)
            or (self.common < 1 and longest_common(a, b) / len(a) > self.common)
        )


def edit_distance(a: Sequence[int], b: Sequence[int]) -> int:
    """Fewest insertions, removals and replacements that turn one into the other (Levenshtein)."""
    before = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        row = [i]
        for j, y in enumerate(b, 1):
            row.append(min(row[-1] + 1, before[j] + 1, before[j - 1] + (x != y)))
        before = row
    return before[-1]


def longest_common(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the longest common subsequence; of equal lengths its share is ROUGE-L."""
    before = [0] * (len(b) + 1)
    for x in a:
        row = [0]
        for j, y in enumerate(b, 1):
            row.append(before[j - 1] + 1 if x == y else max(row[-1], before[j]))
        before = row
    return before[-1]


def suffix_match(a: Sequence[int], b: Sequence[int]) -> float:
    """Longest end of one that stands anywhere in the other, as a share of their length."""

    def longest(end: Sequence[int], text: Sequence[int]) -> int:
        return max(
            (size for size in range(len(end) + 1) for k in range(len(text) - size + 1)
             if list(end[len(end) - size :]) == list(text[k : k + size])),
        )  # fmt: skip

    return max(longest(a, b), longest(b, a)) / len(a)


@dataclass(eq=False)
class Branch:
    """A path down the tree: the events of all its tokens, one each, its parent's first."""

    prompt: int  # tokens of it
    parent: "Branch | None" = None
    birth: int = 0  # step of its first own token: tokens of the answer before it
    events: list[Event] = field(default_factory=list)

    @property
    def ids(self) -> list[int]:
        return [id for event in self.events for id in event.ids]

    @property
    def ended(self) -> str:
        """How it ended, or nothing while it continues."""
        return self.events[-1].ended if self.events else ""

    def so_far(self, request: Request) -> Answer:
        """As the answer to a request."""
        return Answer(request, tuple(self.events))

    def holds_end(self, size: int) -> bool:
        """Whether it ends within its first `size` tokens."""
        return len(self.ids) < size or self.ended == "stop"

    def comes_from(self, removed: "set[Branch]") -> bool:
        """Whether it or one of its ancestors is among these."""
        return self in removed or (self.parent is not None and self.parent.comes_from(removed))


@dataclass
class Way:
    """A rollout of a tree: its answer, and the row that it forked from, if any, and where."""

    answer: Answer
    parent: int = -1
    fork_at: int = -1


@dataclass(eq=False)
class Tree:
    """The branches of a prompt, the root first: at most `width`, for the rollouts from `row` on."""

    request: Request
    width: int
    row: int = 0
    branches: list[Branch] = field(default_factory=list)
    num_forks: int = 0
    num_pruned: int = 0
    num_lost: int = 0  # tokens drawn for branches that were removed

    def __post_init__(self) -> None:
        self.branches.append(Branch(len(self.request.ids)))

    @property
    def rows(self) -> range:
        return range(self.row, self.row + self.width)

    def going(self) -> list[Branch]:
        """Branches that have not ended."""
        return [branch for branch in self.branches if not branch.ended]

    def fork(self, forks: Forks, step: int, ends: Callable[[Sequence[int]], Ended]) -> None:
        """Add a branch for every other likely token of the step, while there is room.

        Where there are too many, higher ranks come first, then older branches. ends: tokens of an
        answer -> how it has ended, or nothing.
        """
        found = []
        for row, branch in enumerate(self.branches):
            if len(branch.ids) != step + 1:  # it has ended before, or failed
                continue
            event = branch.events[step]
            found += [(rank, row, id, p) for rank, id, p in candidates(event, forks)]
        room = max(self.width - len(self.branches), 0)
        kept = sorted(sorted(found)[:room], key=lambda each: (each[1], each[0]))
        for _, row, id, logp in kept:
            parent = self.branches[row]
            event = parent.events[step]
            void = math.isnan(event.values_of("logp_model")[0])
            ended = ends([*parent.ids[:step], id])
            cut = event._replace(ids=(id,), logp_model=(NAN if void else logp,), ended=ended)
            events = [*parent.events[:step], cut]
            self.branches.append(Branch(parent.prompt, parent, step, events=events))
            self.num_forks += 1

    def prune(self, windows: Iterable[int], alike: Similarity, step: int) -> list[Branch]:
        """Remove branches as old as a window that resemble their parents in it, and descendants."""
        removed = set()
        for size in windows:
            for branch in self.branches:
                parent = branch.parent
                if parent is None or step + 1 - branch.birth != size:
                    continue
                if branch.holds_end(step + 1) or parent.holds_end(step + 1):
                    continue
                own = slice(branch.birth, step + 1)
                if alike.alike(branch.ids[own], parent.ids[own]):
                    removed.add(branch)
        gone = [branch for branch in self.branches if branch.comes_from(removed)]
        self.branches = [branch for branch in self.branches if branch not in gone]
        self.num_pruned += len(gone)
        self.num_lost += sum(len(branch.ids) - branch.birth - 1 for branch in gone)
        return gone

    def ways(self, asked: Sequence[Request]) -> dict[int, Way]:
        """All rows: one branch each, and copies of the root where there are too few branches."""
        found = {}
        for place, row in enumerate(self.rows):
            branch = self.branches[place if place < len(self.branches) else 0]
            way = Way(branch.so_far(asked[row]))
            if branch is self.branches[0] and place:
                way.parent, way.fork_at = self.row, len(branch.events)
            elif branch.parent is not None:
                way.parent = self.row + self.branches.index(branch.parent)
                way.fork_at = branch.birth
            found[row] = way
        return found


def as_no_sample(event: Event, temperature: float) -> Event:
    """The event of a token that was not drawn: its statistics hold at temperature 1 alone."""
    void = (NAN,) * len(event.ids)
    if temperature == 1:
        return event._replace(logp=void)
    return event._replace(logp=void, logp_model=void, entropy=void)


def candidates(event: Event, forks: Forks) -> list[tuple[int, int, float]]:
    """Rank, token and log-probability of the other likely tokens at an event's position."""
    if event.ended == "failed":
        return []
    (best,) = event.ids
    top = event.top[0]
    most = max(top.values())  # that of `best`; of equal tokens the top may name others
    ranked = sorted((-logp, id) for id, logp in top.items() if id != best)
    return [
        (rank, id, -minus)
        for rank, (minus, id) in enumerate(ranked[: forks.num_candidates - 1], 1)
        if math.exp(-minus) > forks.least and math.exp(most) - math.exp(-minus) < forks.within
    ]
