"""Let open choices learn more, and keep learning where the clip would stop them."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop.batch import segments
from strop.method.part import Result, require, require_one_of
from strop.parts.loss.bound.clip_both_sides import ClipBothSides


@dataclass(frozen=True)
class KeepGradientAboveClip(ClipBothSides):
    """Advantages grow with a token's entropy, and the clip from above stops the ratio only.

        B_t = A_t * (1 + weight * Z_t);   Z = (entropy_old - mean) / std (unbiased)
        objective_t = that of clip_both_sides for B_t; where rho > 1 + clip_high and B_t > 0 the
        gradient stays (1 + clip_high) * B_t * grad logp_t on tokens with Z > 0 (kept "high"),
        on those with Z <= 0 ("low"), on "all" or on "none"

    Mean and deviation are over gradient_T of the update and carry no gradient.

    Reads: log_ratio_T [T], advantage_T [T], entropy_old_T [T] float, gradient_T [T] bool.
    Writes: objective_T [T] float.
    Source: code only: WillDreamer/ARL-Arena (the method of arXiv 2510.14545).
    Differs from the source: the gradient is kept on tokens of high entropy, as the paper says;
    that code keeps it on those of low entropy. Statistics are of the update, not a micro-batch.
    Nearest part: clip_both_sides; equal to it when weight is 0 and kept "none".
    Edges: all entropies equal -> Z = 0; weight * Z below -1 flips a sign.
    """

    scope: ClassVar[str] = "update"
    facts: ClassVar[frozenset[str]] = frozenset()  # tokens without an advantage count in the mean
    # Change of the advantage per deviation of entropy. Default: released code.
    weight: float = 0.2
    # Tokens that keep a gradient above the clip. Default: paper (high entropy).
    kept: str = "high"

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "weight")
        require_one_of(self, "kept", ("high", "low", "all", "none"))

    def __call__(  # type: ignore[override]
        self, log_ratio_T: Tensor, advantage_T: Tensor, entropy_old_T: Tensor, gradient_T: Tensor
    ) -> Result:
        one_T = segments.one_key(gradient_T)
        centred_T, std = segments.centred_and_std(entropy_old_T, one_T, 1, gradient_T)
        z_T = centred_T / torch.where(std > 0, std, 1)
        shaped_T = advantage_T * (1 + self.weight * z_T)
        clipped = super().__call__(log_ratio_T, shaped_T)
        ratio_T = log_ratio_T.exp()
        chosen_T = {
            "high": z_T > 0, "low": z_T <= 0,
            "all": torch.ones_like(gradient_T), "none": torch.zeros_like(gradient_T),
        }[self.kept]  # fmt: skip
        top = 1 + self.clip_high
        kept_T = chosen_T & (ratio_T > top) & (shaped_T > 0)
        slope_T = top * shaped_T * (ratio_T / ratio_T.detach() - 1)  # 0, with a gradient
        metrics = {**clipped.metrics, "clip_ratio/kept_mean": kept_T.to(shaped_T.dtype)}
        return Result(clipped.value + torch.where(kept_T, slope_T, 0), metrics=metrics)
