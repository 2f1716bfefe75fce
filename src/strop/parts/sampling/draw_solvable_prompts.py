"""Before the first step, leave out the prompts whose answers would teach the policy nothing."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from strop.method.part import Result, require
from strop.method.services import Grading, Sampling, Texts
from strop.parts.sampling._presampled import num_right, presample
from strop.parts.sampling.draw_in_shuffled_order import DrawInShuffledOrder
from strop.support.errors import UserError


@dataclass(frozen=True)
class DrawSolvablePrompts(DrawInShuffledOrder):
    """Prompts out of the policy's reach get no rollouts, which would only be cost and noise.

        c_i = answers with outcome >= success among num_answers of the policy at the first step
        kept: c_i > threshold, max - min of its outcomes > spread, and with drop_mastered also
              c_i < the answers scored
        then the kept prompts in shuffled order, as in draw_in_shuffled_order

    The filter runs once, when a task begins; a prompt that becomes solvable later stays out.
    Metric: data/frac_pool_kept (kept prompts / prompts of the pool).

    Reads: pool, texts, grading, sampling, rng, state.   Writes: draws.
    Source: arXiv 2507.05386 (RIF-RFT); arXiv 2504.16656, sec. 3.2 (spread 0: advantages not all 0).
    Differs from the source: its number of answers and threshold were not seen.
    Nearest part: draw_in_shuffled_order; equal to it when threshold and spread are -1.
    Edges: prompts without a scored answer stay; none left -> UserError. The kept prompts are in the
    checkpoint, so a restart loses nothing.
    """

    facts: ClassVar[frozenset[str]] = frozenset({"samples_again"})
    # Answers to each prompt. Default: ours (8, of an implementation of other authors).
    num_answers: int = 8
    # Right answers up to which a prompt is left out; -1: none is. Default: paper (0).
    threshold: int = 0
    # Outcome from which an answer is right. Default: ours (1, of rewards in {0, 1}).
    success: float = 1.0
    # Whether prompts that are always solved are left out too. Default: paper (no).
    drop_mastered: bool = False
    # Difference that a prompt's best and worst outcome must exceed; -1: any. Default: ours (any).
    spread: float = -1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "num_answers", low=1)
        require(self, "threshold", low=-1)
        require(self, "success")
        require(self, "spread", low=-1.0)

    def init(self) -> dict[str, Any]:
        """The initial state: nothing is measured, and no epoch has started."""
        return {**super().init(), "kept": None}

    def __call__(  # type: ignore[override]
        self,
        pool: tuple[int, ...],
        state: dict[str, Any],
        rng: torch.Generator,
        texts: Texts,
        grading: Grading,
        sampling: Sampling,
        num_wanted: int | None = None,
    ) -> Result:
        kept = state["kept"]
        if kept is None:
            kept = self._solvable(pool, texts, grading, sampling, rng)
        if not kept:
            raise UserError(
                f"draw_solvable_prompts: with {self.num_answers} answers each, none of "
                f"{len(pool)} prompts is kept; take others, or set threshold and spread to -1"
            )
        drawn = super().__call__(kept, state, rng, num_wanted)
        share = {"data/frac_pool_kept": len(kept) / len(pool)}
        return Result(drawn.value, {**drawn.state, "kept": kept}, {**drawn.metrics, **share})

    def _solvable(
        self,
        pool: tuple[int, ...],
        texts: Texts,
        grading: Grading,
        sampling: Sampling,
        rng: torch.Generator,
    ) -> tuple[int, ...]:
        if self.threshold < 0 and not self.drop_mastered and self.spread < 0:
            return tuple(pool)
        known = presample(texts, grading, sampling, pool, self.num_answers, rng).known()
        pairs = zip(pool, known, strict=True)
        return tuple(uid for uid, own in pairs if not own or self._teaches(own))

    def _teaches(self, outcomes: Sequence[float]) -> bool:
        right = num_right(outcomes, self.success)
        differ = max(outcomes) - min(outcomes) > self.spread
        return (
            right > self.threshold
            and differ
            and not (self.drop_mastered and right == len(outcomes))
        )
