"""The language-model head: hidden states to per-token columns, and adjoints of columns back.

    z_TV = softcap * tanh(scale * (h W^T + b) / softcap) / temperature       (no cap: no tanh)
    logp_T = log softmax(z)[id]     entropy_T = -sum_j p_j log p_j     p = softmax(z)
    mean_logp_T = 1/V sum_j log p_j     sum_pi_squared_T = sum_j p_j^2
    and those over a part of the vocabulary, such as nucleus_entropy_0.8_T: `head_subset`

Four calls, one loop over chunks of tokens; `[tokens, vocabulary]` never exists:

- `columns` measures, without gradient: one product with the weight.
- `push` asks for the adjoint dL/d(column) of each chunk as soon as its columns are known and forms
  the gradients of hidden states, weight and bias at once: three products, nothing recomputed.
- `push_loss` is `push` for autograd: a scalar whose `backward()` hands on the stored gradients.
- `differentiable_columns` gives columns to ordinary autograd; backward recomputes: four products.

A `Distribution` makes a further column from the whole next-token distributions of a chunk, of the
current policy and of others. It is pushed like the rest; autograd differentiates it in the chunk.

Numbers are float32 at least, also for bfloat16 hidden states and weights, and float64 if any is.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from strop.head.run import Gradients, allocate, run
from strop.head.types import (
    AdjointsOf,
    Columns,
    Distribution,
    Distributions,
    Head,
    HeadCall,
    Others,
    Pushed,
    has_gradient,
)

__all__ = [
    "Distribution",
    "Head",
    "Pushed",
    "columns",
    "differentiable_columns",
    "push",
    "push_loss",
]


def columns(
    head: Head,
    hidden_TD: Tensor,
    id_T: Tensor,
    names: tuple[str, ...] = ("logp_T",),
    *,
    distributions: Distributions | None = None,
    others: Others | None = None,
) -> Columns:
    """The columns `names` and one column for each of `distributions`, without gradient.

    `hidden_TD[t]` is the state that predicts `id_T[t]`. Raises UserError for shapes that do not
    fit and for unknown names.
    """
    call = HeadCall(head, names, distributions or {}, others or {})
    return run(call, hidden_TD, id_T, None, Gradients()).columns


def push(
    head: Head,
    hidden_TD: Tensor,
    id_T: Tensor,
    adjoints_of: AdjointsOf,
    names: tuple[str, ...] = ("logp_T",),
    *,
    distributions: Distributions | None = None,
    others: Others | None = None,
    grad_weight_VD: Tensor | None = None,
) -> Pushed:
    """Columns and, in the same pass, the gradients that their adjoints give.

    `adjoints_of(rows, columns)` is called once for each chunk with the chunk's detached columns
    (autograd records inside it, so it may differentiate small formulas of them) and returns
    dL/d(column) [chunk] by name; a name left out has adjoint 0. Adjoints that are known already
    are sliced: `lambda rows, _: {"logp_T": adjoint_T[rows]}`.

    Weight and bias get a gradient when they require one. `grad_weight_VD` is a buffer of float32
    (float64 where the numbers are) to add the weight's gradient to, such as `weight.grad`, so
    that no second [V, D] is allocated. Raises UserError as `columns` does, and for an adjoint of
    a column that is not there or has none.
    """
    call = HeadCall(head, names, distributions or {}, others or {})
    needs = (True, head.weight.requires_grad, head.bias is not None and head.bias.requires_grad)
    gradients = allocate(head, hidden_TD, needs, grad_weight_VD)
    return run(call, hidden_TD, id_T, adjoints_of, gradients)


def push_loss(
    head: Head,
    hidden_TD: Tensor,
    id_T: Tensor,
    adjoints_of: AdjointsOf,
    names: tuple[str, ...] = ("logp_T",),
    *,
    distributions: Distributions | None = None,
    others: Others | None = None,
) -> tuple[Tensor, Columns]:
    """`push` as a node of autograd: the loss sum(adjoint * column), and the detached columns.

    Gradients are formed in the forward pass, the adjoints taken as constants; `loss.backward()`
    scales them and hands them to whatever made the hidden states and the weight, so tied
    embeddings, adapters, sharding and checkpointing need nothing special. Backward runs once.
    """
    call = HeadCall(head, names, distributions or {}, others or {})
    loss, *values = _PushLoss.apply(
        hidden_TD, head.weight, head.bias, id_T, adjoints_of, call, torch.is_grad_enabled()
    )
    return loss, dict(zip(call.all_names, values, strict=True))


def differentiable_columns(
    head: Head,
    hidden_TD: Tensor,
    id_T: Tensor,
    names: tuple[str, ...] = ("logp_T",),
    *,
    distributions: Distributions | None = None,
    others: Others | None = None,
) -> Columns:
    """The same as `columns`, with gradient to hidden states, weight and bias by autograd.

    `sum_pi_squared_T` and `min_p_logp_K_T` carry no gradient. Backward computes the logits a
    second time.
    """
    call = HeadCall(head, names, distributions or {}, others or {})
    values = _Columns.apply(hidden_TD, head.weight, head.bias, id_T, call)
    return dict(zip(call.all_names, values, strict=True))


class _PushLoss(torch.autograd.Function):
    """Gradients in the forward pass, scaled by what comes back."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_TD: Tensor,
        weight_VD: Tensor,
        bias_V: Tensor | None,
        id_T: Tensor,
        adjoints_of: AdjointsOf,
        call: HeadCall,
        grad_enabled: bool,
    ) -> tuple[Tensor, ...]:
        needs = ctx.needs_input_grad if grad_enabled else (False, False, False)
        gradients = allocate(call.head, hidden_TD, needs)
        pushed = run(call, hidden_TD, id_T, adjoints_of, gradients)
        # Not save_for_backward: it would hold a second reference, and autograd would then copy
        # the weight's gradient instead of taking it over.
        ctx.gradients = [*gradients] if grad_enabled else None
        ctx.dtypes = [None if t is None else t.dtype for t in (hidden_TD, weight_VD, bias_V)]
        values = tuple(pushed.columns[name] for name in call.all_names)
        ctx.mark_non_differentiable(*values)
        return (pushed.loss, *values)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_loss: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        gradients, ctx.gradients = ctx.gradients, None
        if gradients is None:
            raise RuntimeError("The gradients of push_loss were handed on already; push again.")
        handed: list[Tensor | None] = []
        for dtype in ctx.dtypes:
            gradient = gradients.pop(0)
            handed.append(None if gradient is None else gradient.mul_(grad_loss).to(dtype))
        return (*handed, None, None, None, None)


class _Columns(torch.autograd.Function):
    """Columns forward; backward pushes their adjoints, forming the logits once more."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_TD: Tensor,
        weight_VD: Tensor,
        bias_V: Tensor | None,
        id_T: Tensor,
        call: HeadCall,
    ) -> tuple[Tensor, ...]:
        ctx.save_for_backward(hidden_TD, weight_VD, bias_V, id_T)
        ctx.call = call
        ctx.set_materialize_grads(False)
        found = run(call, hidden_TD, id_T, None, Gradients()).columns
        ctx.mark_non_differentiable(*(found[n] for n in call.names if not has_gradient(n)))
        return tuple(found[name] for name in call.all_names)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *adjoints: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden_TD, weight_VD, bias_V, id_T = ctx.saved_tensors
        head = replace(ctx.call.head, weight=weight_VD, bias=bias_V)
        call = replace(ctx.call, head=head)
        given = {
            name: adjoint_T
            for name, adjoint_T in zip(call.all_names, adjoints, strict=True)
            if adjoint_T is not None
        }
        gradients = allocate(head, hidden_TD, ctx.needs_input_grad)
        run(
            call.only(given),
            hidden_TD,
            id_T,
            lambda rows, _: {name: adjoint_T[rows] for name, adjoint_T in given.items()},
            gradients,
        )
        inputs = (hidden_TD, weight_VD, bias_V)
        handed = (
            None if gradient is None else gradient.to(tensor.dtype)
            for gradient, tensor in zip(gradients, inputs, strict=True)
        )
        return (*handed, None, None)
