"""Answer every prompt, then again from a token in each answer at which the policy was undecided."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from strop.engines.asynchronous import AsyncEngine
from strop.engines.base import Answer
from strop.method.part import Draw, require
from strop.method.services import Sampling, Scoring, Texts
from strop.parts.rollout._rows import rows_by_draw, with_parents
from strop.parts.rollout.base import COLUMNS, Rollouts, SamplingFields, assemble, shared_in


@dataclass(frozen=True)
class BranchAtCriticalTokens(SamplingFields):
    """A group has whole answers, and others that branch from an uncertain place of one.

        n1 = ceil(num_rollouts / (1 + branches)) answers; the others continue them in turn
        c = a token at random of the `candidates` with the largest entropy in the answer, but for
            its first, special ones, and those with less than min_letters letters;  0 without one
        a branch keeps the answer's tokens before c and is drawn again from there

    The entropy is the current policy's, from a forward pass over the first answers. Metric:
    rollout/tokens_shared.
    Reads: draws; texts; rng.   Writes: the token, turn, rollout and prompt tables; fork_at_B counts
    the answer's tokens.
    Source: arXiv 2508.11016; code bytedance/CURE.
    Differs from the source: a branch has the room that its answer had left, there as much as a
    whole one; prompts are not cut.
    Nearest part: branch_at_uncertainty, whose answers grow one by one; equal in distribution to
    sample_independently where branches is 0.
    Edges: candidates 0 -> any token but the first; an answer of one token, or whose request failed
    -> its branches begin at the prompt. Stateless.
    """

    writes: ClassVar[tuple[str, ...]] = COLUMNS
    acted: ClassVar[tuple[str, ...]] = ("rollout/tokens_shared",)
    facts: ClassVar[frozenset[str]] = frozenset({"scores_again"})
    # Branches of each whole answer. Default: released code (3).
    branches: int = 3
    # Tokens of an answer among which one is chosen; 0: all. Default: released code (20).
    candidates: int = 20
    # Fewest characters of a candidate's text, blanks not counted. Default: released code (2).
    min_letters: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "branches", "candidates", "min_letters", low=0)

    async def __call__(
        self, draws: tuple[Draw, ...], engine: AsyncEngine, texts: Texts, sampling: Sampling,
        scoring: Scoring, rng: torch.Generator,
    ) -> Rollouts:  # fmt: skip
        asked = [replace(r, keep=True) for r in self.requests(draws, texts, sampling, rng)]
        firsts, origin_of = self._shared_out(draws)
        answers = await engine.generate_all([asked[number] for number in firsts])
        whole = dict(zip(firsts, answers, strict=True))
        cuts: dict[int, int] = {}
        if origin_of:
            sizes = [self.num_whole(draw.num_rollouts) for draw in draws]
            few = [d._replace(num_rollouts=n) for d, n in zip(draws, sizes, strict=True)]
            batch = assemble(few, answers)
            found = scoring.score(batch, "current", ("entropy_T",))
            mask_T, length_B = batch["mask_T"].cpu(), batch["length_B"].tolist()
            ids = torch.split(batch["id_T"][mask_T], length_B)
            entropy = torch.split(found["entropy_T"].cpu()[mask_T], length_B)
            for number, id_N, entropy_N in zip(firsts, ids, entropy, strict=True):
                cut = self.cut(id_N.tolist(), entropy_N, texts, rng)
                cuts[number] = -1 if whole[number].failed else cut
        origins = [origin_of.get(number, -1) for number in range(len(asked))]
        at = [cuts[origin] if origin >= 0 else -1 for origin in origins]
        started = {
            number: whole[origin].first(max(at[number], 0)) for number, origin in origin_of.items()
        }
        ends = await engine.generate_all(
            [each.more(seed=asked[number].seed) for number, each in started.items()]
        )
        for (number, each), end in zip(started.items(), ends, strict=True):
            whole[number] = Answer(asked[number], each.events + end.events)
        batch = assemble(draws, [whole[number] for number in range(len(asked))])
        rows = [origin if cut >= 0 else -1 for origin, cut in zip(origins, at, strict=True)]
        batch = with_parents(batch, rows, at)
        shared = shared_in(batch)
        return batch, None, {"rollout/tokens_shared": shared}

    def num_whole(self, num_rollouts: int) -> int:
        """Answers of a group that begin at the prompt."""
        return -(-num_rollouts // (1 + self.branches))

    def _shared_out(self, draws: Sequence[Draw]) -> tuple[list[int], dict[int, int]]:
        """Rows of the whole answers, and each branch's with the row of its answer."""
        firsts: list[int] = []
        origin_of: dict[int, int] = {}
        for draw, rows in rows_by_draw(draws):
            whole = self.num_whole(draw.num_rollouts)
            firsts += rows[:whole]
            origin_of |= {row: rows[n % whole] for n, row in enumerate(rows[whole:])}
        return firsts, origin_of

    def cut(self, ids: Sequence[int], entropy_N: Tensor, texts: Texts, rng: torch.Generator) -> int:
        """The place of an answer's critical token; 0 where none may be one."""
        order = entropy_N.double().argsort(descending=True, stable=True).tolist()
        usable = (place for place in order if place and self._may_be(ids[place], texts))
        if self.candidates:
            found = [place for _, place in zip(range(self.candidates), usable, strict=False)]
        else:
            found = list(range(1, len(ids)))
        chosen = int(torch.randint(max(len(found), 1), (), generator=rng))
        return found[chosen] if found else 0

    def _may_be(self, token: int, texts: Texts) -> bool:
        if token in texts.special_ids:
            return False
        return len(texts.decode([token]).strip()) >= self.min_letters
