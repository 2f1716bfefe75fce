"""Strengthen or weaken the penalty on each difficulty's prompts until their KL is at a target."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from strop.method.part import Result, require
from strop.method.schedule import Schedule

NAMES = ("easy", "medium", "hard")
AVERAGE, GAIN, LIMIT, DEAD = 0.97, 0.05, 0.2, 0.02  # of the released code
BOUNDS = (1e-4, 100.0)


@dataclass(frozen=True)
class HoldKlByDifficulty:
    """A multiplier for each difficulty rises while its KL is above the target, and falls below it.

        m_d <- 0.97 m_d + 0.03 KL_d;  every `every` steps, if |e| >= 0.02:
        log beta_d <- log beta_d + 0.05 clip(e, +-0.2), e = m_d / target - 1, beta in [1e-4, 100]

    Reads: metrics (ares/kl_easy and the like), state, the knobs that it writes.
    Writes: the knobs `path`.beta_easy, ...
    Source: code only: shawn0728/ARES (the method of arXiv 2510.08457).
    Differs from the source: errors are not averaged once more; it counts steps, there updates.
    Nearest part: hold_entropy_with_coefficient.
    Edges: a difficulty without tokens keeps its mean; the state is in the checkpoint.
    """

    # The part whose weights are moved. Default: ours (the part in the recipe).
    path: str = "terms.kl.objective"
    # The target KL per token, nats; may change over the run. Default: released code.
    target: float | Schedule = 0.01
    # Steps between two moves. Default: released code.
    every: int = 100

    def __post_init__(self) -> None:
        require(self, "target", low=1e-12)
        require(self, "every", low=1)

    @property
    def moves(self) -> tuple[str, ...]:
        """The knobs that are set."""
        return tuple(f"{self.path}.beta_{name}" for name in NAMES)

    def init(self) -> dict[str, Any]:
        """No KL seen (below 0)."""
        return {"steps": 0, "mean": (-1.0,) * 3}

    def __call__(
        self, metrics: Mapping[str, float], state: Mapping[str, Any], knobs: Mapping[str, float]
    ) -> Result:
        assert not isinstance(self.target, Schedule)
        means, betas = [], []
        steps = state["steps"] + 1
        for name, path, old in zip(NAMES, self.moves, state["mean"], strict=True):
            beta = knobs[path]
            share = metrics.get(f"ares/tokens_{name}", 0.0)
            # A mean close to 0 may be rounded to one below it, which here would be none.
            now = max(metrics[f"ares/kl_{name}"] / share, 0.0) if share else old
            mean = now if old < 0 else AVERAGE * old + (1 - AVERAGE) * now
            error = mean / self.target - 1
            if steps % self.every == 0 and mean >= 0 and abs(error) >= DEAD:
                step = GAIN * min(max(error, -LIMIT), LIMIT)
                beta = min(max(beta * math.exp(step), BOUNDS[0]), BOUNDS[1])
            means.append(mean)
            betas.append(beta)
        moved = dict(zip(self.moves, betas, strict=True))
        report = {f"ares/beta_{n}": beta for n, beta in zip(NAMES, betas, strict=True)}
        return Result(moved, {"steps": steps, "mean": tuple(means)}, report)
