"""Before the first step, measure how often the untrained policy solves each prompt."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from strop.batch.columns import Column
from strop.method.part import Draw, Result, require
from strop.method.services import Grading, Sampling, Texts
from strop.parts.sampling._presampled import presample


@dataclass(frozen=True)
class EstimateSuccessFirst:
    """Later parts know what each prompt's success was before training began.

        first_success_i = mean of [outcome > 0.5] over num_answers answers of the first policy to
                          i's prompt;  NaN where none was scored, or num_answers is 0

    All prompts of the pool are answered once, at the first step.

    Reads: draws, pool, texts, grading, sampling, rng, state.
    Writes: the draws, with first_success_B [B] float for their rollouts.
    Source: arXiv 2512.18215 (samples before training initialise its tracker).
    Differs from the source: no.
    Nearest part: draw_in_shuffled_order, which chooses the prompts.
    Edges: the estimates are in the checkpoint, so a restart loses nothing.
    """

    writes: ClassVar[tuple[str, ...]] = ("first_success_B",)
    declares: ClassVar[tuple[Column, ...]] = (
        Column(
            "first_success_B", "float", "success of the prompt's first answers", random="uniform"
        ),
    )
    facts: ClassVar[frozenset[str]] = frozenset({"samples_again"})
    # Answers to each prompt. Default: released code (n_0, 1).
    num_answers: int = 1

    def __post_init__(self) -> None:
        require(self, "num_answers", low=0)

    def init(self) -> dict[str, Any]:
        """The initial state: no prompt is answered."""
        return {"success": {}, "asked": False}

    def __call__(
        self,
        draws: tuple[Draw, ...],
        pool: tuple[int, ...],
        texts: Texts,
        grading: Grading,
        sampling: Sampling,
        rng: torch.Generator,
        state: dict[str, Any],
    ) -> Result:
        if not state["asked"]:
            state = {"success": self._success(pool, texts, grading, sampling, rng), "asked": True}
        known = state["success"]
        estimated = tuple(
            draw._replace(
                columns={**draw.columns, "first_success_B": known.get(draw.uid, float("nan"))}
            )
            for draw in draws
        )
        return Result(estimated, state)

    def _success(
        self,
        pool: tuple[int, ...],
        texts: Texts,
        grading: Grading,
        sampling: Sampling,
        rng: torch.Generator,
    ) -> dict[int, float]:
        if not self.num_answers:
            return {}
        known = presample(texts, grading, sampling, pool, self.num_answers, rng).known()
        pairs = zip(pool, known, strict=True)
        return {uid: sum(x > 0.5 for x in own) / len(own) for uid, own in pairs if own}
