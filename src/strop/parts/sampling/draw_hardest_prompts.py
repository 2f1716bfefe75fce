"""Train on the prompts that are solved least often, among all or among those used so far."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from strop.method.part import Result, require
from strop.method.services import Grading, Sampling, Texts
from strop.parts.sampling._presampled import success_of
from strop.parts.sampling.draw_in_shuffled_order import DrawInShuffledOrder


@dataclass(frozen=True)
class DrawHardestPrompts(DrawInShuffledOrder):
    """Rollouts go where the policy still fails.

        when `keep` changes: the `keep` prompts of the lowest success among those drawn from until
            then, in shuffled order;   keep 0: all prompts, nothing is measured
        success: mean of [outcome >= success] over num_answers answers, drawn at that step

    In the phases of a recipe, each with a `keep` of its own, the set becomes smaller phase by
    phase. Metrics: draw/pool (prompts drawn from), draw/success (their mean success as measured).

    Reads: pool, texts, grading, sampling, rng, state.   Writes: draws.
    Source: arXiv 2511.06307 (Pre-GRPO: phases on the problems with a low pass rate).
    Differs from the source: its number of answers was not found.
    Nearest part: draw_solvable_prompts, which leaves hopeless ones out.
    Edges: equal success -> the pool's order; no scored answer -> as if never solved; a keep above
    their number -> all of them. Prompts and order are in the checkpoint.
    """

    facts: ClassVar[frozenset[str]] = frozenset({"samples_again"})
    # Prompts to draw from; 0: all. Default: ours (all; a recipe says how many).
    keep: int = 0
    # Answers that decide which prompts stay. Default: ours (8).
    num_answers: int = 8
    # Outcome from which an answer is right. Default: ours (1, of rewards in {0, 1}).
    success: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "keep", low=0)
        require(self, "num_answers", low=1)
        require(self, "success")

    def init(self) -> dict[str, Any]:
        """All prompts, nothing measured."""
        return {**super().init(), "keep": 0, "kept": (), "success": {}}

    def __call__(  # type: ignore[override]
        self, pool: tuple[int, ...], state: dict[str, Any], rng: torch.Generator, texts: Texts,
        grading: Grading, sampling: Sampling, num_wanted: int | None = None,
    ) -> Result:  # fmt: skip
        kept, rates = state["kept"] or tuple(pool), state["success"]
        if self.keep != state["keep"] and num_wanted is None:
            kept = kept if self.keep else tuple(pool)
            rates = {}
            if self.keep:
                rates = success_of(
                    texts, grading, sampling, kept, self.num_answers, self.success, rng
                )
                kept = hardest(kept, rates, self.keep)
            state = {**state, **super().init()}
        drawn = super().__call__(kept, state, rng, num_wanted)
        draws, metrics = drawn.value, {"draw/pool": float(len(kept))}
        if self.keep:
            draws = tuple(
                draw.because(f"of the hardest {len(kept)}, solved {rates.get(draw.uid, 0.0):.2f}")
                for draw in draws
            )
            metrics["draw/success"] = sum(rates.get(uid, 0.0) for uid in kept) / len(kept)
        new = {**drawn.state, "keep": self.keep, "kept": kept, "success": rates}
        return Result(draws, new, {**drawn.metrics, **metrics})


def hardest(pool: tuple[int, ...], rates: dict[int, float], size: int) -> tuple[int, ...]:
    """The `size` prompts of the lowest success, in the pool's order."""
    ranked = sorted(pool, key=lambda uid: rates.get(uid, 0.0))
    chosen = set(ranked[:size])
    return tuple(uid for uid in pool if uid in chosen)
