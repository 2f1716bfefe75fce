"""Credit each stretch of an answer with the change in its expected outcome."""

from dataclasses import dataclass

import torch
from torch import Tensor

from strop.batch import segments
from strop.method.part import Result, present, require
from strop.parts.advantage.credit._steps import rise_metrics, steps_of


@dataclass(frozen=True)
class CreditValueSteps:
    """A stretch of tokens learns by how far it moved the chance of success.

        advantage_t = V_next - V_last

    V_last: the value at the last cut at or before t; V_next: at the next cut of the rollout, else
    its reward. A cut is a token with a known value (of the tokens before it); where cut_T is
    given, only its tokens are cuts. With normalize_std: / (value_std at V_last + eps).

    Reads: prefix_value_T [T] float (NaN: not known), reward_B [B] float, scored_B [B] bool,
    rollout_T [T] int, mask_T [T] bool; cut_T [T] bool and value_std_T [T] float where given.
    Writes: advantage_T [T] float.
    Source: arXiv 2505.23564; code only: AIFrameResearch/SPO.
    Differs from the source: no. Tokens before the first cut get 0, as in the code.
    Nearest part: spread_evenly; equal to it after subtracting V of the prompt when each rollout's
    first token is its only cut.
    Edges: no cut -> 0; unscored -> 0.
    """

    # Divide by the spread of the values that the state before the stretch led to. Default: ours
    # (off, the paper's main form for trees).
    normalize_std: bool = False
    # Added to that spread, reward units. Default: released code.
    eps: float = 1e-8

    def __post_init__(self) -> None:
        require(self, "eps", low=0.0)

    @property
    def any_of(self) -> tuple[tuple[str, ...], ...]:
        """The spread of values, where steps are divided by it."""
        return (("value_std_T",),) if self.normalize_std else ()

    def __call__(
        self,
        prefix_value_T: Tensor,
        reward_B: Tensor,
        scored_B: Tensor,
        rollout_T: Tensor,
        mask_T: Tensor,
        cut_T: Tensor | None = None,
        value_std_T: Tensor | None = None,
    ) -> Result:
        steps = steps_of(prefix_value_T, scored_B, rollout_T, mask_T, cut_T)
        if steps is None:
            nothing_N = prefix_value_T.new_zeros(0)
            return Result(
                torch.zeros_like(prefix_value_T), metrics=rise_metrics(None, nothing_N, scored_B)
            )
        before_N = prefix_value_T[steps.row_N]
        rise_N = steps.after(before_N, reward_B[steps.rollout_N]) - before_N
        metrics = rise_metrics(steps, rise_N, scored_B)
        if self.normalize_std:
            rise_N = segments.divided(rise_N, present(value_std_T)[steps.row_N] + self.eps)
        return Result(steps.spread(rise_N), metrics=metrics)
