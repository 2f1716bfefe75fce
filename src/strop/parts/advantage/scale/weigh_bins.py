"""Weigh each class of difficulty by a score, such as how large its loss has been."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop.batch import segments
from strop.batch.columns import Column
from strop.method.part import require, require_one_of
from strop.support.errors import UserError


@dataclass(frozen=True)
class WeighBins:
    """Prompts of the classes that go worst push hardest, as an adversary would choose.

        omega_b = exp(eta score_b)
        paper: w_b = min(omega_b, cap)
        code: q_b = (1 - gamma) omega_b / sum omega + gamma / classes, over the classes present;
            w_b = min(q_b, cap) / its mean over the scored rollouts, at most cap
        advantage_i <- advantage_i * w of its class;   bin_weight_i: that w

    Reads: advantage_B [B] float, bin_B [B] int, scored_B [B] bool.
    Writes: advantage_B, bin_weight_B [B] float.
    Source: arXiv 2601.19280 (prompt weights); code kishanpb/verl-gdro (group_dro_grpo.py).
    Differs from the source: no; the two forms differ by a factor that the batch decides.
    Nearest part: shift_weight_to_hard_prompts.
    Edges: no scores, or all 0 ("code": all alike) -> times 1; class -1 -> times 1; unscored -> 0;
    a class that has none of the scores -> UserError.
    """

    writes: ClassVar[tuple[str, ...]] = ("advantage_B", "bin_weight_B")
    declares: ClassVar[tuple[Column, ...]] = (
        Column("bin_weight_B", "float", "factor on its advantage by its class",
               random="positive"),
    )  # fmt: skip
    # Score of each class; none: all alike. Default: ours (the harder, the more).
    scores: tuple[float, ...] = (1.0, 0.0, -1.0)
    # How much a score counts. Default: released code (0.65).
    eta: float = 0.65
    # Largest weight. Default: released code (15).
    cap: float = 15.0
    # Share of the even distribution; of "code" alone. Default: released code (0.01).
    gamma: float = 0.01
    # "paper" or "code". Default: paper.
    source_form: str = "paper"

    def __post_init__(self) -> None:
        require(self, "eta", low=0.0)
        require(self, "cap", low=1e-6)
        require(self, "gamma", low=0.0, high=1.0)
        require_one_of(self, "source_form", ("paper", "code"))

    def __call__(
        self, advantage_B: Tensor, bin_B: Tensor, scored_B: Tensor
    ) -> tuple[Tensor, Tensor]:
        bin_B = bin_B.nan_to_num(-1).long()
        known_B, key_B = bin_B >= 0, bin_B.clamp(min=0)
        num = max(segments.count_of(key_B), 1)
        if self.scores and num > len(self.scores):
            raise UserError(
                f"weigh_bins.scores has {len(self.scores)} numbers: give one for each of the "
                "classes of sort_by_success"
            )
        score_N = advantage_B.new_tensor(self.scores or (0.0,) * num, dtype=torch.float64)
        if self.source_form == "code":
            weight_N = self._shares(score_N, key_B, known_B & scored_B)
        else:
            weight_N = (self.eta * score_N).exp()
        weight_N = weight_N.clamp(max=self.cap)
        weight_B = torch.where(known_B, weight_N[key_B], 1.0).to(advantage_B.dtype)
        weight_B = torch.where(scored_B, weight_B, 0)
        return torch.where(scored_B, advantage_B * weight_B, 0), weight_B

    def _shares(self, score_N: Tensor, key_B: Tensor, here_B: Tensor) -> Tensor:
        """The capped q [classes] over its mean over the rollouts."""
        count_N = segments.count(key_B, score_N.shape[0], here_B).double()
        there_N = count_N > 0
        if not bool(there_N.any()):
            return torch.ones_like(score_N)
        omega_N = torch.where(there_N, self.eta * score_N, -torch.inf).softmax(0)
        share_N = (1 - self.gamma) * omega_N + self.gamma / there_N.sum()
        share_N = share_N.clamp(max=self.cap)
        return share_N * count_N.sum() / (share_N * count_N).sum()
