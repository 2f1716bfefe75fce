"""Begin a prompt's answers as a tree that forks where the second likeliest token is close."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import torch

from strop.engines.asynchronous import AsyncEngine
from strop.engines.base import Answer, Ended, Event, Request
from strop.method.part import Draw, require
from strop.method.services import Sampling, Texts
from strop.parts.rollout._lookahead import Branch, Forks, Similarity, Tree, Way, as_no_sample
from strop.parts.rollout._rows import rows_by_draw, with_parents
from strop.parts.rollout.base import COLUMNS, TOKENS_DISCARDED, Rollouts, SamplingFields, assemble
from strop.support.errors import UserError

FULL, EASED = 0.98, 0.05  # share of the width at which the tree ends: at first, and less at the end


@dataclass(frozen=True)
class ForkAtCloseCalls(SamplingFields):
    """Answers of a prompt differ from where the policy nearly chose otherwise, and stay different.

        round(share * answers) of a draw begin as a tree, the likeliest token at a time on every
        branch;  another of the forks[0] likeliest tokens begins a branch if p > forks[1] and
        p_likeliest - p < forks[2], while there is room (higher ranks, then older branches first)
        a branch `windows` tokens old that is like its parent in them is dropped, with descendants:
        edit distance / window < similarity[0], or longest end of one in the other / window >
        similarity[1], or longest common subsequence / window > similarity[2]

    The tree ends at tree_tokens, or when branches + width * (prompts that have ended) >= round(
    width * (0.98 - 0.05 * step / max_tokens)) over all prompts and every branch is older than the
    windows. Free places are copies of the first branch; then all continue as plain answers.

    Reads: draws; texts.   Writes: the token, turn, rollout and prompt tables.
    Source: arXiv 2510.24302; code starreeze/latr (generation.py, sample_filter.py).
    Differs from the source: two switches of its code are left out.
    Nearest part: branch_at_uncertainty; sample_independently where share is 0.
    Edges: tokens of the tree are no samples: logp_behavior_T is void (NaN) there, at other
    temperatures than 1 logp_sampler_T too; an end in a window -> no test. Stateless.
    """

    writes: ClassVar[tuple[str, ...]] = COLUMNS
    facts: ClassVar[frozenset[str]] = frozenset({"samples_again"})
    # Share of a prompt's answers that grow as a tree. Default: paper (its first steps).
    share: float = 1.0
    # Likeliest tokens looked at, least probability, largest distance. Default: paper (Countdown).
    forks: tuple[int, float, float] = (2, 0.25, 0.15)
    # Ages at which a branch is compared with its parent. Default: paper.
    windows: tuple[int, ...] = (20, 30, 50)
    # Bounds of edits, suffix and subsequence; 0, 1, 1: no such test. Default: paper (Countdown).
    similarity: tuple[float, float, float] = (0.4, 1.0, 1.0)
    # Most tokens of the tree's answers. Default: paper (Countdown).
    tree_tokens: int = 512

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "share", low=0.0, high=1.0)
        require(self, "tree_tokens", low=1)
        for name, kind in (("forks", Forks), ("similarity", Similarity)):
            if len(getattr(self, name)) != 3 or min(getattr(self, name)) < 0:
                raise UserError(
                    f"fork_at_close_calls.{name} takes the numbers {', '.join(kind._fields)}, none "
                    f"below 0: {getattr(self, name)}"
                )
        if self.forks[0] < 1 or any(size < 1 for size in self.windows):
            raise UserError(
                "fork_at_close_calls: forks begins with a number of tokens and windows are numbers "
                f"of tokens, all at least 1: {self.forks}, {self.windows}"
            )

    @property
    def needs(self) -> frozenset[str]:
        """Branches look at the likeliest tokens."""
        return super().needs | {"top"}

    async def __call__(
        self, draws: tuple[Draw, ...], engine: AsyncEngine, texts: Texts, sampling: Sampling,
        rng: torch.Generator,
    ) -> Rollouts:  # fmt: skip
        asked = self.requests(draws, texts, sampling, rng)
        trees = [
            Tree(asked[rows.start], width, rows.start)
            for draw, rows in rows_by_draw(draws)
            if (width := round(draw.num_rollouts * self.share))
        ]
        grown = {row for tree in trees for row in tree.rows}
        plain = [row for row in range(len(asked)) if row not in grown]
        started = {row: engine.begin(asked[row]) for row in plain}
        steps = await self._grow(trees, engine, texts, sampling.context_tokens)
        ways = {row: way for tree in trees for row, way in tree.ways(asked).items()}
        open = [row for row, way in ways.items() if not way.answer.ended]
        ends = await engine.generate_all([ways[row].answer.more() for row in open])
        for row, end in zip(open, ends, strict=True):
            ways[row].answer += end
        ways |= {row: Way(await each) for row, each in started.items()}
        chosen = [ways[row] for row in range(len(asked))]
        batch = assemble(draws, [way.answer for way in chosen])
        parents, forks = [way.parent for way in chosen], [way.fork_at for way in chosen]
        return with_parents(batch, parents, forks), None, _metrics(trees, steps, chosen)

    async def _grow(
        self, trees: Sequence[Tree], engine: AsyncEngine, texts: Texts, context: int
    ) -> int:
        """Grow all trees by a token a step on all branches; returns the number of steps."""
        held: dict[Branch, Answer] = {}  # what each branch continues
        steps = 0
        while going := [(tree, branch) for tree in trees for branch in tree.going()]:
            greedy = [branch.so_far(self._greedy(tree.request)) for tree, branch in going]
            answers = await engine.generate_all([each.more(1) for each in greedy])
            for (tree, branch), answer in zip(going, answers, strict=True):
                branch.events.append(
                    self._token(answer, len(branch.ids), tree.request.max_tokens, context)
                )
                if branch in held:
                    engine.drop(held[branch])
                held[branch] = answer
            gone = []
            for tree in trees:
                tree.fork(Forks(*self.forks), steps, partial(self._end, tree, texts, context))
                gone += tree.prune(self.windows, Similarity(*self.similarity), steps)
            for branch in gone:
                if branch in held:
                    engine.drop(held.pop(branch))
            steps += 1
            if self._is_grown(trees, steps - 1):
                break
        return steps

    def _token(self, answer: Answer, before: int, most: int, context: int) -> Event:
        """The next token after so many; it is an end only where the answer has no room for more."""
        (event,) = answer.events
        full = len(answer.sequence) >= context or before + 1 >= most
        ended = "" if event.ended == "length" and not full else event.ended
        return as_no_sample(event._replace(ended=ended), self.temperature)

    def _greedy(self, request: Request) -> Request:
        """The request of the root: the likeliest tokens, one at a time, with the next likeliest."""
        return replace(
            request, temperature=0.0, rules=(), num_top=int(self.forks[0]),
            want=request.want | {"top"}, keep=True,
        )  # fmt: skip

    def _end(self, tree: Tree, texts: Texts, context: int, ids: Sequence[int]) -> Ended:
        """How an answer of these tokens has ended, or nothing."""
        request = tree.request
        text = texts.decode(ids) if request.stop_strings else ""
        if ids[-1] in request.stop_ids or any(end in text for end in request.stop_strings):
            return "stop"
        full = len(ids) >= min(request.max_tokens, context - len(request.ids))
        return "length" if full else ""

    def _is_grown(self, trees: Sequence[Tree], step: int) -> bool:
        """Whether the trees are wide enough after a step, counted from 0, and all settled."""
        longest = max((tree.request.max_tokens for tree in trees), default=1)
        width = sum(len(tree.branches) if tree.going() else tree.width for tree in trees)
        wanted = round(sum(tree.width for tree in trees) * (FULL - EASED * step / longest))
        youngest = max((b.birth for tree in trees for b in tree.branches), default=0)
        settled = youngest + max(self.windows, default=0) < step
        return step + 1 >= self.tree_tokens or (width >= wanted and settled)


def _metrics(trees: Sequence[Tree], steps: int, ways: Sequence[Way]) -> dict[str, float]:
    branches = sum(len(tree.branches) for tree in trees)
    return {
        "lookahead/width": branches / max(sum(tree.width for tree in trees), 1),
        "lookahead/forks": sum(tree.num_forks for tree in trees),
        "lookahead/pruned": sum(tree.num_pruned for tree in trees),
        "lookahead/tokens": steps,
        "rollout/tokens_shared": sum(max(way.fork_at, 0) for way in ways),
        TOKENS_DISCARDED: sum(tree.num_lost for tree in trees),
    }
