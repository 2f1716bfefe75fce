"""Begin a prompt's answers as a tree that forks where the second likeliest token is close."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import torch

from strop.engines.base import Ended, Request
from strop.method.part import Draw, require
from strop.method.services import Sampling, Texts
from strop.parts.rollout._lookahead import Answer, Forks, Similarity, Tree, as_no_sample
from strop.parts.rollout.assemble import COLUMNS, assemble
from strop.parts.rollout.base import SamplingFields
from strop.parts.rollout.commands import THROWN_AWAY, Abort, Command, Resume, Strategy, Submit
from strop.parts.rollout.listen import Inbox, tell, wait
from strop.support.errors import UserError

FULL, EASED = 0.98, 0.05  # share of the width at which the tree ends: at first, and less at the end


@dataclass(frozen=True)
class ForkAtCloseCalls(SamplingFields):
    """Answers of a prompt differ from where the policy nearly chose otherwise, and stay different.

        round(share * answers) of a draw begin as a tree, the likeliest token at a time on every
        branch;  another of the forks[0] likeliest tokens begins a branch if p > forks[1] and
        p_likeliest - p < forks[2], while there is room (higher ranks, then older branches first)
        a branch `windows` tokens old that is like its parent in them goes, with all from it:
        edit distance / window < similarity[0], or longest end of one in the other / window >
        similarity[1], or longest common subsequence / window > similarity[2]

    The tree ends at tree_tokens, or when branches + width * (prompts that have ended) >= round(
    width * (0.98 - 0.05 * step / max_tokens)) over all prompts and every branch is older than the
    windows. Free places are copies of the first branch; then all go on as plain answers.

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
        """Branches wait for each other, fork, and look at the likeliest tokens."""
        return super().needs | {"fork", "pause", "top"}

    def __call__(
        self, draws: tuple[Draw, ...], texts: Texts, sampling: Sampling, rng: torch.Generator
    ) -> Strategy:
        asked = self.requests(draws, texts, sampling, rng)
        trees, first = [], 0
        for draw in draws:
            if width := round(draw.num_rollouts * self.share):
                trees.append(Tree(asked[first], width, first))
            first += draw.num_rollouts
        grown = {row for tree in trees for row in tree.rows}
        plain = [row for row in range(len(asked)) if row not in grown]
        inbox: Inbox = {}
        numbers = yield from tell([Submit(asked[row]) for row in plain], inbox)
        answers = {row: Answer(number) for row, number in zip(plain, numbers, strict=True)}
        steps = yield from self._grow(trees, texts, sampling.context_tokens, inbox)
        commands = [(row, command) for tree in trees for row, command in tree.rest(asked)]
        numbers = yield from tell([command for _, command in commands], inbox)
        new = {row: number for (row, _), number in zip(commands, numbers, strict=True)}
        for tree in trees:
            answers |= tree.answers(new)
        yield from wait([a.number for a in answers.values() if a.number >= 0], inbox)
        told = [answers[row] for row in range(len(asked))]
        heard = [[*answer.events, *inbox.get(answer.number, ())] for answer in told]
        batch = assemble(draws, asked, heard).set(
            parent_B=torch.tensor([answer.parent for answer in told], dtype=torch.int64),
            fork_at_B=torch.tensor([answer.fork_at for answer in told], dtype=torch.int64),
        )
        return batch, None, _metrics(trees, steps, told)

    def _grow(self, trees: Sequence[Tree], texts: Texts, context: int, inbox: Inbox) -> Strategy:
        """All trees, a token a step on all branches; returns how many steps it took."""
        begun = [tree.branches[0] for tree in trees]
        commands: list[Command] = [Submit(self._greedy(tree.request)) for tree in trees]
        steps = 0
        while begun or any(tree.going() for tree in trees):
            numbers = yield from tell(commands, inbox)
            for branch, number in zip(begun, numbers, strict=False):
                branch.number = number
            going = [branch for tree in trees for branch in tree.going()]
            yield from wait([branch.number for branch in going], inbox)
            for branch in going:
                (event,) = inbox.pop(branch.number)
                branch.events.append(as_no_sample(event, self.temperature))
            gone = []
            for tree in trees:
                tree.fork(Forks(*self.forks), steps, partial(self._end, tree, texts, context))
                gone += tree.prune(self.windows, Similarity(*self.similarity), steps)
            yield from tell([Abort(each.number) for each in gone if each.number >= 0], inbox)
            steps += 1
            if self._is_grown(trees, steps - 1):
                break
            going = [branch for tree in trees for branch in tree.going()]
            begun = [branch for branch in going if branch.number < 0]
            commands = [branch.begin() for branch in begun]
            commands += [Resume(branch.number) for branch in going if branch.number >= 0]
        return steps

    def _greedy(self, request: Request) -> Request:
        """The root: the likeliest tokens one by one, and what they might have been."""
        return replace(
            request, temperature=0.0, rules=(), pause_every=1, num_top=int(self.forks[0]),
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


def _metrics(trees: Sequence[Tree], steps: int, answers: Sequence[Answer]) -> dict[str, float]:
    branches = sum(len(tree.branches) for tree in trees)
    return {
        "lookahead/width": branches / max(sum(tree.width for tree in trees), 1),
        "lookahead/forks": sum(tree.num_forks for tree in trees),
        "lookahead/pruned": sum(tree.num_pruned for tree in trees),
        "lookahead/tokens": steps,
        "rollout/tokens_shared": sum(max(answer.fork_at, 0) for answer in answers),
        THROWN_AWAY: sum(tree.num_lost for tree in trees),
    }
