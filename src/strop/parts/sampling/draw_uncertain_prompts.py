"""Draw the prompts that teach most, by a freshly sampled belief about their success."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from strop.method.part import Result
from strop.parts.sampling._chosen import ChosenPrompts
from strop.parts.sampling._tracked import Tracked
from strop.support.errors import UserError


@dataclass(frozen=True)
class DrawUncertainPrompts(ChosenPrompts):
    """The drawn prompts are those that seem neither solved nor hopeless.

        p_i ~ Beta(right_i + 1, wrong_i + 1) for every prompt of the pool (Thompson sampling)
        I_i = p_i^a (1 - p_i)^b;  the num_prompts prompts of the largest I

    right, wrong: sums that track_success keeps, 0 for a prompt that was never drawn. Metrics:
    draw/success (mean p of those drawn), /information (mean I of those drawn).

    Reads: pool, tracked, rng, state, num_wanted.   Writes: draws.
    Source: arXiv 2511.18902 (a 1, b 2; 1 and 1: its symmetric form; greedy: its ablation).
    Differs from the source: no.
    Nearest part: draw_in_shuffled_order, which needs no estimate.
    Edges: equal I -> the first of the pool; more wanted than there are -> all of them again; a
    refill takes the next best that this step has not drawn.
    """

    # Exponents of success and failure in I. Default: paper (largest at a success of 1/3).
    powers: tuple[float, float] = (1.0, 2.0)
    # Whether p is the belief's mean, not a draw from it. Default: paper (a draw).
    greedy: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.powers) != 2 or not all(power >= 0 for power in self.powers):
            raise UserError(
                f"draw_uncertain_prompts.powers must be two numbers of at least 0: {self.powers}"
            )

    def __call__(
        self, pool: tuple[int, ...], tracked: Tracked, rng: torch.Generator,
        state: dict[str, Any], num_wanted: int | None = None,
    ) -> Result:  # fmt: skip
        known = tracked.of(pool)
        a_N, b_N = (known.right_N + 1).numpy(), (known.wrong_N + 1).numpy()
        seed = int(torch.randint(2**62, (), generator=rng))
        p_N = a_N / (a_N + b_N) if self.greedy else np.random.default_rng(seed).beta(a_N, b_N)
        information_N = information(p_N, *self.powers)
        order = np.argsort(-information_N, kind="stable").tolist()
        estimates = dict(
            zip(pool, zip(p_N.tolist(), information_N.tolist(), strict=True), strict=True)
        )

        def why(uid: int) -> str:
            return (
                f"information {estimates[uid][1]:.3f} at a drawn success of {estimates[uid][0]:.2f}"
            )

        draws, state = self.chosen([pool[row] for row in order], state, num_wanted, why)
        found = [estimates[draw.uid] for draw in draws]
        metrics = {
            "draw/success": sum(p for p, _ in found) / len(found),
            "draw/information": sum(i for _, i in found) / len(found),
        }
        return Result(draws, state, metrics)


def information(p_N: np.ndarray, right: float, wrong: float) -> np.ndarray:
    """p^right (1 - p)^wrong [N]."""
    return np.asarray(p_N**right * (1 - p_N) ** wrong)
