"""Columns of the head over a part of the vocabulary; each has a number in its name.

    nucleus_entropy_P_T        entropy of the smallest set of likeliest tokens of mass >= P,
                               renormalised:  H = log M - sum_S p_j log p_j / M,  M = sum_S p_j
    nucleus_below_entropy_P_T  the same of the likeliest tokens of mass <= P together; empty: 0
    min_p_logp_K_T             log-probability of the token under the min-p proxy: p_j / M on
                               S = {p_j > K max p}, 0 elsewhere (as OUTSIDE); no gradient
    top_entropy_N_T            -sum_j p_j log p_j over the N likeliest tokens; no gradient
    tail_entropy_N_T           -r log r, r the mass of all others; no gradient
    top_token_N_T              the id of the N-th likeliest token, N from 1; no gradient
    min_p_kl_K_T               KL(proxy || current), the proxy being the current policy's own,
                               without gradient: its value is -log M

    d nucleus entropy / dz_j = -q_j (log q_j + H) on S, q = p / M
    d min_p_kl / dz_j        = p_j - proxy_j

A nucleus has at most MOST tokens. What is here works on exp(z - max z), [C, V], of one chunk.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

MOST = 10_000  # tokens of a nucleus, as in the released code of arXiv 2509.25133
OUTSIDE = -1e4  # log-probability of a token that the proxy has cut
TOP = ("top_entropy", "tail_entropy", "top_token")
KINDS = ("nucleus_entropy", "nucleus_below_entropy", "min_p_logp", "min_p_kl", *TOP)
WITHOUT_GRADIENT = ("min_p_logp", *TOP)
NAME = re.compile(rf"({'|'.join(KINDS)})_(\d+(?:\.\d+)?(?:e-\d+)?)_T")


def column_of(kind: str, number: float) -> str:
    """The name of such a column: `nucleus_entropy_0.8_T`."""
    return f"{kind}_{float(number)!r}_T"


class Slope(NamedTuple):
    """d column / d logits of a chunk: `values` at the token ids `index_CS`, or everywhere."""

    values: Tensor
    index_CS: Tensor | None


def kind_of(name: str) -> tuple[str, float] | None:
    """The kind and the number of such a column's name; None for any other name."""
    match = NAME.fullmatch(name)
    return (match[1], float(match[2])) if match else None


def measure_subset(
    name: str, exp_CV: Tensor, id_C: Tensor, needs_slope: bool
) -> tuple[Tensor, Slope | None]:
    """The column [C] and, where it is needed and there is one, its derivative."""
    found = kind_of(name)
    assert found is not None, name
    kind, number = found
    if kind.startswith("nucleus"):
        return _nucleus(exp_CV, number, kind == "nucleus_below_entropy", needs_slope)
    if kind in TOP:
        return _top(kind, exp_CV, int(number)), None
    kept_CV = torch.where(exp_CV > number, exp_CV, 0)  # the largest is 1
    mass_C1 = kept_CV.sum(-1, keepdim=True)
    if kind == "min_p_logp":
        picked_C1 = kept_CV.gather(1, id_C.unsqueeze(1))
        logp_C1 = torch.where(picked_C1 > 0, picked_C1.log() - mass_C1.log(), OUTSIDE)
        return logp_C1.squeeze(1), None
    sum_C1 = exp_CV.sum(-1, keepdim=True)
    kl_C = (sum_C1.log() - mass_C1.log()).squeeze(1)
    slope = Slope(exp_CV / sum_C1 - kept_CV / mass_C1, None) if needs_slope else None
    return kl_C, slope


def _top(kind: str, exp_CV: Tensor, number: int) -> Tensor:
    """Of the `number` likeliest tokens: their part of the entropy, the others', or the last one."""
    top_CS, index_CS = exp_CV.topk(min(max(number, 1), exp_CV.shape[1]), dim=-1)
    if kind == "top_token":
        return index_CS[:, -1].to(exp_CV.dtype)  # exact below 2^24 tokens
    share_CS = top_CS / exp_CV.sum(-1, keepdim=True)
    if kind == "top_entropy":
        return -torch.xlogy(share_CS, share_CS).sum(-1)
    rest_C = (1 - share_CS.sum(-1)).clamp(min=0)
    return -torch.xlogy(rest_C, rest_C)


def _nucleus(
    exp_CV: Tensor, mass: float, below: bool, needs_slope: bool
) -> tuple[Tensor, Slope | None]:
    """Entropy [C] of the renormalised nucleus."""
    top_CS, index_CS = exp_CV.topk(min(MOST, exp_CV.shape[1]), dim=-1)
    limit_C1 = mass * exp_CV.sum(-1, keepdim=True)
    until_CS = top_CS.cumsum(-1)
    inside_CS = until_CS <= limit_C1 if below else until_CS - top_CS < limit_C1
    top_CS = torch.where(inside_CS, top_CS, 0)
    mass_C1 = top_CS.sum(-1, keepdim=True)
    share_CS = top_CS / torch.where(mass_C1 > 0, mass_C1, 1)
    terms_CS = torch.xlogy(share_CS, share_CS)
    entropy_C1 = -terms_CS.sum(-1, keepdim=True)
    slope = Slope(-(terms_CS + share_CS * entropy_C1), index_CS) if needs_slope else None
    return entropy_C1.squeeze(1), slope


def nucleus_entropy(logq_TV: Tensor, mass: float, below: bool) -> Tensor:
    """The column nucleus_entropy_T [T] from whole distributions, by ordinary autograd."""
    top_TS = logq_TV.exp().topk(min(MOST, logq_TV.shape[1]), dim=-1).values
    until_TS = top_TS.detach().cumsum(-1)
    inside_TS = until_TS <= mass if below else until_TS - top_TS.detach() < mass
    top_TS = torch.where(inside_TS, top_TS, 0)
    mass_T1 = top_TS.sum(-1, keepdim=True)
    share_TS = top_TS / torch.where(mass_T1 > 0, mass_T1, 1)
    safe_TS = torch.where(share_TS > 0, share_TS, 1)
    return -(share_TS * safe_TS.log()).sum(-1)


def add_slopes(
    grad_CV: Tensor, slopes: Mapping[str, Slope], adjoints: Mapping[str, Tensor]
) -> None:
    """Add what the adjoints of these columns give to dL/dz, in place."""
    for name, slope in slopes.items():
        if name in adjoints:
            values = slope.values * adjoints[name].unsqueeze(1)
            if slope.index_CS is None:
                grad_CV.add_(values)
            else:
                grad_CV.scatter_add_(1, slope.index_CS, values)
