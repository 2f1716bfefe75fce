"""Hold the policy near a frozen reference, judged by the whole next-token distribution."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop.method.part import Result


@dataclass(frozen=True)
class PenaliseFullKlToReference:
    """At every position the distribution is pulled towards the reference's, without sampling noise.

        objective_t = -KL(current || reference) = -sum_v q_tv * (logq_tv - logq_ref_tv)

    Reads: logq_TV [T, V] float, logq_ref_TV [T, V] float.   Writes: objective_T [T] float (nats).
    Source: arXiv 2402.03300, sec. 4.1.1 (the divergence that its estimator k3 stands for).
    Differs from the source: exact in the vocabulary, where the source has the sampled token.
    Nearest part: penalise_kl_to_reference with estimator k2, whose expected gradient under the
    current policy is this one's.
    Edges: a token impossible under both -> adds 0; possible only under the current policy ->
    minus infinity. The reference gets no gradient.
    """

    scope: ClassVar[str] = "token"

    def __call__(self, logq_TV: Tensor, logq_ref_TV: Tensor) -> Result:
        q_TV = logq_TV.exp()
        gap_TV = torch.where(q_TV > 0, logq_TV - logq_ref_TV.detach(), 0)
        kl_T = (q_TV * gap_TV).sum(-1)
        return Result(-kl_T, metrics={"kl": kl_T.detach()})
