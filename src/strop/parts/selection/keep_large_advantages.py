"""Spend no training on rollouts that teach next to nothing."""

from dataclasses import dataclass

from torch import Tensor

from strop.method.part import Selected, require


@dataclass(frozen=True)
class KeepLargeAdvantages:
    """Rollouts whose advantage is close to 0 are left out.

        rollout i stays if |advantage_i| >= smallest        (positive_only: advantage_i >= smallest)

    Reads: advantage_B [B] float, scored_B [B] bool if present, mask_T [T] bool, rollout_T [T]
    int.   Writes: gradient_T, denominator_T [T] bool.
    Source: arXiv 2502.01600; code apple/ml-loop.
    Differs from the source: the number kept is not rounded up to a multiple of the workers'.
    Nearest part: keep_inside_entropy_band.
    Edges: unscored rollouts go; everything is small -> empty masks.
    """

    # Smallest absolute advantage that stays, reward units. Default: released code (0.01).
    smallest: float = 0.01
    # Whether only good rollouts stay. Default: released code (no; its option).
    positive_only: bool = False

    def __post_init__(self) -> None:
        require(self, "smallest", low=0.0)

    def __call__(
        self, advantage_B: Tensor, mask_T: Tensor, rollout_T: Tensor, scored_B: Tensor | None = None
    ) -> Selected:
        size_B = advantage_B if self.positive_only else advantage_B.abs()
        keep_B = size_B >= self.smallest
        keep_B = keep_B if scored_B is None else keep_B & scored_B
        keep_T = mask_T & keep_B[rollout_T]
        return Selected(keep_T, keep_T, "small_advantage")
