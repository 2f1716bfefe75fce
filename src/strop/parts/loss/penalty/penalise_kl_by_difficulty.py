"""Hold the policy near a frozen reference, with a strength for each difficulty of prompts."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop.batch.columns import Column
from strop.method.part import Result, require
from strop.parts.loss.penalty.penalise_kl_to_reference import PenaliseKlToReference


@dataclass(frozen=True)
class PenaliseKlByDifficulty:
    """Easy, medium and hard prompts have a penalty of their own, and single tokens a weight.

        objective_t = -beta_d * kl_weight_t * k3_t;  d: the difficulty of the rollout's prompt

    Metrics: ares/kl_easy, _medium, _hard (sums over the difficulty's tokens / all tokens) and the
    shares of their tokens, which hold_kl_by_difficulty divides by.

    Reads: logp_T, logp_ref_T, kl_weight_T [T] float, difficulty_B [B], rollout_T [T] int.
    Writes: objective_T [T] float (nats).
    Source: arXiv 2510.08457, sec. 3.2.
    Differs from the source: no.
    Nearest part: penalise_kl_to_reference; equal to it with estimator k3 and all weights 1.
    Edges: as in penalise_kl_to_reference.
    """

    declares: ClassVar[tuple[Column, ...]] = (
        Column("kl_weight_T", "float", "weight of the divergence", random="positive"),
        Column("difficulty_B", "int", "of its prompt: 0 easy, 1 medium, 2 hard", random="key:3"),
    )
    scope: ClassVar[str] = "token"
    # Weight on easy prompts. Default: released code (1 at the start; its control moves it).
    beta_easy: float = 1.0
    # Weight on medium prompts. Default: released code.
    beta_medium: float = 1.0
    # Weight on hard prompts. Default: released code.
    beta_hard: float = 1.0

    def __post_init__(self) -> None:
        require(self, "beta_easy", "beta_medium", "beta_hard", low=0.0)

    def __call__(
        self,
        logp_T: Tensor,
        logp_ref_T: Tensor,
        kl_weight_T: Tensor,
        difficulty_B: Tensor,
        rollout_T: Tensor,
    ) -> Result:
        plain = PenaliseKlToReference()(logp_T, logp_ref_T)
        beta_D = logp_T.new_tensor([self.beta_easy, self.beta_medium, self.beta_hard])
        difficulty_T = difficulty_B[rollout_T]
        own = {name: difficulty_T == d for d, name in enumerate(("easy", "medium", "hard"))}
        kl_T = plain.metrics["kl"]
        sums = {f"ares/kl_{name}": torch.where(own_T, kl_T, 0) for name, own_T in own.items()}
        sizes = {f"ares/tokens_{name}": own_T.to(kl_T.dtype) for name, own_T in own.items()}
        metrics = {**plain.metrics, **sums, **sizes}
        return Result(plain.value * beta_D[difficulty_T] * kl_weight_T, metrics=metrics)
