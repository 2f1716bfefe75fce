"""What the language-model head does to one chunk of tokens, in buffers that are reused.

Axes: C tokens of the chunk, V vocabulary, D hidden size. Everything here runs without autograd;
the derivatives are written out, and the tests compare each with autograd of the plain formula.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from strop.head.subset import Slope, add_slopes, kind_of, measure_subset
from strop.head.types import Head
from strop.support.linear import add_product

CAST_BYTES = 16 * 2**20  # of a bfloat16 weight this much at a time exists in float32


def working_dtype(*tensors: Tensor) -> torch.dtype:
    """float64 when any of the tensors is float64, else float32, also for bfloat16 and float16."""
    return torch.float64 if any(t.dtype == torch.float64 for t in tensors) else torch.float32


def _weight_blocks(weight_VD: Tensor, dtype: torch.dtype) -> Iterator[tuple[slice, Tensor]]:
    """Yields the weight in the working type: whole when it has that type, else block by block."""
    vocabulary, width = weight_VD.shape
    if weight_VD.dtype == dtype:
        yield slice(0, vocabulary), weight_VD
        return
    step = max(1, CAST_BYTES // (max(1, width) * dtype.itemsize))
    for start in range(0, vocabulary, step):
        rows = slice(start, min(start + step, vocabulary))
        yield rows, weight_VD[rows].to(dtype)


class ChunkLogits:
    """The scaled logits of one head, and the way back from them, for one chunk after another.

        z = softcap * tanh(inner * (h W^T + b)) / temperature     inner = scale / softcap
        z = inner * (h W^T + b)                                   inner = scale / temperature

    The lower line holds without softcap. `inner` goes to the hidden states, which are small, so
    that the logits are not passed over once more. Each call overwrites what the last returned.
    """

    def __init__(self, head: Head, dtype: torch.dtype, chunk: int, differentiable: bool) -> None:
        self.head, self.dtype = head, dtype
        self.inner = head.scale / (head.softcap or head.temperature)
        shape = (chunk, head.weight.shape[0])
        self._logits_CV = torch.empty(shape, dtype=dtype, device=head.weight.device)
        keeps_slope = differentiable and head.softcap is not None
        self._slope_CV = torch.empty_like(self._logits_CV) if keeps_slope else None

    def forward(self, hidden_CD: Tensor) -> Tensor:
        """The logits [C, V] of these hidden states; remembers what `backward` needs."""
        head, size = self.head, hidden_CD.shape[0]
        self._scaled_CD = hidden_CD.to(self.dtype) * self.inner
        logits_CV = self._logits_CV[:size]
        for rows, weight_VD in _weight_blocks(head.weight, self.dtype):
            add_product(logits_CV[:, rows], self._scaled_CD, weight_VD, head.onednn, keep=False)
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
        if hidden_CD is not None:
            grad_CD = torch.zeros_like(self._scaled_CD)
            for rows, block_VD in _weight_blocks(self.head.weight, self.dtype):
                add_product(grad_CD, grad_CV[:, rows], block_VD.T, self.head.onednn)
            hidden_CD.copy_(grad_CD.mul_(self.inner))
        if weight_VD is not None:
            add_product(weight_VD, grad_CV.T, self._scaled_CD.T, self.head.onednn)
        if bias_V is not None:
            bias_V.add_(grad_CV.sum(0), alpha=self.inner)


class Softmax(NamedTuple):
    """The softmax of a chunk, unnormalised: p = exp_CV / sum_C1, log p = shifted_CV - log_sum_C1.

    `shifted_CV` is None where nothing asked for it; then `exp_CV` took over its buffer. `slopes`
    are the derivatives of the columns over a part of the vocabulary.
    """

    shifted_CV: Tensor | None
    exp_CV: Tensor
    sum_C1: Tensor
    log_sum_C1: Tensor
    slopes: Mapping[str, Slope] = {}


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
) -> tuple[Softmax, dict[str, Tensor]]:
    """The softmax of a chunk (overwriting its logits) and the columns that `names` asks for.

    Without a scratch buffer exp overwrites the logits, which only entropy and distributions read
    again.
    """
    logits_CV.sub_(logits_CV.amax(-1, keepdim=True))
    picked_C = logits_CV.gather(1, id_C.unsqueeze(1)).squeeze(1)
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
    return Softmax(shifted_CV, exp_CV, sum_C1, log_sum_C1, slopes), columns


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

    All of them have a factor p_j, so one product with p serves all; the rest is added after it.
    """
    zero_C = torch.zeros_like(softmax.sum_C1.squeeze(1))
    logp_C = adjoints.get("logp_T", zero_C)
    mean_C = adjoints.get("mean_logp_T", zero_C)
    on_p_C1 = -(logp_C + mean_C).unsqueeze(1)
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
