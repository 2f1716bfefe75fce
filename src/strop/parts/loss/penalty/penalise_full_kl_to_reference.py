"""Hold the policy near a frozen reference, judged by the whole next-token distribution."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop.method.part import Result, name_of, require, require_one_of
from strop.support.errors import UserError


@dataclass(frozen=True)
class PenaliseFullKlToReference:
    """At every position the distribution is pulled towards the reference's, without sampling noise.

        objective_t = -D_t,  q the current distribution, p the reference's
        reverse: KL(q || p) = sum_v q_v (log q_v - log p_v)      forward: KL(p || q)
        jensen_shannon: beta KL(p || m) + (1 - beta) KL(q || m),  m = beta p + (1 - beta) q

    With top_k the sums are over the k likeliest tokens of one of the two; what is left of each
    distribution is one further token ("tail"), or is given to the k in proportion ("renormalise").
    With the tail it is a true divergence, over a coarser vocabulary, never above that of all.

    Reads: logq_TV [T, V] float, logq_ref_TV [T, V] float.   Writes: objective_T [T] float (nats).
    Source: arXiv 2402.03300, sec. 4.1.1 (reverse; the divergence that its estimator k3 stands for);
    arXiv 2306.13649, eq. 1 (jensen_shannon); arXiv 2604.13016 (top_k of the current policy).
    Differs from the source: exact over the vocabulary; the first has the sampled token. A sum
    over top_k alone, without what is left, is no divergence (it can be below 0) and not offered.
    Nearest part: penalise_kl_to_reference with estimator k2, whose expected gradient under the
    current policy is that of "reverse".
    Edges: a token impossible under both -> adds 0; possible only under the current policy ->
    minus infinity for "reverse", only under the reference for "forward". The reference gets no
    gradient, nor does the choice of the k.
    """

    scope: ClassVar[str] = "token"
    # "reverse", "forward" or "jensen_shannon". Default: paper (2402.03300).
    divergence: str = "reverse"
    # Share of the reference in the mixture of "jensen_shannon", between 0 and 1. Default: released
    # code (TRL's GKD).
    beta: float = 0.5
    # Tokens that the sums are over; 0: all. Default: ours.
    top_k: int = 0
    # Whose likeliest tokens they are: "reference" or "current". Default: released code
    # (verl).
    top_of: str = "reference"
    # What becomes of the others: "tail" or "renormalise". Default: ours.
    others: str = "tail"

    def __post_init__(self) -> None:
        require_one_of(self, "divergence", ("reverse", "forward", "jensen_shannon"))
        require_one_of(self, "top_of", ("reference", "current"))
        require_one_of(self, "others", ("tail", "renormalise"))
        require(self, "beta", low=0.0, high=1.0)
        require(self, "top_k", low=0)
        if self.divergence == "jensen_shannon" and self.beta in (0, 1):
            other = "reverse" if self.beta else "forward"
            raise UserError(
                f"{name_of(self)}.beta {self.beta} makes jensen_shannon 0 everywhere, so nothing "
                f"would be learnt: take divergence={other}, or a beta between 0 and 1"
            )

    def __call__(self, logq_TV: Tensor, logq_ref_TV: Tensor) -> Result:
        logp_TV = logq_ref_TV.detach()
        if 0 < self.top_k < logq_TV.shape[-1]:
            chosen = logp_TV if self.top_of == "reference" else logq_TV.detach()
            top_TK = chosen.topk(self.top_k).indices
            logq_TV, logp_TV = (self._coarse(each, top_TK) for each in (logq_TV, logp_TV))
        divergence_T = self._divergence(logq_TV, logp_TV)
        return Result(-divergence_T, metrics={"kl": divergence_T.detach()})

    def _coarse(self, log_TV: Tensor, top_TK: Tensor) -> Tensor:
        """The distribution over the chosen tokens and, with the tail, one token for all others."""
        log_TK = log_TV.gather(-1, top_TK)
        if self.others == "renormalise":
            return log_TK - log_TK.logsumexp(-1, keepdim=True)
        left_T1 = (log_TV > -torch.inf).sum(-1, keepdim=True)
        none_T1 = left_T1 == (log_TK > -torch.inf).sum(-1, keepdim=True)
        # All others impossible: 0 takes the place of the k, or the sum's gradient would be NaN.
        instead_TK = torch.where(none_T1, 0.0, -torch.inf).to(log_TV.dtype).expand_as(log_TK)
        tail_T1 = log_TV.scatter(-1, top_TK, instead_TK).logsumexp(-1, keepdim=True)
        return torch.cat([log_TK, torch.where(none_T1, -torch.inf, tail_T1)], dim=-1)

    def _divergence(self, logq_TV: Tensor, logp_TV: Tensor) -> Tensor:
        if self.divergence == "reverse":
            return _kl(logq_TV, logp_TV)
        if self.divergence == "forward":
            return _kl(logp_TV, logq_TV)
        share = logq_TV.new_tensor([self.beta, 1 - self.beta]).log()
        parts = logp_TV + share[0], logq_TV + share[1]
        # Where both are impossible, the gradient of the sum would be NaN.
        possible_TV = torch.maximum(*parts).detach() > -torch.inf
        mixed_TV = torch.logaddexp(*(torch.where(possible_TV, each, 0) for each in parts))
        return self.beta * _kl(logp_TV, mixed_TV) + (1 - self.beta) * _kl(logq_TV, mixed_TV)


def _kl(one_TV: Tensor, other_TV: Tensor) -> Tensor:
    """KL(one || other) [T]; a token impossible under the first adds 0, and no NaN to gradients."""
    possible_TV = one_TV > -torch.inf
    gap_TV = torch.where(possible_TV, one_TV - other_TV, 0)
    return (one_TV.exp() * gap_TV).sum(-1)
