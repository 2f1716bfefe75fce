"""Give prompts that mostly succeed fewer rollouts."""

from dataclasses import dataclass

from strop.method.part import Draw, Result, require
from strop.parts.sampling._tracked import Tracked


@dataclass(frozen=True)
class SpareSolvedPrompts:
    """Rollouts go where success is open; a few are enough for mostly solved prompts.

        s: success of the prompt's earlier answers;  N: its rollouts as drawn
        s < threshold, or not known: N;   else min(N, max(least, int(9 / s - 7)))

    Metrics: budget/least, budget/most (rollouts of a prompt).

    Reads: draws, tracked.   Writes: draws.
    Source: arXiv 2509.23866 (dynamic rollout number); code Computer-use-agents/dart-gui.
    Differs from the source: no; the threshold is the paper's (released code: 1.0).
    Nearest part: allocate_by_failures, which distributes a fixed number.
    Edges: N below least -> N.
    """

    # Fewest rollouts of a prompt. Default: released code (2).
    least: int = 2
    # Success below which a prompt keeps all its rollouts. Default: paper (0.6).
    threshold: float = 0.6

    def __post_init__(self) -> None:
        require(self, "least", low=1)
        require(self, "threshold", low=1e-3)

    def __call__(self, draws: tuple[Draw, ...], tracked: Tracked) -> Result:
        known = tracked.of([draw.uid for draw in draws]).success_N.tolist()
        spared = tuple(self._spared(draw, s) for draw, s in zip(draws, known, strict=True))
        sizes = [draw.num_rollouts for draw in spared]
        if not sizes:
            return Result(spared)
        metrics = {"budget/least": float(min(sizes)), "budget/most": float(max(sizes))}
        return Result(spared, metrics=metrics)

    def _spared(self, draw: Draw, success: float) -> Draw:
        """The draw with the number of rollouts that its success allows."""
        if not success >= self.threshold:
            return draw
        size = min(draw.num_rollouts, max(self.least, int(9 / success - 7 + 1e-9)))
        return draw._replace(num_rollouts=size).because(f"{size} at a success of {success:.2f}")
