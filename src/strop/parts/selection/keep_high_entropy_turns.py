"""Learn from the turns of each prompt in which the policy was least sure."""

from dataclasses import dataclass

from torch import Tensor

from strop.batch import segments
from strop.method.part import Result, Selected, require


@dataclass(frozen=True)
class KeepHighEntropyTurns:
    """Routine turns stay out of the update; turns with a choice in them learn.

        H_k = mean of entropy_old_t over the turn's tokens with gradient
        turn k stays if H_k >= the `level`-quantile (linear) of the turns of its group

    Metric: entropy_control/turns_kept (turns kept / turns with gradient).

    Reads: entropy_old_T [T] float, gradient_T [T] bool, turn_T [T] int, group_K [K] int, num_turns,
    num_groups int.   Writes: gradient_T, denominator_T [T] bool.
    Source: arXiv 2509.23866 (its step level; not active in the released code).
    Differs from the source: no.
    Nearest part: keep_high_entropy_tokens, which compares all tokens of a step.
    Edges: one turn in a group -> kept; level 0 -> all kept; nothing with gradient -> empty masks.
    """

    # Share of a group's turns that lie below. Default: paper (0.2: the top 80% stay).
    level: float = 0.2

    def __post_init__(self) -> None:
        require(self, "level", low=0.0, high=1.0)

    def __call__(
        self, entropy_old_T: Tensor, gradient_T: Tensor, turn_T: Tensor, group_K: Tensor,
        num_turns: int, num_groups: int,
    ) -> Result:  # fmt: skip
        has_K = segments.count(turn_T, num_turns, gradient_T) > 0
        mean_K = segments.mean(entropy_old_T.double(), turn_T, num_turns, gradient_T)
        line_P = segments.quantile(mean_K, group_K, num_groups, self.level, has_K)
        keep_K = has_K & (mean_K >= line_P[group_K] - 1e-12)
        keep_T = gradient_T & keep_K[turn_T]
        share = float(keep_K.sum() / has_K.sum().clamp(min=1))
        metrics = {"entropy_control/turns_kept": share}
        return Result(Selected(keep_T, keep_T, "low_entropy_turn"), metrics=metrics)
