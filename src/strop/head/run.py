"""The loop over chunks of tokens: measure, ask for adjoints, push them back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from strop.head.chunk import ChunkLogits, Softmax, grad_logits, measure, working_dtype
from strop.head.types import (
    CHUNK_BYTES,
    AdjointsOf,
    Columns,
    Head,
    HeadCall,
    Pushed,
    has_gradient,
)
from strop.support.errors import UserError


class Gradients(NamedTuple):
    """Where a run writes gradients; None is not computed."""

    hidden_TD: Tensor | None = None
    weight_VD: Tensor | None = None
    bias_V: Tensor | None = None


def allocate(
    head: Head,
    hidden_TD: Tensor,
    needs: tuple[bool, ...],
    grad_weight_VD: Tensor | None = None,
) -> Gradients:
    """Room for the gradients that are needed (hidden, weight, bias); the weight's may be given."""
    dtype = working_dtype(hidden_TD, head.weight)
    weight_VD = grad_weight_VD if needs[1] else None
    if needs[1] and weight_VD is None:
        weight_VD = torch.zeros_like(head.weight, dtype=dtype)
    if weight_VD is not None and (weight_VD.dtype, weight_VD.shape) != (dtype, head.weight.shape):
        raise UserError(
            f"grad_weight_VD must be {dtype} of shape {list(head.weight.shape)}; got "
            f"{weight_VD.dtype} of shape {list(weight_VD.shape)}."
        )
    hidden = torch.empty_like(hidden_TD) if needs[0] else None
    bias_V = None
    if head.bias is not None and needs[2]:
        bias_V = torch.zeros_like(head.bias, dtype=dtype)
    return Gradients(hidden, weight_VD, bias_V)


@torch.no_grad()
def run(
    call: HeadCall,
    hidden_TD: Tensor,
    id_T: Tensor,
    adjoints_of: AdjointsOf | None,
    gradients: Gradients,
) -> Pushed:
    """All chunks in order; without `adjoints_of` nothing but the columns is computed."""
    call.check(hidden_TD, id_T)
    workspace = _Workspace(call, hidden_TD, gradients)
    loss = torch.zeros((), dtype=workspace.dtype, device=hidden_TD.device)
    found = {name: loss.new_empty(id_T.shape) for name in call.all_names}
    # A caller's autocast would round some of the products to bfloat16.
    with torch.autocast(hidden_TD.device.type, enabled=False):
        for start in range(0, id_T.shape[0], workspace.chunk):
            rows = slice(start, min(start + workspace.chunk, id_T.shape[0]))
            softmax, columns, objectives = workspace.measure(rows, hidden_TD[rows], id_T[rows])
            for name, column_C in columns.items():
                found[name][rows] = column_C
            if adjoints_of is not None:
                adjoints = _adjoints(adjoints_of, rows, columns)
                for name, adjoint_C in adjoints.items():
                    loss += adjoint_C @ columns[name]
                workspace.push(rows, id_T[rows], softmax, columns, objectives, adjoints)
    return Pushed(loss, found, *gradients)


def _adjoints(adjoints_of: AdjointsOf, rows: slice, columns: Columns) -> Columns:
    """The adjoints of a chunk, checked, in the type of its columns."""
    with torch.enable_grad():
        given = adjoints_of(rows, dict(columns))
    adjoints = {}
    for name, adjoint_C in given.items():
        if name not in columns:
            raise UserError(f"Adjoint of {name!r}, which is not among the columns of this call.")
        if not has_gradient(name):
            raise UserError(f"{name} has no gradient; leave its adjoint out.")
        if adjoint_C.shape != columns[name].shape:
            raise UserError(
                f"Adjoint of {name!r} must be {list(columns[name].shape)} for this chunk; "
                f"got {list(adjoint_C.shape)}."
            )
        adjoints[name] = adjoint_C.detach().to(columns[name].dtype)
    return adjoints


class _Workspace:
    """The [chunk, vocabulary] buffers of one run, allocated once and reused by every chunk.

    One for the logits; one more for exp when entropy or a distribution is asked for; one more
    with softcap; one for each other policy.
    """

    def __init__(self, call: HeadCall, hidden_TD: Tensor, gradients: Gradients) -> None:
        head, self.call, self.gradients = call.head, call, gradients
        self.pushes = any(gradient is not None for gradient in gradients)
        self.dtype = working_dtype(hidden_TD, head.weight)
        vocabulary = head.weight.shape[0]
        fitting = max(1, CHUNK_BYTES // (vocabulary * self.dtype.itemsize))
        self.chunk = max(1, min(head.chunk_tokens or fitting, hidden_TD.shape[0]))
        self.logits = ChunkLogits(head, self.dtype, self.chunk, differentiable=self.pushes)
        self.others = {
            name: ChunkLogits(other, self.dtype, self.chunk, differentiable=False)
            for name, (other, _) in call.others.items()
            if any(name in distribution.reads for distribution in call.distributions.values())
        }
        self.scratch_CV: Tensor | None = None
        if "entropy_T" in call.names or call.distributions:
            shape = (self.chunk, vocabulary)
            self.scratch_CV = torch.empty(shape, dtype=self.dtype, device=hidden_TD.device)

    def measure(
        self, rows: slice, hidden_CD: Tensor, id_C: Tensor
    ) -> tuple[Softmax, Columns, tuple[Tensor | None, Columns]]:
        """Softmax and columns of a chunk; the leaf and the values of its distributions."""
        call, size = self.call, id_C.shape[0]
        scratch_CV = None if self.scratch_CV is None else self.scratch_CV[:size]
        logq = {}
        for name, logits in self.others.items():
            other_CV = logits.forward(call.others[name][1][rows])
            logq[name] = measure(other_CV, id_C, (), scratch_CV, True)[0].shifted_CV
        softmax, columns = measure(
            self.logits.forward(hidden_CD),
            id_C,
            call.names,
            scratch_CV,
            keep_logq=bool(call.distributions),
            needs_slopes=self.pushes,
        )
        if not call.distributions:
            return softmax, columns, (None, {})
        assert softmax.shifted_CV is not None
        leaf_CV = softmax.shifted_CV.detach().requires_grad_(self.pushes)
        objectives = {}
        for name, distribution in call.distributions.items():
            reads = {read: logq[read] for read in distribution.reads}
            with torch.set_grad_enabled(self.pushes):
                value_C = distribution.objective(rows, leaf_CV, **reads)
            if value_C.shape != id_C.shape:
                raise UserError(
                    f"Distribution {name!r} must return {list(id_C.shape)} numbers for this chunk; "
                    f"got {list(value_C.shape)}."
                )
            objectives[name] = value_C
            columns[name] = value_C.detach().to(self.dtype)
        return softmax, columns, (leaf_CV, objectives)

    def push(
        self,
        rows: slice,
        id_C: Tensor,
        softmax: Softmax,
        columns: Columns,
        objectives: tuple[Tensor | None, Columns],
        adjoints: Mapping[str, Tensor],
    ) -> None:
        """Adds what the adjoints of a chunk give to the gradients."""
        if not self.pushes:
            return
        grad_logq_CV = _grad_logq(*objectives, adjoints)
        grad_CV = grad_logits(softmax, id_C, adjoints, columns, grad_logq_CV)
        hidden_TD, weight_VD, bias_V = self.gradients
        self.logits.backward(
            grad_CV, None if hidden_TD is None else hidden_TD[rows], weight_VD, bias_V
        )


def _grad_logq(
    leaf_CV: Tensor | None, objectives: Columns, adjoints: Mapping[str, Tensor]
) -> Tensor | None:
    """dL/d log p [C, V] through the distributions, by autograd; None where nothing flows."""
    flowing = [name for name in objectives if name in adjoints and objectives[name].requires_grad]
    if leaf_CV is None or not flowing:
        return None
    (grad_CV,) = torch.autograd.grad(
        [objectives[name] for name in flowing],
        [leaf_CV],
        [adjoints[name].to(objectives[name].dtype) for name in flowing],
    )
    return grad_CV
