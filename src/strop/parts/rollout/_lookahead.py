"""A tree that grows a token a step on all branches at once, and how alike two of them are."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from strop.engines.base import Ended, Event, Request
from strop.parts.rollout.commands import Command, Fork, Resume

NAN = float("nan")


class Forks(NamedTuple):
    """Which of the likeliest tokens begin a branch: probabilities before temperature and cuts."""

    num_candidates: int
    least: float  # a candidate's probability is above it
    within: float  # and below the likeliest one's by less than this


class Similarity(NamedTuple):
    """From when on two windows of tokens are too alike."""

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
    """Fewest insertions, removals and replacements that make one of the other (Levenshtein)."""
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
    """A way down the tree: the events of all its tokens, one each, its parent's first."""

    prompt: int  # tokens of it
    parent: "Branch | None" = None
    birth: int = 0  # step of its first own token: tokens of the answer before it
    number: int = -1  # of its request; none before it has drawn
    events: list[Event] = field(default_factory=list)

    @property
    def ids(self) -> list[int]:
        return [id for event in self.events for id in event.ids]

    @property
    def ended(self) -> str:
        """How, or nothing while it goes on."""
        last = self.events[-1].ended if self.events else ""
        return "" if last == "paused" else last

    def holds_end(self, size: int) -> bool:
        """Whether its end stands among its first `size` tokens."""
        return len(self.ids) < size or self.ended == "stop"

    def comes_from(self, removed: "set[Branch]") -> bool:
        """Whether it or one that it grew from is among these."""
        return self in removed or (self.parent is not None and self.parent.comes_from(removed))

    def begin(self, **changes: Any) -> Fork:
        """A request for what follows its first own token."""
        assert self.parent is not None
        forced = tuple(self.ids[self.birth :])
        return Fork(self.parent.number, self.prompt + self.birth, forced, changes)

    def go_on(self, **changes: Any) -> Command:
        """The same, or more of the request that it has."""
        return self.begin(**changes) if self.number < 0 else Resume(self.number, changes)

    def copy(self, **changes: Any) -> Fork:
        """Another answer that begins with all its tokens."""
        return Fork(self.number, self.prompt + len(self.events), changes=changes)


@dataclass
class Answer:
    """A rollout: the request that ends it (-1: none), tokens before that, where it forked."""

    number: int = -1
    events: Sequence[Event] = ()
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
        """Add a branch for every other likely token of the step's, while there is room.

        Of too many the likelier ranks come first, then the older branches. ends: tokens of an
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
            void = math.isnan(event.told("logp_model")[0])
            ended = ends([*parent.ids[:step], id]) or "paused"
            told = event._replace(ids=(id,), logp_model=(NAN if void else logp,), ended=ended)
            events = [*parent.events[:step], told]
            self.branches.append(Branch(parent.prompt, parent, step, events=events))
            self.num_forks += 1

    def prune(self, windows: Iterable[int], alike: Similarity, step: int) -> list[Branch]:
        """Remove branches that are as old as a window and like their parents in it, and theirs."""
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

    def rest(self, asked: Sequence[Request]) -> list[tuple[int, Command]]:
        """What is still to be drawn: rows, and commands that draw as plain answers do."""
        found: list[tuple[int, Command]] = []
        root = self.branches[0]
        for place, row in enumerate(self.rows):
            changes = {name: getattr(asked[row], name) for name in PLAIN}
            if place >= len(self.branches):
                found += [] if root.ended else [(row, root.copy(**changes))]
            elif not self.branches[place].ended:
                found.append((row, self.branches[place].go_on(**changes)))
        return found

    def answers(self, numbers: Mapping[int, Any]) -> dict[int, Answer]:
        """All rows; numbers: what the commands of `rest` were answered by, by row."""
        found = {}
        root = self.branches[0]
        for place, row in enumerate(self.rows):
            if place >= len(self.branches):
                number = numbers.get(row, -1)
                found[row] = Answer(number, root.events, self.row, len(root.events))
                continue
            branch = self.branches[place]
            number = -1
            if not branch.ended:  # a Resume has no answer
                number = branch.number if numbers[row] is None else numbers[row]
            parent, fork_at = -1, -1
            if branch.parent is not None:
                parent = self.row + self.branches.index(branch.parent)
                fork_at = branch.birth
            found[row] = Answer(number, branch.events, parent, fork_at)
        return found


# Fields of a request by which plain answers are drawn.
PLAIN = ("seed", "temperature", "rules", "pause_every", "num_top", "want", "keep")


def as_no_sample(event: Event, temperature: float) -> Event:
    """A token that was not drawn: what is known of it holds at temperature 1 alone."""
    void = (NAN,) * len(event.ids)
    if temperature == 1:
        return event._replace(logp=void)
    return event._replace(logp=void, logp_model=void, entropy=void)


def candidates(event: Event, forks: Forks) -> list[tuple[int, int, float]]:
    """Rank, token and log-probability of the other likely tokens at the place of an event."""
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
