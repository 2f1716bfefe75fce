"""Give prompts rollouts by how many instructive failures they are expected to bring."""

import heapq
from dataclasses import dataclass

from strop.method.part import Draw, Result, require
from strop.support.errors import UserError


def expected_failures(num: int, success: float) -> float:
    """U = B (1 - p) (1 - (1 - p)^(B - 1)): failures among B rollouts of a group that is mixed."""
    wrong = 1 - success
    return num * wrong * (1 - wrong ** (num - 1)) if num else 0.0


def allocate(priors: list[float], total: int, least: int, most: int) -> list[int]:
    """Rollouts of each prompt: `least`, then one by one where U grows most, up to `most`."""
    sizes = [least] * len(priors)

    def entry(place: int) -> tuple[float, int]:
        size, p = sizes[place], priors[place]
        gain = expected_failures(size + 1, p) - expected_failures(size, p) if size < most else -1.0
        return -gain, place

    queue = [entry(place) for place in range(len(priors))]
    heapq.heapify(queue)
    for _ in range(total - sum(sizes)):
        loss, best = queue[0]
        if loss > 0 and sizes[best] >= most:
            break
        sizes[best] += 1
        heapq.heapreplace(queue, entry(best))
    return sizes


@dataclass(frozen=True)
class AllocateByFailures:
    """Prompts partly within reach get the rollouts that solved and hopeless ones would waste.

        maximise sum_i U(B_i, prior_i) with sum B_i = the draws' rollouts, B_i in [least, most],
        greedily;  U(B, p) = B (1 - p) (1 - (1 - p)^(B - 1))

    Metrics: budget/least, budget/most (rollouts of a prompt).

    Reads: draws (their prior_B).   Writes: draws.
    Source: arXiv 2602.03584 (rollout budget).
    Differs from the source: no; the formula is known from a note on the paper.
    Nearest part: predict_success_from_history, which writes the prior.
    Edges: U is convex where p B is small, so hopeless prompts may stay at `least` and equal
    priors below about 1/2 share unequally; equal gains -> the first prompt; more rollouts than
    `most` of every prompt -> the rest is not spent; fewer than `least` of every prompt -> a smaller
    `least`.
    """

    # Fewest rollouts of a prompt. Default: paper (2).
    least: int = 2
    # Most rollouts of a prompt. Default: paper (128).
    most: int = 128

    def __post_init__(self) -> None:
        require(self, "least", low=1)
        require(self, "most", low=self.least)

    def __call__(self, draws: tuple[Draw, ...]) -> Result:
        if not draws:
            return Result(draws)
        if any("prior_B" not in draw.columns for draw in draws):
            raise UserError("allocate_by_failures: put predict_success_from_history before it")
        total = sum(draw.num_rollouts for draw in draws)
        priors = [draw.columns["prior_B"] for draw in draws]
        sizes = allocate(priors, total, min(self.least, total // len(draws)), self.most)
        resized = tuple(
            draw._replace(num_rollouts=size).because(
                f"{size} rollouts at an expected success of {prior:.2f}"
            )
            for draw, size, prior in zip(draws, sizes, priors, strict=True)
        )
        metrics = {"budget/least": float(min(sizes)), "budget/most": float(max(sizes))}
        return Result(resized, metrics=metrics)
