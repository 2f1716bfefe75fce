"""Sample more rollouts of the prompts that the first ones show to be hard."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from strop.batch import segments
from strop.batch.batch import Batch
from strop.method.part import Curated, Draw, Result, require


def more_rollouts(
    accuracy: float, num: int, most: int, *, divided: bool = False, by_hardness: bool = False
) -> int:
    """Extra rollouts of a prompt of whose first `num` rollouts the share `accuracy` was right.

    divided: advantages are divided by the group's deviation; by_hardness: the target is not the
    same for all, but grows with 1 - accuracy.
    """
    a = min(accuracy if accuracy > 1e-6 else 0.5 / num, 1.0)
    if a >= 0.5:
        return 0
    signal = 2 * math.sqrt(a * (1 - a)) if divided else 2 * a * (1 - a)
    target = (num if divided else 0.5 * num) * (2 * (1 - a) if by_hardness else 1)
    wanted = math.ceil((target - num * signal) / signal - 1e-9)
    return max(min(wanted, most - num), 0)


@dataclass(frozen=True)
class AskByHardness:
    """Hard prompts get more rollouts, so that they push as much as half-solved ones.

        a: mean outcome of a group's N rollouts, 1 / (2 N) where it is 0;  a >= 1/2: no more
        S = 2 a (1 - a), |A| of a rollout on average;  peak = N / 2: N S at a = 1/2
        divided: S = 2 sqrt(a (1 - a)), peak = N
        target = peak, by_hardness: 2 (1 - a) peak
        extra rollouts: min(ceil((target - N S) / S), most - N), in the same group

    Metrics: budget/mean (rollouts of a prompt in the end), budget/more (prompts that got more /
    prompts).

    Reads: batch, outcome_B [B] float, group_B [B] int, scored_B [B] bool; state.   Writes: all
    rows; requests draws.
    Source: arXiv 2508.13755; code yangzhch6/DARS (ray_dars_trainer.py).
    Differs from the source: no; its code draws the second round under other flags.
    Nearest part: ask_while_uncertain, which requests one at a time.
    Edges: outcomes outside 0 to 1 are clamped; no scored rollout -> no more.
    """

    facts: ClassVar[frozenset[str]] = frozenset({"extends_groups"})
    # Most rollouts of a prompt. Default: released code (32).
    most: int = 32
    # Whether the target grows with hardness. Default: released code (equal treatment).
    by_hardness: bool = False
    # Whether advantages are divided by the deviation. Default: released code (no).
    divided: bool = False

    def __post_init__(self) -> None:
        require(self, "most", low=1)

    def init(self) -> dict[str, Any]:
        """The initial state: no group of the step was examined."""
        return {"seen": (), "asked": 0}

    def __call__(
        self, batch: Batch, outcome_B: Tensor, group_B: Tensor, scored_B: Tensor,
        state: dict[str, Any],
    ) -> Result:  # fmt: skip
        num = batch.size("P")
        accuracy_P = segments.mean(outcome_B.double().clamp(0, 1), group_B, num, scored_B)
        sizes = segments.count(group_B, num).tolist()
        known = (segments.count(group_B, num, scored_B) > 0).tolist()
        groups = list(zip(batch["uid_P"].tolist(), batch["draw_P"].tolist(), strict=True))
        seen = {tuple(group) for group in state["seen"]}
        ask = []
        rows = zip(groups, accuracy_P.tolist(), sizes, known, strict=True)
        for (uid, draw), accuracy, size, scored in rows:
            if (uid, draw) in seen or not scored:
                continue
            more = more_rollouts(
                accuracy, size, self.most, divided=self.divided, by_hardness=self.by_hardness
            )
            if more:
                why = f"{more} rollouts more at {accuracy:.2f} of {size}"
                ask.append(Draw(uid, more, draw=draw, why=why))
        everything = Curated(torch.ones_like(scored_B), "easy_prompt", ask=tuple(ask))
        asked = state["asked"] + len(ask)
        metrics = {"budget/mean": batch.size("B") / max(num, 1), "budget/more": asked / max(num, 1)}
        if ask:
            return Result(everything, {"seen": (*state["seen"], *groups), "asked": asked}, metrics)
        return Result(everything, self.init(), metrics)
