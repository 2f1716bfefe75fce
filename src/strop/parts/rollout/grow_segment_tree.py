"""Grow a prompt's answers as a tree: every so many tokens each of them branches."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch

from strop.engines.asynchronous import AsyncEngine
from strop.engines.base import Answer, Event, Request
from strop.method.part import Draw, require
from strop.method.services import Sampling, Texts
from strop.parts.rollout._rows import with_parents
from strop.parts.rollout.base import COLUMNS, Rollouts, SamplingFields, Turn, assemble_turns
from strop.support.errors import UserError


@dataclass
class _Node:
    """A segment of answers: what was drawn after the parent's text, and its children."""

    request: Request  # of the prompt, with the segment's own seed
    above: tuple[Event, ...] = ()  # of the answer before the segment
    events: tuple[Event, ...] = ()  # the root has none
    children: list["_Node"] = field(default_factory=list)

    @property
    def key(self) -> int:
        """The state after the segment: 0 for the prompt itself."""
        return self.request.seed if self.events else 0

    @property
    def upto(self) -> tuple[Event, ...]:
        """Of the answer up to the segment's end, which is no end of its own there."""
        return (*self.above, *(event._replace(ended="") for event in self.events))

    @property
    def before(self) -> int:
        """Tokens of the answer before the segment."""
        return sum(len(event.ids) for event in self.above)

    @property
    def length(self) -> int:
        """Tokens of the answer up to the segment's end."""
        return sum(len(event.ids) for event in self.upto)

    def paths(self) -> Iterator[tuple["_Node", ...]]:
        """The ways down to the leaves, depth first, this node first on each."""
        for child in self.children:
            for path in child.paths():
                yield (self, *path)
        if not self.children:
            yield (self,)


@dataclass(frozen=True)
class GrowSegmentTree(SamplingFields):
    """Answers share their beginnings: each node of a tree is continued several times.

        level d: every open node gets branching[d] continuations of at most segment_tokens tokens,
        on the last level to the end;  one that ends is a leaf

    Each way from the prompt to a leaf is a rollout, and each of its segments a turn whose state is
    the node above it. parent_B and fork_at_B (tokens of the answer) say from where on a rollout's
    segments are its own: of the rollouts through a segment the first one owns it.

    Reads: draws (their number of rollouts is ignored).   Writes: the token, turn, rollout
    and prompt tables, state_K.
    Source: arXiv 2505.23564; code only: AIFrameResearch/SPO.
    Differs from the source: no.
    Nearest part: sample_independently; equal to it in distribution with one level.
    Edges: an answer that reaches the limit of tokens or of the context is a truncated leaf; as
    many rounds of generation as levels. Stateless.
    """

    writes: ClassVar[tuple[str, ...]] = (*COLUMNS, "state_K")
    # Continuations of a node on each level. Default: paper (6-6-6).
    branching: tuple[int, ...] = (6, 6, 6)
    # Most tokens of a segment but on the last level. Default: paper (30 for GSM8K, 600 for MATH).
    segment_tokens: int = 30

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "segment_tokens", low=1)
        if not self.branching or min(self.branching) < 1:
            raise UserError(
                "grow_segment_tree.branching takes a number of at least 1 for each level, it is "
                f"{self.branching}"
            )

    async def __call__(
        self, draws: tuple[Draw, ...], engine: AsyncEngine, texts: Texts, sampling: Sampling,
        rng: torch.Generator,
    ) -> Rollouts:  # fmt: skip
        one_each = tuple(draw._replace(num_rollouts=1) for draw in draws)
        roots = [
            _Node(replace(request, keep=True))
            for request in self.requests(one_each, texts, sampling, rng)
        ]
        open_nodes = roots
        for level, width in enumerate(self.branching):
            last = level == len(self.branching) - 1
            grown = [(node, self._child(node, rng)) for node in open_nodes for _ in range(width)]
            found = await engine.generate_all([self._rest(child, last) for _, child in grown])
            open_nodes = []
            for (node, child), answer in zip(grown, found, strict=True):
                child.events = answer.events
                node.children.append(child)
                if not last and self._is_open(child, sampling.context_tokens):
                    open_nodes.append(child)
        return _batch(draws, roots), None

    def _child(self, node: _Node, rng: torch.Generator) -> _Node:
        seed = int(torch.randint(1, 2**62, (), generator=rng))
        return _Node(replace(node.request, seed=seed), node.upto)

    def _rest(self, child: _Node, last: bool) -> Request:
        """The request for a segment after the text above it; nothing continues the last level."""
        left = child.request.max_tokens - child.before
        size = left if last else min(self.segment_tokens, left)
        return Answer(child.request, child.above).more(size, keep=not last)

    def _is_open(self, node: _Node, context: int) -> bool:
        """Whether a segment stopped only because it was full, with room for more."""
        full = node.length - node.before == self.segment_tokens
        within = node.length < node.request.max_tokens
        within = within and len(node.request.ids) + node.length < context
        return node.events[-1].ended == "length" and full and within


def _batch(draws: tuple[Draw, ...], roots: list[_Node]) -> Any:
    """One rollout for each leaf; the first rollout through a segment owns it."""
    ways = [[path[1:] for path in root.paths()] for root in roots]
    rollouts: list[list[Turn]] = []
    states, seeds, truncated, parents, forks = [], [], [], [], []
    for root, paths in zip(roots, ways, strict=True):
        owner: dict[int, int] = {}  # key of a segment -> its rollout
        for path in paths:
            row = len(rollouts)
            own = next(k for k, node in enumerate(path) if node.key not in owner)
            parents.append(owner[path[own - 1].key] if own else -1)
            forks.append(path[own].before if own else -1)
            owner.update((node.key, row) for node in path[own:])
            prompt = root.request.ids
            rollouts.append([Turn(() if k else prompt, node.events) for k, node in enumerate(path)])
            states += [0, *(node.key for node in path[:-1])]
            seeds.append(path[-1].request.seed)
            truncated.append(path[-1].events[-1].ended == "length")
    wide = [draw._replace(num_rollouts=len(p)) for draw, p in zip(draws, ways, strict=True)]
    batch = with_parents(assemble_turns(wide, seeds, rollouts, truncated), parents, forks)
    return batch.set(state_K=torch.tensor(states, dtype=torch.int64))
