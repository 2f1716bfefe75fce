"""Before the first step, label each given answer by the progress that followed it."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from strop.batch import segments
from strop.batch.columns import Column
from strop.method.part import Result, require
from strop.method.services import Scoring, Texts
from strop.parts.sampling._progress import (
    features,
    fit,
    in_order,
    look_ahead,
    slices,
    stage_progress,
    top_share,
)
from strop.parts.sampling.draw_in_shuffled_order import DrawInShuffledOrder
from strop.support.errors import UserError


@dataclass(frozen=True)
class LabelByProgress(DrawInShuffledOrder):
    """Every turn of the data is labelled good or bad by how much closer it came to the end.

        progress_n = (stage_n + share of the stage's turns before n) / stages
        f(a, b): a small network on the policy's states after two prompts of one episode, trained on
            progress_b - progress_a of random pairs
        relative: A_n = f(n, n + gap);  absolute: A_n = f(0, n + gap) - f(0, n); each times
            horizon / gap, clipped to [-1, 1], gap = min(horizon, turns left), 0 at the last turn
        label 1 for the `percent` percent of largest A, else 0, stage by stage if there are several;
            or, with num_slices, the index of one of so many equal bins

    Rows need the columns `episode` and `stage` (from 0), and `turn` unless they are in order. The
    prompts are then drawn as in draw_in_shuffled_order, each with its label.
    Metrics: progress/rmse of f, progress/frac_good (labels 1, or of the upper half of the bins).

    Reads: pool, texts, scoring, rng, state.   Writes: draws, with label_B [B] float.
    Source: arXiv 2602.09021 (stage advantage); code OpenDriveLab/kai0.
    Differs from the source: turns in place of a robot's frames; f is a small network on the states
    of the initial policy, there a whole model is tuned.
    Nearest part: draw_in_shuffled_order; equal to it but for the label.
    Edges: a horizon beyond the episode -> to its last turn. Labels are in the checkpoint.
    """

    writes: ClassVar[tuple[str, ...]] = ("label_B",)
    declares: ClassVar[tuple[Column, ...]] = (
        Column("label_B", "float", "quality label of its answer", random="uniform"),
    )
    facts: ClassVar[frozenset[str]] = frozenset({"scores_again"})
    # Turns after a turn by which it is judged. Default: released code (50 frames).
    horizon: int = 50
    # Percent of the turns that are good. Default: released code (70).
    percent: float = 70.0
    # Bins of equal size in place of good and bad; 0: none. Default: ours (the code's other form).
    num_slices: int = 0
    # Whether the difference is predicted, not two values subtracted. Default: paper (yes).
    relative: bool = True
    # Steps of the estimator's training; 256 pairs each. Default: ours.
    fit_steps: int = 500

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "horizon", "fit_steps", low=1)
        require(self, "percent", low=0.0, high=100.0)
        require(self, "num_slices", low=0)

    def init(self) -> dict[str, Any]:
        """The initial state: nothing is labelled, and no epoch has started."""
        return {**super().init(), "labels": {}, "rmse": 0.0}

    def __call__(  # type: ignore[override]
        self, pool: tuple[int, ...], state: dict[str, Any], rng: torch.Generator, texts: Texts,
        scoring: Scoring, num_wanted: int | None = None,
    ) -> Result:  # fmt: skip
        labels, rmse = state["labels"], state["rmse"]
        if not labels:
            uids, episode_N, stage_N = in_order(pool, texts)
            feature_NF = features(uids, texts, scoring)
            label_N, rmse = self.label(feature_NF, episode_N, stage_N, rng)
            labels = dict(zip(uids, label_N.tolist(), strict=True))
        drawn = super().__call__(pool, state, rng, num_wanted)
        labelled = tuple(
            draw._replace(columns={**draw.columns, "label_B": labels[draw.uid]})
            for draw in drawn.value
        )
        half = max(self.num_slices, 2) / 2
        good = sum(label >= half for label in labels.values()) / len(labels)
        metrics = {**drawn.metrics, "progress/rmse": rmse, "progress/frac_good": good}
        return Result(labelled, {**drawn.state, "labels": labels, "rmse": rmse}, metrics)

    def label(
        self, feature_NF: Tensor, episode_N: Tensor, stage_N: Tensor, rng: torch.Generator
    ) -> tuple[Tensor, float]:
        """The label [N] of every turn, those of an episode in order, and the estimator's error."""
        progress_N = stage_progress(stage_N, episode_N, segments.count_of(stage_N))
        try:
            estimator, error = fit(feature_NF, progress_N, episode_N, self.fit_steps, rng)
        except ValueError as problem:
            raise UserError(f"label_by_progress: {problem}") from problem
        first_N = torch.searchsorted(episode_N, episode_N)
        value_N = None if self.relative else estimator(feature_NF[first_N], feature_NF)

        def progress(a: Tensor, b: Tensor) -> Tensor:
            if value_N is None:
                return estimator(feature_NF[a], feature_NF[b])
            return value_N[b] - value_N[a]

        advantage_N = look_ahead(episode_N, self.horizon, progress)
        if self.num_slices:
            return slices(advantage_N, self.num_slices), error**0.5
        by_stage = stage_N if int(stage_N.max()) > 0 else None
        return top_share(advantage_N, self.percent, by_stage).long(), error**0.5
