"""The language-model head: hidden states to per-token columns, and adjoints of columns back.

    z_TV = softcap * tanh(scale * (h W^T + b) / softcap) / temperature       (no cap: no tanh)
    logp_T = log softmax(z)[id]     entropy_T = -sum_j p_j log p_j     p = softmax(z)
    mean_logp_T = 1/V sum_j log p_j     sum_pi_squared_T = sum_j p_j^2
    and those over a part of the vocabulary, such as nucleus_entropy_0.8_T: `strop.head.chunk`

Two calls, one loop over chunks of tokens; `[tokens, vocabulary]` never exists:

- `columns` measures, without gradient: one product with the weight.
- `push_loss` requests the adjoint dL/d(column) of each chunk as soon as its columns are known and
  forms the gradients of hidden states, weight and bias at once: three products, nothing recomputed.
  It returns a scalar whose `backward()` passes the gradients on.

A `Distribution` makes a further column from the whole next-token distributions of a chunk, of the
current policy and of others. It is pushed like the rest; autograd differentiates it in the chunk.

Numbers are float32 at least, also for bfloat16 hidden states and weights, and float64 if any is. On
a GPU dL/dz is rounded to bfloat16 where both are: see `strop.head.fused`.

At the end are the functions that find a model's trunk, which makes the hidden states, and its head.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from strop.head import chunk, fused
from strop.head.chunk import (
    CHUNK_BYTES,
    CHUNK_BYTES_ELSEWHERE,
    AdjointsOf,
    ChunkLogits,
    Columns,
    Distribution,
    Distributions,
    Head,
    HeadCall,
    Others,
    Softmax,
    grad_logits,
    has_gradient,
    measure,
    working_dtype,
)
from strop.head.kept import Kept
from strop.support.errors import UserError
from strop.support.linear import Linear

__all__ = [
    "Distribution",
    "Head",
    "check_head",
    "columns",
    "head_of",
    "push_loss",
    "text_config",
    "trunk_of",
]


def columns(
    head: Head,
    hidden_TD: Tensor,
    id_T: Tensor,
    names: tuple[str, ...] = ("logp_T",),
    *,
    distributions: Distributions | None = None,
    others: Others | None = None,
    kept: Kept | None = None,
) -> Columns:
    """The columns `names` and one column for each of `distributions`, without gradient.

    `hidden_TD[t]` is the state that predicts `id_T[t]`. kept: the sets [T] that logp_T is over.
    Raises UserError for shapes that do not fit and for unknown names.
    """
    call = HeadCall(head, names, distributions or {}, others or {}, kept)
    return run(call, hidden_TD, id_T, None, Gradients())[1]


def push_loss(
    head: Head,
    hidden_TD: Tensor,
    id_T: Tensor,
    adjoints_of: AdjointsOf,
    names: tuple[str, ...] = ("logp_T",),
    *,
    distributions: Distributions | None = None,
    others: Others | None = None,
    kept: Kept | None = None,
) -> tuple[Tensor, Columns]:
    """The loss sum(adjoint * column), a node of autograd, and the detached columns.

    `adjoints_of(rows, columns)` is called once for each chunk with the chunk's detached columns
    (autograd records inside it, so it may differentiate small formulas of them) and returns
    dL/d(column) [chunk] by name; a name left out has adjoint 0. Adjoints that are known beforehand
    are sliced: `lambda rows, _: {"logp_T": adjoint_T[rows]}`.

    Gradients are formed in the forward pass, with the adjoints as constants; `loss.backward()`
    scales them and passes them to whatever made the hidden states and the weight, so tied
    embeddings, adapters, sharding and checkpointing need nothing special. Backward runs once.
    Raises UserError as `columns` does, and for an adjoint of a column that is missing or has no
    gradient.
    """
    call = HeadCall(head, names, distributions or {}, others or {}, kept)
    loss, *values = _PushLoss.apply(
        hidden_TD, head.weight, head.bias, id_T, adjoints_of, call, torch.is_grad_enabled()
    )
    return loss, dict(zip(call.all_names, values, strict=True))


class _PushLoss(torch.autograd.Function):
    """Computes gradients in the forward pass, and scales them in the backward pass."""

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
        loss, found = run(call, hidden_TD, id_T, adjoints_of, gradients)
        # Not save_for_backward: it would hold a second reference, and autograd would then copy
        # the weight's gradient instead of reusing it.
        ctx.gradients = [*gradients] if grad_enabled else None
        ctx.dtypes = [None if t is None else t.dtype for t in (hidden_TD, weight_VD, bias_V)]
        values = tuple(found[name] for name in call.all_names)
        ctx.mark_non_differentiable(*values)
        return (loss, *values)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_loss: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        gradients, ctx.gradients = ctx.gradients, None
        if gradients is None:
            raise RuntimeError("The gradients of push_loss were already passed on; push again.")
        handed: list[Tensor | None] = []
        for dtype in ctx.dtypes:
            gradient = gradients.pop(0)
            handed.append(None if gradient is None else gradient.mul_(grad_loss).to(dtype))
        return (*handed, None, None, None, None)


class Gradients(NamedTuple):
    """The tensors that a run writes gradients to; None is not computed."""

    hidden_TD: Tensor | None = None
    weight_VD: Tensor | None = None
    bias_V: Tensor | None = None


def allocate(head: Head, hidden_TD: Tensor, needs: tuple[bool, ...]) -> Gradients:
    """Allocate the gradients that are needed (hidden, weight, bias)."""
    dtype = working_dtype(hidden_TD, head.weight)
    hidden = torch.empty_like(hidden_TD) if needs[0] else None
    weight_VD = torch.zeros_like(head.weight, dtype=dtype) if needs[1] else None
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
) -> tuple[Tensor, Columns]:
    """Run all chunks in order. Returns the loss, sum of adjoint * column, which has the right
    gradient but not the right value, and the columns; without `adjoints_of` only these are made.
    """
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
    return loss, found


def _adjoints(adjoints_of: AdjointsOf, rows: slice, columns: Columns) -> Columns:
    """Check the adjoints of a chunk, and convert them to the dtype of its columns."""
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

    There is one for the logits; one more for exp when entropy or a distribution is requested; one
    more with softcap; one for each other policy. Where kernels measure, the second one has the
    dtype of the products.
    """

    def __init__(self, call: HeadCall, hidden_TD: Tensor, gradients: Gradients) -> None:
        head, self.call, self.gradients = call.head, call, gradients
        self.pushes = any(gradient is not None for gradient in gradients)
        self.dtype = working_dtype(hidden_TD, head.weight)
        vocabulary, device = head.weight.shape[0], hidden_TD.device
        most = CHUNK_BYTES if device.type == "cpu" else CHUNK_BYTES_ELSEWHERE
        fitting = max(1, most // (vocabulary * self.dtype.itemsize))
        self.chunk = max(1, min(head.chunk_tokens or fitting, hidden_TD.shape[0]))
        self.logits = ChunkLogits(head, self.dtype, self.chunk, differentiable=self.pushes)
        self.others = {
            name: ChunkLogits(other, self.dtype, self.chunk, differentiable=False)
            for name, (other, _) in call.others.items()
            if any(name in distribution.reads for distribution in call.distributions.values())
        }
        plain = not call.distributions and call.kept is None
        self.fused = plain and chunk.measured_by_kernels(call.names, self.dtype, device)
        narrow = self.fused and chunk.multiplies_bfloat16(hidden_TD, head.weight) and self.pushes
        self.scratch_CV: Tensor | None = None
        if narrow or (not self.fused and ("entropy_T" in call.names or call.distributions)):
            dtype = head.weight.dtype if narrow else self.dtype
            self.scratch_CV = torch.empty((self.chunk, vocabulary), dtype=dtype, device=device)

    def measure(
        self, rows: slice, hidden_CD: Tensor, id_C: Tensor
    ) -> tuple[Softmax | fused.Measured, Columns, tuple[Tensor | None, Columns]]:
        """Softmax and columns of a chunk; the leaf and the values of its distributions."""
        call, size = self.call, id_C.shape[0]
        if self.fused:
            return *fused.measure(self.logits.forward(hidden_CD), id_C, call.names), (None, {})
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
            kept=None if call.kept is None else call.kept.rows(rows),
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
        softmax: Softmax | fused.Measured,
        columns: Columns,
        objectives: tuple[Tensor | None, Columns],
        adjoints: Mapping[str, Tensor],
    ) -> None:
        """Adds the contribution of a chunk's adjoints to the gradients."""
        if not self.pushes:
            return
        if isinstance(softmax, fused.Measured):
            out_CV = softmax.logits_CV if self.scratch_CV is None else self.scratch_CV[: len(id_C)]
            grad_CV = fused.grad_logits(softmax, adjoints, out_CV)
        else:
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


def text_config(model: nn.Module) -> Any:
    """The language part of the model's configuration."""
    config: Any = model.config
    return config.get_text_config() if hasattr(config, "get_text_config") else config


def trunk_of(model: Any) -> nn.Module:
    """The part of the model that makes hidden states."""
    decoder = model.get_decoder() if hasattr(model, "get_decoder") else None
    return decoder if decoder is not None else model.base_model


def head_of(model: Any, temperature: float = 1.0, chunk_tokens: int | None = None) -> Head:
    """The model's head at a sampling temperature, with its logit scaling and soft cap."""
    config = text_config(model)
    output = model.get_output_embeddings()
    if output is None:
        raise UserError(f"{type(model).__name__} has no language-model head")
    scale = float(getattr(config, "logit_scale", None) or 1.0)
    scaling = getattr(config, "logits_scaling", None)
    scale = scale / float(scaling) if scaling else scale
    softcap = getattr(config, "final_logit_softcapping", None)
    return Head(
        output.weight,
        getattr(output, "bias", None),
        temperature=temperature,
        softcap=float(softcap) if softcap else None,
        scale=scale,
        chunk_tokens=chunk_tokens,
        onednn=isinstance(output, Linear),
    )


@torch.no_grad()
def check_head(model: Any) -> None:
    """Raise UserError unless trunk and head together give the model's own log-probabilities."""
    device = next(model.parameters()).device
    vocabulary = model.get_output_embeddings().weight.shape[0]
    ids = (torch.arange(8, device=device) * 7 + 3) % vocabulary
    own: Tensor = model(input_ids=ids[None], use_cache=False).logits[0, :-1].float()
    hidden = trunk_of(model)(input_ids=ids[None], use_cache=False).last_hidden_state[0, :-1]
    ours = columns(head_of(model), hidden, ids[1:])["logp_T"]
    theirs = own.log_softmax(-1).gather(1, ids[1:, None]).squeeze(1)
    tolerance = 1e-3 if own.dtype == hidden.dtype else 0.1
    if not torch.allclose(ours.float(), theirs, atol=tolerance, rtol=tolerance):
        raise UserError(
            f"{type(model).__name__} changes its logits in a way that strop does not know: its "
            "log-probabilities differ from head times hidden state"
        )


@dataclass
class ExtraColumns:
    """Columns [policy tokens] with gradient that the head does not compute, and their adjoints."""

    columns: Mapping[str, Tensor]
    adjoints: dict[str, Tensor] = field(default_factory=dict)

    def values(self, rows: slice) -> dict[str, Tensor]:
        """The columns at some rows, without gradient."""
        return {name: column[rows].detach() for name, column in self.columns.items()}

    def split(self, adjoints_of: AdjointsOf) -> AdjointsOf:
        """Returns adjoints for the head alone; those of the extra columns are stored here."""
        if not self.columns:
            return adjoints_of

        def own(rows: slice, columns: dict[str, Tensor]) -> Mapping[str, Tensor]:
            found = dict(adjoints_of(rows, {**columns, **self.values(rows)}))
            for name, column in self.columns.items():
                store = self.adjoints.setdefault(name, torch.zeros_like(column.detach()))
                store[rows] = found.pop(name).to(store.dtype)
            return found

        return own

    def loss(self) -> Tensor | float:
        """Sum of adjoint * column, to differentiate together with the head's loss."""
        pairs = [(adjoint * self.columns[name]).sum() for name, adjoint in self.adjoints.items()]
        return torch.stack(pairs).sum() if pairs else 0.0
