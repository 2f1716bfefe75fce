"""Columns computed from whole distributions inside a chunk, and that no larger tensor is made."""

from dataclasses import replace

import pytest
import torch
from test_head import (
    DIFFERENTIABLE,
    NAMES,
    SETTINGS,
    close,
    make,
    plain_columns,
    plain_gradients,
    plain_logits,
    push,
    sliced,
)
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from strop.head.head import Distribution, columns, push_loss


def kl_to_reference(rows, logq_TV, logq_ref_TV):
    return (logq_TV.exp() * (logq_TV - logq_ref_TV)).sum(-1)


def jensen_shannon(rows, logq_TV, logq_ref_TV):
    middle_TV = ((logq_TV.exp() + logq_ref_TV.exp()) / 2).log()
    left_T = (logq_TV.exp() * (logq_TV - middle_TV)).sum(-1)
    return (left_T + (logq_ref_TV.exp() * (logq_ref_TV - middle_TV)).sum(-1)) / 2


def plain_entropy(rows, logq_TV):
    return -(logq_TV.exp() * logq_TV).sum(-1)


KL_TO_REFERENCE = Distribution(kl_to_reference, ("logq_ref_TV",))
TERMS = {
    "kl_T": KL_TO_REFERENCE,
    "js_T": Distribution(jensen_shannon, ("logq_ref_TV",)),
    "bonus_T": Distribution(plain_entropy),
}


@pytest.mark.parametrize("chosen", [("kl_T",), ("js_T",), ("bonus_T",), tuple(TERMS)])
@pytest.mark.parametrize("names", [("logp_T",), DIFFERENTIABLE])
def test_distributions_against_autograd(chosen, names):
    head, hidden_TD, id_T, adjoints = make(**SETTINGS["everything"])
    ref, ref_TD, _, more = make(width=6, seed=1, temperature=1.7)
    terms = {name: TERMS[name] for name in chosen}
    others = {"logq_ref_TV": (ref, ref_TD), "logq_unread_TV": (ref, ref_TD)}
    weights = dict(zip(TERMS, more.values(), strict=True))
    adjoints = {name: adjoints[name] for name in names} | {name: weights[name] for name in chosen}
    logq_TV = torch.log_softmax(plain_logits(head, hidden_TD), -1)
    logq_ref_TV = torch.log_softmax(plain_logits(ref, ref_TD), -1).detach()
    expected = plain_columns(head, hidden_TD, id_T)
    for name, term in terms.items():
        reads = {"logq_ref_TV": logq_ref_TV} if term.reads else {}
        expected[name] = term.objective(slice(0, 7), logq_TV, **reads)
    loss = sum(adjoints[name] @ expected[name] for name in adjoints)
    pushed = push(
        head, hidden_TD.detach(), id_T, sliced(adjoints), names, distributions=terms, others=others
    )
    assert tuple(pushed.columns) == (*names, *chosen)
    measured = columns(head, hidden_TD, id_T, names, distributions=terms, others=others)
    for name in pushed.columns:
        close(pushed.columns[name], expected[name].detach())
        close(measured[name], expected[name].detach())
    close(pushed.loss, loss.detach())
    for found, wanted in zip(pushed[2:], plain_gradients(loss, head, hidden_TD), strict=True):
        close(found, wanted)
    assert ref.weight.grad is None


def test_distribution_entropy_equals_the_entropy_column():
    head, hidden_TD, id_T, adjoints = make(temperature=0.7)
    adjoint_T = adjoints["entropy_T"]
    states_TD = hidden_TD.detach()
    column = push(head, states_TD, id_T, sliced({"entropy_T": adjoint_T}), ("entropy_T",))
    term = push(
        head,
        states_TD,
        id_T,
        sliced({"bonus_T": adjoint_T}),
        (),
        distributions={"bonus_T": TERMS["bonus_T"]},
    )
    close(term.columns["bonus_T"], column.columns["entropy_T"])
    close(term.grad_hidden_TD, column.grad_hidden_TD)
    close(term.grad_weight_VD, column.grad_weight_VD)


def test_distribution_without_adjoint_or_gradient_is_only_measured():
    head, hidden_TD, id_T, adjoints = make()
    given = {"logp_T": adjoints["logp_T"]}
    terms = {"bonus_T": TERMS["bonus_T"], "flat_T": Distribution(lambda rows, q: q.detach()[:, 0])}
    bare = push(head, hidden_TD.detach(), id_T, sliced(given))
    flat = {"flat_T": torch.ones(7, dtype=torch.float64)}
    pushed = push(head, hidden_TD.detach(), id_T, sliced(given | flat), distributions=terms)
    close(pushed.grad_hidden_TD, bare.grad_hidden_TD)
    close(
        pushed.columns["flat_T"],
        torch.log_softmax(plain_logits(head, hidden_TD), -1)[:, 0].detach(),
    )


class LargestTensor(TorchDispatchMode):
    """Records the largest number of elements that any operation returned, and where it lives."""

    def __init__(self) -> None:
        super().__init__()
        self.numel = 0
        self.made: dict[int, int] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(tensor, Tensor):
                self.numel = max(self.numel, tensor.numel())
                storage = tensor.untyped_storage()
                self.made[storage.data_ptr()] = storage.nbytes() // tensor.itemsize
        return out


@pytest.mark.parametrize("known", [True, False])
def test_no_tensor_of_tokens_times_vocabulary_is_made(known):
    num_tokens, vocabulary, width, chunk = 200, 50, 3, 4
    head, hidden_TD, id_T, adjoints = make(num_tokens, vocabulary, width)
    head = replace(head, chunk_tokens=chunk)
    reads = {"logq_ref_TV": (replace(head, temperature=2.0), hidden_TD.detach())}
    terms = {"kl_T": KL_TO_REFERENCE}
    with LargestTensor() as seen:
        if known:
            columns(head, hidden_TD, id_T, NAMES, distributions=terms, others=reads)
        adjoints["kl_T"] = torch.ones(num_tokens, dtype=torch.float64)
        loss, _ = push_loss(
            head, hidden_TD, id_T, sliced(adjoints), NAMES, distributions=terms, others=reads
        )
        loss.backward()
    allowed = max(chunk * vocabulary, num_tokens * width, vocabulary * width)
    assert chunk * vocabulary <= seen.numel <= allowed < num_tokens * vocabulary / 10


def test_logp_alone_uses_one_buffer_of_chunk_times_vocabulary():
    head, hidden_TD, id_T, adjoints = make(40, 100, 3)
    head = replace(head, chunk_tokens=8)
    for names, buffers in ((("logp_T",), 1), (DIFFERENTIABLE, 2)):
        with LargestTensor() as seen:
            push(head, hidden_TD.detach(), id_T, sliced({"logp_T": adjoints["logp_T"]}), names)
        assert sum(numel == 8 * 100 for numel in seen.made.values()) == buffers
