"""The head inside ordinary autograd: trunks, tied and frozen weights, checkpoints, errors."""

from dataclasses import replace

import pytest
import torch
from test_head import (
    DIFFERENTIABLE,
    NAMES,
    close,
    make,
    plain_columns,
    plain_gradients,
    push,
    sliced,
)
from torch.utils.checkpoint import checkpoint

from strop.head.head import Distribution, Head, columns, push_loss
from strop.support.errors import UserError


def test_push_loss_hands_its_gradients_to_autograd():
    head, hidden_TD, id_T, adjoints = make(bias=True)
    trunk_DD = torch.eye(5, dtype=torch.float64).mul_(1.3).requires_grad_()
    loss, found = push_loss(head, hidden_TD @ trunk_DD, id_T, sliced(adjoints), DIFFERENTIABLE)
    assert not any(column_T.requires_grad for column_T in found.values())
    (loss * -2.5).backward()
    expected = plain_columns(head, hidden_TD @ trunk_DD, id_T)
    wanted = -2.5 * sum(adjoints[name] @ expected[name] for name in DIFFERENTIABLE)
    inputs = (hidden_TD, head.weight, head.bias, trunk_DD)
    for tensor, gradient in zip(inputs, torch.autograd.grad(wanted, inputs), strict=True):
        close(tensor.grad, gradient)


def test_push_loss_backward_runs_once():
    head, hidden_TD, id_T, adjoints = make()
    loss, _ = push_loss(head, hidden_TD, id_T, sliced(adjoints), DIFFERENTIABLE)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="already passed on"):
        loss.backward()


def test_push_loss_without_grad_measures():
    head, hidden_TD, id_T, adjoints = make()
    with torch.no_grad():
        loss, found = push_loss(head, hidden_TD, id_T, sliced(adjoints), DIFFERENTIABLE)
    assert not loss.requires_grad
    close(loss, sum(adjoints[name] @ found[name] for name in DIFFERENTIABLE))


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_push_loss_inside_a_checkpoint(use_reentrant):
    head, hidden_TD, id_T, adjoints = make()

    def forward(states_TD):
        return push_loss(head, states_TD * 2, id_T, sliced(adjoints), DIFFERENTIABLE)[0]

    checkpoint(forward, hidden_TD, use_reentrant=use_reentrant).backward()
    expected = plain_columns(head, hidden_TD * 2, id_T)
    loss = sum(adjoints[name] @ expected[name] for name in DIFFERENTIABLE)
    for tensor, wanted in zip(
        (hidden_TD, head.weight), plain_gradients(loss, head, hidden_TD), strict=True
    ):
        close(tensor.grad, wanted)


def test_tied_weight_gets_the_sum_over_its_uses():
    head, _, id_T, adjoints = make()
    context_T = id_T.roll(1)
    loss, _ = push_loss(head, head.weight[context_T].tanh(), id_T, sliced(adjoints), DIFFERENTIABLE)
    loss.backward()
    expected = plain_columns(head, head.weight[context_T].tanh(), id_T)
    wanted = sum(adjoints[name] @ expected[name] for name in DIFFERENTIABLE)
    close(head.weight.grad, torch.autograd.grad(wanted, head.weight)[0])


def test_frozen_weight_gets_no_gradient_and_the_hidden_states_do():
    head, hidden_TD, id_T, adjoints = make()
    wanted = push(head, hidden_TD.detach(), id_T, sliced(adjoints), DIFFERENTIABLE)
    frozen = replace(head, weight=head.weight.detach())
    pushed = push(frozen, hidden_TD.detach(), id_T, sliced(adjoints), DIFFERENTIABLE)
    assert pushed.grad_weight_VD is None
    close(pushed.grad_hidden_TD, wanted.grad_hidden_TD)
    loss, _ = push_loss(frozen, hidden_TD, id_T, sliced(adjoints), DIFFERENTIABLE)
    loss.backward()
    close(hidden_TD.grad, wanted.grad_hidden_TD)


def test_weight_alone_can_be_trained():
    head, hidden_TD, id_T, adjoints = make()
    wanted = push(head, hidden_TD.detach(), id_T, sliced(adjoints), DIFFERENTIABLE)
    loss, _ = push_loss(head, hidden_TD.detach(), id_T, sliced(adjoints), DIFFERENTIABLE)
    loss.backward()
    close(head.weight.grad, wanted.grad_weight_VD)


def test_mistakes_are_named():
    head, hidden_TD, id_T, _ = make()
    ones_T = torch.ones(7, dtype=torch.float64)
    with pytest.raises(UserError, match=r"temperature must be above 0; got 0"):
        replace(head, temperature=0)
    with pytest.raises(UserError, match="chunk_tokens"):
        replace(head, chunk_tokens=0)
    with pytest.raises(UserError, match=r"bias must be \[V\] = \[11\]"):
        replace(head, bias=torch.zeros(4))
    with pytest.raises(UserError, match="weight"):
        replace(head, weight=torch.zeros(0, 3))
    with pytest.raises(UserError, match="no column 'logp'"):
        columns(head, hidden_TD, id_T, ("logp",))
    with pytest.raises(UserError, match="hidden_TD must be"):
        columns(head, hidden_TD[:, :3], id_T)
    with pytest.raises(UserError, match="id_T must be int64"):
        columns(head, hidden_TD, id_T.int())
    with pytest.raises(UserError, match="'entropy_T', which is not among"):
        push(head, hidden_TD, id_T, sliced({"entropy_T": ones_T}))
    with pytest.raises(UserError, match="no gradient"):
        push(head, hidden_TD, id_T, sliced({"sum_pi_squared_T": ones_T}), NAMES)
    with pytest.raises(UserError, match=r"must be \[3\] for this chunk; got \[7\]"):
        push(head, hidden_TD, id_T, lambda *_: {"logp_T": ones_T})
    with pytest.raises(UserError, match="add it to `others`"):
        columns(
            head,
            hidden_TD,
            id_T,
            distributions={"kl_T": Distribution(torch.zeros, ("logq_ref_TV",))},
        )
    with pytest.raises(UserError, match="may not be called 'logp_T'"):
        columns(head, hidden_TD, id_T, distributions={"logp_T": Distribution(torch.zeros)})
    with pytest.raises(UserError, match=r"must return \[3\] numbers"):
        columns(head, hidden_TD, id_T, distributions={"x_T": Distribution(lambda rows, q: q)})
    reads = {"logq_ref_TV": (Head(torch.zeros(4, 5, dtype=torch.float64)), hidden_TD)}
    with pytest.raises(UserError, match="logq_ref_TV must have 11 tokens"):
        columns(
            head,
            hidden_TD,
            id_T,
            distributions={"kl_T": Distribution(torch.zeros, ("logq_ref_TV",))},
            others=reads,
        )
