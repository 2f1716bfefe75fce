"""Practise easy prompts first and hard ones last, stage by stage."""

import math
from dataclasses import dataclass
from typing import Any

import torch

from strop.method.part import Result, require
from strop.method.schedule import Linear, Schedule
from strop.method.services import Grading, Sampling, Texts
from strop.parts.sampling._presampled import success_of
from strop.parts.sampling.draw_in_shuffled_order import DrawInShuffledOrder
from strop.support.errors import UserError


@dataclass(frozen=True)
class DrawInStages(DrawInShuffledOrder):
    """The policy meets harder prompts with what the easier ones have taught it.

        prompts by rising difficulty, cut into num_stages parts of about equal size
        stage floor(progress * num_stages), at most the last: the prompts of that part alone, in
        shuffled order
        difficulty: the column of the data; if `column` is empty, 1 - the share of [outcome >= 1]
            over num_answers answers to each prompt before the first step

    Metrics: draw/stage (from 0), draw/difficulty (mean of the prompts drawn).

    Reads: pool, texts, grading, sampling, rng, state.   Writes: draws.
    Source: arXiv 2508.11360 (stages by difficulty), known in words only.
    Differs from the source: its labels and when stages change were not found.
    Nearest part: draw_in_shuffled_order; equal to it with one stage.
    Edges: equal difficulty -> the pool's order; a row without the column, or with one that is no
    number -> UserError; no scored answer -> as if never solved; more stages than prompts ->
    UserError. Difficulty and order are in the checkpoint.
    """

    # Column of the data with a number, the larger the harder. Default: ours (empty: measured).
    column: str = ""
    # Parts of the prompts. Default: ours (3, not stated there).
    num_stages: int = 3
    # How far the curriculum is, 0 to 1. Default: ours (as far as the run).
    progress: float | Schedule = Linear(0.0, 1.0)  # noqa: RUF009 (frozen)
    # Answers to each prompt if difficulty is measured. Default: ours (4).
    num_answers: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "num_stages", "num_answers", low=1)
        require(self, "progress", low=0.0)

    @property
    def facts(self) -> frozenset[str]:
        """Answers are sampled if difficulty is measured."""
        return frozenset() if self.column else frozenset({"samples_again"})

    def init(self) -> dict[str, Any]:
        """The initial state: nothing is measured, and no stage has started."""
        return {**super().init(), "difficulty": {}, "stage": -1}

    def __call__(  # type: ignore[override]
        self, pool: tuple[int, ...], state: dict[str, Any], rng: torch.Generator, texts: Texts,
        grading: Grading, sampling: Sampling, num_wanted: int | None = None,
    ) -> Result:  # fmt: skip
        assert not isinstance(self.progress, Schedule), "schedules become numbers before a step"
        if self.num_stages > len(pool):
            raise UserError(
                f"draw_in_stages: {self.num_stages} stages of {len(pool)} prompts: take fewer "
                "stages, or more prompts"
            )
        known = state["difficulty"]
        if not known and self.column:
            known = {uid: self._difficulty(texts, uid) for uid in pool}
        elif not known:
            rates = success_of(texts, grading, sampling, pool, self.num_answers, 1.0, rng)
            known = {uid: 1 - rates.get(uid, 0.0) for uid in pool}
        stage = min(int(self.progress * self.num_stages), self.num_stages - 1)
        if stage != state["stage"]:
            state = {**state, **super().init()}
        ranked = sorted(pool, key=known.__getitem__)
        cuts = [round(n * len(ranked) / self.num_stages) for n in (stage, stage + 1)]
        drawn = super().__call__(tuple(ranked[cuts[0] : cuts[1]]), state, rng, num_wanted)
        draws = tuple(
            draw.because(f"stage {stage + 1} of {self.num_stages}, difficulty {known[draw.uid]:g}")
            for draw in drawn.value
        )
        mean = sum(known[draw.uid] for draw in draws) / len(draws)
        metrics = {**drawn.metrics, "draw/stage": float(stage), "draw/difficulty": mean}
        return Result(draws, {**drawn.state, "difficulty": known, "stage": stage}, metrics)

    def _difficulty(self, texts: Texts, uid: int) -> float:
        value = texts.row(uid).get(self.column)
        if value is None:
            raise UserError(
                f"draw_in_stages: the row of prompt {uid} has no {self.column}: give every row of "
                f"the training data a number {self.column!r}, or leave sampling.column empty to "
                "have difficulty measured"
            )
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not math.isfinite(value)
        ):
            raise UserError(
                f"draw_in_stages: {self.column} of prompt {uid} is {value!r}: make it a number, "
                "the larger the harder"
            )
        return float(value)
