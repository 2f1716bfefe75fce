"""Score each class of difficulty by how large its loss has lately been."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from strop.method.part import Result, require
from strop.parts.control._bins import losses_of

FLOOR, LARGEST = 1e-3, 3.0  # of a standardised score; released code


@dataclass(frozen=True)
class RaiseScoresOfBins:
    """The classes that lose most get the largest scores, and with them the largest weights.

        S_b <- (1 - beta) S_b + beta l_b, at the first visit S_b = l_b
        l_b: mean loss of the class's rollouts, with by_share divided by their share of all rollouts
        score_b = clip(S_b, -limit, limit), S_b = 0 before the first visit
        standardise: score_b = (S_b - mean) / max(std (n), 1e-3), within -3 and 3; mean and std of
        the classes that were visited

    Metric: bins/score_{n}.

    Reads: metrics (bins/loss_{n}, bins/share_{n}), state.
    Writes: the knob advantage.weigh_bins.scores.
    Source: arXiv 2601.19280 (prompt weights); code kishanpb/verl-gdro (group_dro_grpo.py).
    Differs from the source: the paper's limit of S was not found; its code has none.
    Nearest part: hold_kl_by_difficulty.
    Edges: a class without a rollout keeps its S; the state is in the checkpoint.
    """

    moves: ClassVar[tuple[str, ...]] = ("advantage.weigh_bins.scores",)
    # Classes. Default: released code (two edges).
    num_bins: int = 3
    # Weight of a step in the running mean. Default: released code (0.12).
    beta: float = 0.12
    # Largest absolute score; 0: any. Default: ours (5: weights up to 26 at eta 0.65).
    limit: float = 5.0
    # Whether losses are divided by the class's share. Default: released code (yes).
    by_share: bool = True
    # Whether scores are standardised over the classes. Default: paper (no).
    standardise: bool = False

    def __post_init__(self) -> None:
        require(self, "num_bins", low=1)
        require(self, "beta", low=0.0, high=1.0)
        require(self, "limit", low=0.0)

    def init(self) -> dict[str, Any]:
        """No class visited."""
        return {"mean": {}}

    def __call__(self, metrics: Mapping[str, float], state: Mapping[str, Any]) -> Result:
        means = dict(state["mean"])
        for b, (loss, share) in losses_of(metrics, self.num_bins).items():
            now = loss / share if self.by_share else loss
            means[b] = (1 - self.beta) * means[b] + self.beta * now if b in means else now
        scores = self.scores(means)
        report = {f"bins/score_{b}": score for b, score in enumerate(scores)}
        return Result({self.moves[0]: scores}, {"mean": means}, report)

    def scores(self, means: Mapping[int, float]) -> tuple[float, ...]:
        """The score of every class from the running means of those visited."""
        unseen, high = 0.0, self.limit or math.inf
        if self.standardise and means:
            middle = sum(means.values()) / len(means)
            variance = sum((mean - middle) ** 2 for mean in means.values()) / len(means)
            wide = max(variance**0.5, FLOOR)
            means = {b: (mean - middle) / wide for b, mean in means.items()}
            unseen, high = -middle / wide, LARGEST
        return tuple(min(max(means.get(b, unseen), -high), high) for b in range(self.num_bins))
