"""Train on all prompts first, then on ever fewer of those that are solved least often."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from strop.errors import UserError
from strop.part import Result, require
from strop.sampling._presampled import success_of
from strop.sampling.draw_in_shuffled_order import DrawInShuffledOrder
from strop.services import Grading, Sampling, Texts


@dataclass(frozen=True)
class DrawHardestPrompts(DrawInShuffledOrder):
    """Rollouts go where the policy still fails, phase by phase.

        phase 0: all prompts, num_rollouts of each, for lasts[0] steps
        phase k: the sizes[k-1] prompts of the phase before with the lowest success, `later`
            rollouts of each, for lasts[k] steps; the last phase has no end
        success: mean of [outcome >= success] over num_answers answers, drawn as the phase begins

    Within a phase in shuffled order. Metrics: draw/phase, draw/pool (prompts of the phase),
    draw/success (their mean success as it began; phases after the first).

    Reads: pool, texts, grading, sampling, rng, state.   Writes: draws.
    Source: arXiv 2511.06307 (Pre-GRPO: phases on the problems with a low pass rate).
    Differs from the source: its number of answers was not found.
    Nearest part: draw_solvable_prompts, which leaves the hopeless out.
    Edges: equal success -> the pool's order; no scored answer -> as if never solved; a size above
    what there is -> all of them. Phase, prompts and order are in the checkpoint.
    """

    facts: ClassVar[frozenset[str]] = frozenset({"samples_again"})
    # Prompts kept in each phase after the first. Default: paper (its second stage).
    sizes: tuple[int, ...] = (72, 50, 25)
    # Steps of each phase but the last. Default: paper (32, then 64 and 32).
    lasts: tuple[int, ...] = (32, 64, 32)
    # Rollouts of each prompt in phases after the first. Default: paper (64).
    later: int = 64
    # Answers that decide who stays. Default: ours (8).
    num_answers: int = 8
    # Outcome from which an answer is right. Default: ours (1, of rewards in {0, 1}).
    success: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "later", low=1)
        require(self, "num_answers", low=1)
        require(self, "success")
        if len(self.sizes) != len(self.lasts) or min((*self.sizes, *self.lasts), default=1) < 1:
            raise UserError(
                "draw_hardest_prompts: give as many `sizes` as `lasts`, prompts of each phase "
                "after the first and steps of each but the last, all 1 or more: "
                f"{self.sizes}, {self.lasts}"
            )

    def init(self) -> dict[str, Any]:
        """The first phase, of all prompts."""
        return {**super().init(), "phase": 0, "step": 0, "kept": (), "success": {}}

    def __call__(  # type: ignore[override]
        self, pool: tuple[int, ...], state: dict[str, Any], rng: torch.Generator, texts: Texts,
        grading: Grading, sampling: Sampling, num_wanted: int | None = None,
    ) -> Result:  # fmt: skip
        phase, step, kept, rates = (state[n] for n in ("phase", "step", "kept", "success"))
        kept = kept or pool
        if num_wanted is None:
            if phase < len(self.lasts) and step >= self.lasts[phase]:
                rates = success_of(
                    texts, grading, sampling, kept, self.num_answers, self.success, rng
                )
                kept = hardest(kept, rates, self.sizes[phase])
                phase, step, state = phase + 1, 0, {**state, **super().init()}
            step += 1
        drawn = super().__call__(kept, state, rng, num_wanted)
        draws = drawn.value
        if phase:
            draws = tuple(
                draw._replace(num_rollouts=self.later).because(
                    f"phase {phase}, solved {rates.get(draw.uid, 0.0):.2f} as it began"
                )
                for draw in draws
            )
        mean = sum(rates.get(uid, 0.0) for uid in kept) / len(kept)
        metrics = {"draw/phase": float(phase), "draw/pool": float(len(kept))}
        metrics |= {"draw/success": mean} if phase else {}
        new = {**drawn.state, "phase": phase, "step": step, "kept": kept, "success": rates}
        return Result(draws, new, {**drawn.metrics, **metrics})


def hardest(pool: tuple[int, ...], rates: dict[int, float], size: int) -> tuple[int, ...]:
    """The `size` prompts of the lowest success, in the pool's order."""
    ranked = sorted(pool, key=lambda uid: rates.get(uid, 0.0))
    chosen = set(ranked[:size])
    return tuple(uid for uid in pool if uid in chosen)
