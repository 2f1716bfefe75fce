"""The head's arguments, and its computation on one chunk of tokens, in reused buffers.

Axes: C tokens of the chunk, V vocabulary, D hidden size. Everything here runs without autograd;
the derivatives are written out, and the tests compare each with autograd of the plain formula.

Columns over a part of the vocabulary have a number in their name; they work on exp(z - max z):

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

A nucleus has at most MOST tokens.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from strop.head import fused
from strop.head.kept import Kept, restrict
from strop.support.devices import why_no_kernels
from strop.support.errors import UserError
from strop.support.linear import add_product

MOST = 10_000  # tokens of a nucleus, as in the released code of arXiv 2509.25133
OUTSIDE = -1e4  # log-probability of a token that the proxy has cut
TOP = ("top_entropy", "tail_entropy", "top_token")
KINDS = ("nucleus_entropy", "nucleus_below_entropy", "min_p_logp", "min_p_kl", *TOP)
WITHOUT_GRADIENT = ("min_p_logp", *TOP)
NAME = re.compile(rf"({'|'.join(KINDS)})_(\d+(?:\.\d+)?(?:e-\d+)?)_T")


def column_of(kind: str, number: float) -> str:
    """The name of such a column: `nucleus_entropy_0.8_T`."""
    return f"{kind}_{float(number) + 0.0!r}_T"  # 0.0, not -0.0


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
    """The column [C] and, if it is needed and exists, its derivative."""
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
    """The entropy's part from the `number` likeliest tokens, from the others, or the last token."""
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
    """Add the contribution of these columns' adjoints to dL/dz, in place."""
    for name, slope in slopes.items():
        if name in adjoints:
            values = slope.values * adjoints[name].unsqueeze(1)
            if slope.index_CS is None:
                grad_CV.add_(values)
            else:
                grad_CV.scatter_add_(1, slope.index_CS, values)


# The size of one [chunk, vocabulary] buffer. On two CPU cores (V 151,936, D 1,024) the three
# products took 7% longer with half of it and 9% less with twice. On a GPU the gradient of the
# weight is read and written for each chunk, which takes as long as the products of some 150 tokens.
CHUNK_BYTES, CHUNK_BYTES_ELSEWHERE = 128 * 2**20, 2**30
NAMES = ("logp_T", "entropy_T", "mean_logp_T", "sum_pi_squared_T")
OF_KERNELS = {"logp_T", "entropy_T"}


def has_gradient(name: str) -> bool:
    """Whether a column of the head can be given an adjoint."""
    kind = kind_of(name)
    return name != "sum_pi_squared_T" and (kind is None or kind[0] not in WITHOUT_GRADIENT)


Columns = dict[str, Tensor]
AdjointsOf = Callable[[slice, Columns], Mapping[str, Tensor]]


@dataclass(frozen=True, eq=False)
class Head:
    """The last layer of a language model and how its logits are scaled (see `strop.head.head`)."""

    weight: Tensor  # [V, D]
    bias: Tensor | None = None  # [V]
    temperature: float = 1.0  # of the sampler, above 0
    softcap: float | None = None  # bound of the raw logits, above 0
    scale: float = 1.0  # factor of the raw logits
    chunk_tokens: int | None = None  # None: as many as CHUNK_BYTES hold
    onednn: bool = True  # use oneDNN where it can compute the products; see `strop.support.linear`

    def __post_init__(self) -> None:
        if self.weight.ndim != 2 or self.weight.shape[0] == 0:
            raise UserError(f"Head.weight must be [V, D], V > 0; got {list(self.weight.shape)}.")
        if self.bias is not None and self.bias.shape != self.weight.shape[:1]:
            raise UserError(
                f"Head.bias must be [V] = [{self.weight.shape[0]}]; got {list(self.bias.shape)}."
            )
        for name in ("temperature", "softcap"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise UserError(f"Head.{name} must be above 0; got {value}.")
        if self.chunk_tokens is not None and self.chunk_tokens < 1:
            raise UserError(f"Head.chunk_tokens must be at least 1; got {self.chunk_tokens}.")


@dataclass(frozen=True)
class Distribution:
    """A per-token column made from whole next-token distributions, inside one chunk.

    `objective(rows, logq_TV, **reads) -> objective_T` gets the chunk's rows (a slice of the
    tokens), the current log-probabilities [chunk, V] and, by name, those of the other policies
    that it reads. Gradient flows through `logq_TV` alone. The column's factor in the loss is its
    adjoint and stays outside.
    """

    objective: Callable[..., Tensor]
    reads: tuple[str, ...] = ()  # names in `others`, such as "logq_ref_TV"


Distributions = Mapping[str, Distribution]
Others = Mapping[str, tuple[Head, Tensor]]  # another policy's head and its hidden states [T, D]


@dataclass(frozen=True, eq=False)
class HeadCall:
    """The requested columns of a head, checked when this is made."""

    head: Head
    names: tuple[str, ...]
    distributions: Distributions
    others: Others
    kept: Kept | None = None  # the sets that logp_T is over; None: the whole vocabulary

    def __post_init__(self) -> None:
        for name in self.names:
            if name not in NAMES and kind_of(name) is None:
                numbered = (f"{kind}_0.5_T" for kind in KINDS)
                known = ", ".join((*NAMES, *numbered))
                raise UserError(f"The head has no column {name!r}; it has {known}.")
        for name, distribution in self.distributions.items():
            if name in NAMES or kind_of(name) is not None:
                raise UserError(f"A distribution may not be called {name!r}: a column of the head.")
            for read in distribution.reads:
                if read not in self.others:
                    raise UserError(f"Distribution {name!r} reads {read!r}; add it to `others`.")

    @property
    def all_names(self) -> tuple[str, ...]:
        """The columns of the result, in order."""
        return (*self.names, *self.distributions)

    def check(self, hidden_TD: Tensor, id_T: Tensor) -> None:
        """Raises UserError unless the tensors fit the heads."""
        vocabulary, width = self.head.weight.shape
        if id_T.ndim != 1 or id_T.dtype != torch.int64:
            raise UserError(f"id_T must be int64 [T]; got {id_T.dtype} {list(id_T.shape)}.")
        if hidden_TD.shape != (id_T.shape[0], width):
            raise UserError(
                f"hidden_TD must be [T, D] = {[id_T.shape[0], width]}; got {list(hidden_TD.shape)}."
            )
        for name, (other, states_TD) in self.others.items():
            expected = (id_T.shape[0], other.weight.shape[1])
            if other.weight.shape[0] != vocabulary or states_TD.shape != expected:
                raise UserError(
                    f"{name} must have {vocabulary} tokens in its vocabulary and hidden states "
                    f"{list(expected)}; got {other.weight.shape[0]} and {list(states_TD.shape)}."
                )


CAST_BYTES = 16 * 2**20  # a bfloat16 weight is converted to float32 in blocks of this size


def working_dtype(*tensors: Tensor) -> torch.dtype:
    """float64 when any of the tensors is float64, else float32, also for bfloat16 and float16."""
    return torch.float64 if any(t.dtype == torch.float64 for t in tensors) else torch.float32


def _weight_blocks(weight_VD: Tensor, dtype: torch.dtype) -> Iterator[tuple[slice, Tensor]]:
    """Yields the weight in the working dtype: whole if it has that dtype, else block by block."""
    vocabulary, width = weight_VD.shape
    if weight_VD.dtype == dtype:
        yield slice(0, vocabulary), weight_VD
        return
    step = max(1, CAST_BYTES // (max(1, width) * dtype.itemsize))
    for start in range(0, vocabulary, step):
        rows = slice(start, min(start + step, vocabulary))
        yield rows, weight_VD[rows].to(dtype)


def multiplies_bfloat16(*tensors: Tensor) -> bool:
    """Whether products of these multiply bfloat16 directly: see `strop.head.fused`."""
    suit = all(t.dtype == torch.bfloat16 and t.device.type == "cuda" for t in tensors)
    return suit and fused.ADDS_WIDE


def measured_by_kernels(names: tuple[str, ...], dtype: torch.dtype, device: torch.device) -> bool:
    """Whether the kernels of `strop.head.fused` compute these columns."""
    suits = dtype == torch.float32 and OF_KERNELS.issuperset(names)
    return suits and not why_no_kernels(device)


class ChunkLogits:
    """The scaled logits of one head, and their backward pass, for one chunk after another.

        z = softcap * tanh(inner * (h W^T + b)) / temperature     inner = scale / softcap
        z = inner * (h W^T + b)                                   inner = scale / temperature

    The lower line holds without softcap. `inner` is applied to the hidden states, which are small,
    to save one pass over the logits. Each call overwrites the result of the last one.
    """

    def __init__(self, head: Head, dtype: torch.dtype, chunk: int, differentiable: bool) -> None:
        self.head, self.dtype = head, dtype
        self.inner = head.scale / (head.softcap or head.temperature)
        shape = (chunk, head.weight.shape[0])
        self._logits_CV = torch.empty(shape, dtype=dtype, device=head.weight.device)
        keeps_slope = differentiable and head.softcap is not None
        self._slope_CV = torch.empty_like(self._logits_CV) if keeps_slope else None

    def forward(self, hidden_CD: Tensor) -> Tensor:
        """The logits [C, V] of these hidden states; stores the tensors that `backward` needs."""
        head, size = self.head, hidden_CD.shape[0]
        logits_CV = self._logits_CV[:size]
        self._as_it_is = multiplies_bfloat16(hidden_CD, head.weight)
        if self._as_it_is:
            self._hidden_CD = hidden_CD
            fused.add_product(logits_CV, hidden_CD, head.weight.T, self.inner, keep=False)
        else:
            self._hidden_CD = hidden_CD.to(self.dtype) * self.inner
            for rows, weight_VD in _weight_blocks(head.weight, self.dtype):
                add_product(logits_CV[:, rows], self._hidden_CD, weight_VD, head.onednn, keep=False)
        if head.bias is not None:
            logits_CV.add_(head.bias.to(self.dtype), alpha=self.inner)
        if head.softcap is not None:
            logits_CV.tanh_()
            if self._slope_CV is not None:
                slope_CV = torch.mul(logits_CV, logits_CV, out=self._slope_CV[:size])
                slope_CV.neg_().add_(1).mul_(head.softcap / head.temperature)
            logits_CV.mul_(head.softcap / head.temperature)
        return logits_CV

    def backward(
        self,
        grad_CV: Tensor,
        hidden_CD: Tensor | None,
        weight_VD: Tensor | None,
        bias_V: Tensor | None,
    ) -> None:
        """Takes dL/dz (and overwrites it); writes the first gradient, adds to the other two.

        The three outputs are dL/d(hidden), dL/d(weight) and dL/d(bias); None is not computed.
        """
        if self._slope_CV is not None:
            grad_CV.mul_(self._slope_CV[: grad_CV.shape[0]])
        if bias_V is not None:
            bias_V.add_(grad_CV.sum(0, dtype=bias_V.dtype), alpha=self.inner)
        if self._as_it_is:
            grad_CV = grad_CV.to(self.head.weight.dtype)
            if hidden_CD is not None:
                fused.add_product(hidden_CD, grad_CV, self.head.weight, self.inner, keep=False)
            if weight_VD is not None:
                fused.add_product(weight_VD, grad_CV.T, self._hidden_CD, self.inner, keep=True)
            return
        if hidden_CD is not None:
            grad_CD = torch.zeros_like(self._hidden_CD)
            for rows, block_VD in _weight_blocks(self.head.weight, self.dtype):
                add_product(grad_CD, grad_CV[:, rows], block_VD.T, self.head.onednn)
            hidden_CD.copy_(grad_CD.mul_(self.inner))
        if weight_VD is not None:
            add_product(weight_VD, grad_CV.T, self._hidden_CD.T, self.head.onednn)


class Softmax(NamedTuple):
    """The softmax of a chunk, unnormalised: p = exp_CV / sum_C1, log p = shifted_CV - log_sum_C1.

    `shifted_CV` is None where nothing needs it; then `exp_CV` reuses its buffer. `slopes` are the
    derivatives of the columns over a part of the vocabulary; logp_T is one of these at `cut_C`.
    """

    shifted_CV: Tensor | None
    exp_CV: Tensor
    sum_C1: Tensor
    log_sum_C1: Tensor
    slopes: Mapping[str, Slope] = {}
    cut_C: Tensor | None = None  # None: nowhere


def _row_dot(left_CV: Tensor, right_CV: Tensor) -> Tensor:
    """Inner product of each row, without the [C, V] product that `(a * b).sum()` would make."""
    return torch.bmm(left_CV.unsqueeze(1), right_CV.unsqueeze(2)).flatten()


def measure(
    logits_CV: Tensor,
    id_C: Tensor,
    names: tuple[str, ...],
    scratch_CV: Tensor | None,
    keep_logq: bool,
    needs_slopes: bool = False,
    kept: Kept | None = None,
) -> tuple[Softmax, dict[str, Tensor]]:
    """The softmax of a chunk (overwriting its logits) and the columns `names`.

    Without a scratch buffer exp overwrites the logits, which only entropy and distributions read
    again.
    """
    logits_CV.sub_(logits_CV.amax(-1, keepdim=True))
    picked_C = logits_CV.gather(1, id_C.unsqueeze(1)).squeeze(1)
    over = None if kept is None or "logp_T" not in names else restrict(logits_CV, picked_C, kept)
    mean_C = logits_CV.mean(-1) if "mean_logp_T" in names else None
    exp_CV = torch.exp(logits_CV, out=logits_CV if scratch_CV is None else scratch_CV)
    shifted_CV = None if scratch_CV is None else logits_CV
    sum_C1 = exp_CV.sum(-1, keepdim=True)
    log_sum_C1 = sum_C1.log()
    sum_C, log_sum_C = sum_C1.squeeze(1), log_sum_C1.squeeze(1)
    columns: dict[str, Tensor] = {}
    slopes: dict[str, Slope] = {}
    for name in names:
        if kind_of(name) is not None:
            columns[name], slope = measure_subset(name, exp_CV, id_C, needs_slopes)
            slopes |= {} if slope is None else {name: slope}
        elif name == "logp_T":
            columns[name] = picked_C - log_sum_C
            if over is not None:
                columns[name] = torch.where(over.cut_C, over.logp_C, columns[name])
                slopes[name] = Slope(-over.share_CS, over.index_CS)
        elif name == "entropy_T":
            assert shifted_CV is not None
            columns[name] = log_sum_C - _row_dot(exp_CV, shifted_CV) / sum_C
        elif name == "mean_logp_T":
            assert mean_C is not None
            columns[name] = mean_C - log_sum_C
        else:
            assert name == "sum_pi_squared_T"
            columns[name] = _row_dot(exp_CV, exp_CV) / sum_C.square()
    if keep_logq:
        assert shifted_CV is not None
        shifted_CV.sub_(log_sum_C1)
        log_sum_C1 = torch.zeros_like(log_sum_C1)
    cut_C = None if over is None else over.cut_C
    return Softmax(shifted_CV, exp_CV, sum_C1, log_sum_C1, slopes, cut_C), columns


def grad_logits(
    softmax: Softmax,
    id_C: Tensor,
    adjoints: Mapping[str, Tensor],
    columns: Mapping[str, Tensor],
    grad_logq_CV: Tensor | None,
) -> Tensor:
    """dL/dz [C, V] from dL/d(column), written over the buffers of `softmax`.

        d logp / dz_j      = [j = id] - p_j
        d entropy / dz_j   = - p_j (log p_j + entropy)
        d mean_logp / dz_j = 1/V - p_j
        d L / dz_j         = g_j - p_j sum_k g_k          for g = dL / d log p

    All of them have terms with the factor p_j, so one product with p serves all; the rest is added
    after it. For a logp over a kept set the derivative in `strop.head.kept` replaces the first.
    """
    zero_C = torch.zeros_like(softmax.sum_C1.squeeze(1))
    logp_C = adjoints.get("logp_T", zero_C)
    mean_C = adjoints.get("mean_logp_T", zero_C)
    whole_C = logp_C if softmax.cut_C is None else torch.where(softmax.cut_C, 0, logp_C)
    on_p_C1 = -(whole_C + mean_C).unsqueeze(1)
    if grad_logq_CV is not None:
        on_p_C1 = on_p_C1 - grad_logq_CV.sum(-1, keepdim=True)
    if "entropy_T" in adjoints:
        assert softmax.shifted_CV is not None
        entropy_C1 = adjoints["entropy_T"].unsqueeze(1)
        on_p_C1 = on_p_C1 - entropy_C1 * (columns["entropy_T"].unsqueeze(1) - softmax.log_sum_C1)
        grad_CV = softmax.shifted_CV.mul_(-entropy_C1 / softmax.sum_C1)
        grad_CV.add_(on_p_C1 / softmax.sum_C1).mul_(softmax.exp_CV)
    else:
        grad_CV = softmax.exp_CV.mul_(on_p_C1 / softmax.sum_C1)
    add_slopes(grad_CV, softmax.slopes, adjoints)
    if "mean_logp_T" in adjoints:
        grad_CV.add_(mean_C.unsqueeze(1) / grad_CV.shape[1])
    if grad_logq_CV is not None:
        grad_CV.add_(grad_logq_CV)
    if "logp_T" in adjoints:
        grad_CV.scatter_add_(1, id_C.unsqueeze(1), logp_C.unsqueeze(1))
    return grad_CV
