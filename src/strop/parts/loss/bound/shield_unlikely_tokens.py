"""Spare unlikely but plausible tokens of bad answers: pull the policy to its plausible self."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop.batch import segments
from strop.head.chunk import column_of
from strop.method.part import Result, require, require_constant, require_one_of
from strop.parts.loss.bound.clip_both_sides import ClipBothSides
from strop.support.errors import UserError

CLAMP_NATS = 20.0
CLAMP_K3 = 10.0  # of the released code
PLAUSIBLE = -1e3  # log-probabilities of tokens that the proxy has cut lie far below


@dataclass(frozen=True)
class ShieldUnlikelyTokens(ClipBothSides):
    """Beside the clip, blamed tokens that are unlikely but plausible are held near the proxy.

        objective_t = that of clip_both_sides - coef * I_t * D_t
        paper: I_t = pi_t < the share-quantile of pi, A_t < 0 and proxy_t > 0
        code: I_t = pi_t among the int(share * n) lowest of the n tokens with A < 0, and below
        proxy_t; int(share * n) >= 2; their objective is rho * A - coef * D, without clip
        D_t = k3 = exp(d) - d - 1, d = logp_proxy_t - logp_t; or min_p_kl_t (divergence "full")

    Quantile and counts are over gradient_T of the update, of the current policy.

    Reads: log_ratio_T [T], advantage_T [T], logp_T [T], logp_proxy_T [T] float, gradient_T [T]
    bool; min_p_kl_T [T] float for "full".   Writes: objective_T [T] float.
    Source: arXiv 2510.03222, eq. 5 and 6; "code" is CarlanLark/Lp-Reg-dev.
    Differs from the source: k3 of the sampled token is the default, as in its code, where the
    paper writes the whole divergence; the code's counts are of a micro-batch.
    Nearest part: clip_both_sides; equal to it where share is 0, in "paper" also
    where coef is 0.
    Edges: d is held within 20 nats; the code's k3 above 10 has no gradient.
    """

    scope: ClassVar[str] = "update"
    facts: ClassVar[frozenset[str]] = frozenset()  # the quantile is over all tokens
    # Share of the tokens that are unlikely. Default: paper (14B; 0.005 for 32B).
    share: float = 0.01
    # Weight of the divergence, reward per nat. Default: paper.
    coef: float = 1.0
    # "paper" or "code". Default: paper.
    variant: str = "paper"
    # "k3" (of the sampled token) or "full". Default: released code.
    divergence: str = "k3"
    # Tokens up to this share of the largest probability are cut for "full". Default: paper.
    kappa: float = 0.02

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "share", low=0.0, high=1.0)
        require(self, "coef", low=0.0)
        require_one_of(self, "variant", ("paper", "code"))
        require_one_of(self, "divergence", ("k3", "full"))
        require(self, "kappa", low=0.0, high=0.999)
        require_constant(self, "kappa")  # it is in the name of the column

    @property
    def columns(self) -> dict[str, str]:
        """The column of this proxy's divergence."""
        return {"min_p_kl_T": column_of("min_p_kl", self.kappa)}

    @property
    def unread(self) -> frozenset[str]:
        """The whole divergence, where that of the sampled token is used."""
        return frozenset() if self.divergence == "full" else frozenset({"min_p_kl_T"})

    @property
    def equals(self) -> dict[str, str]:
        """The whole divergence is from the proxy that the probe has scored."""
        return {"kappa": "probes.score_plausible_tokens.kappa"} if self.divergence == "full" else {}

    def __call__(  # type: ignore[override]
        self,
        log_ratio_T: Tensor,
        advantage_T: Tensor,
        logp_T: Tensor,
        logp_proxy_T: Tensor,
        gradient_T: Tensor,
        min_p_kl_T: Tensor | None = None,
    ) -> Result:
        clipped = super().__call__(log_ratio_T, advantage_T)
        shielded_T = self._shielded(logp_T.detach(), advantage_T, logp_proxy_T, gradient_T)
        code = self.variant == "code"
        if self.divergence == "full":
            if min_p_kl_T is None:
                raise UserError("shield_unlikely_tokens needs min_p_kl for the full divergence")
            away_T = min_p_kl_T
        else:
            d_T = (logp_proxy_T - logp_T).clamp(-CLAMP_NATS, CLAMP_NATS)
            away_T = d_T.expm1() - d_T
            away_T = away_T.clamp(-CLAMP_K3, CLAMP_K3) if code else away_T
        base_T = log_ratio_T.exp() * advantage_T if code else clipped.value
        held_T = base_T - self.coef * torch.where(shielded_T, away_T, 0)
        metrics = {**clipped.metrics, "lp_reg/shielded_mean": shielded_T.to(held_T.dtype)}
        return Result(torch.where(shielded_T, held_T, clipped.value), metrics=metrics)

    def _shielded(
        self, logp_T: Tensor, advantage_T: Tensor, logp_proxy_T: Tensor, gradient_T: Tensor
    ) -> Tensor:
        """The unlikely, blamed and plausible tokens [T] bool."""
        blamed_T = gradient_T & (advantage_T < 0)
        one_T = segments.one_key(gradient_T)
        if self.variant == "code":
            number = int(self.share * int(blamed_T.sum()))
            lowest_T = segments.rank(logp_T, one_T, 1, blamed_T) < number
            return lowest_T & blamed_T & (logp_T < logp_proxy_T) & (number > 1)
        level = segments.quantile(logp_T.exp(), one_T, 1, self.share, gradient_T)
        return blamed_T & (logp_T.exp() < level) & (logp_proxy_T > PLAUSIBLE)
