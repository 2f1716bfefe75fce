"""The head against the plain formula on full logits, in float64 unless stated otherwise."""

from dataclasses import replace
from typing import NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.distributions import Categorical

from strop.head.chunk import HeadCall
from strop.head.head import Head, allocate, columns, push_loss, run

DIFFERENTIABLE = ("logp_T", "entropy_T", "mean_logp_T")
NAMES = (*DIFFERENTIABLE, "sum_pi_squared_T")
SETTINGS = {
    "plain": {},
    "temperature": {"temperature": 0.6},
    "scale": {"scale": 0.25},
    "softcap": {"softcap": 1.5},
    "everything": {"temperature": 1.7, "scale": 2.5, "softcap": 3.0, "bias": True},
    "bias": {"bias": True, "temperature": 0.8},
}


def make(num_tokens=7, vocabulary=11, width=5, seed=0, **settings):
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    weight_VD = normal(vocabulary, width).requires_grad_()
    bias_V = normal(vocabulary).requires_grad_() if settings.pop("bias", False) else None
    hidden_TD = normal(num_tokens, width).requires_grad_()
    id_T = torch.randint(vocabulary, (num_tokens,), generator=generator)
    adjoints = {name: normal(num_tokens) for name in DIFFERENTIABLE}
    head = Head(weight_VD, bias_V, chunk_tokens=3, **settings)
    return head, hidden_TD, id_T, adjoints


def plain_logits(head: Head, hidden_TD: Tensor) -> Tensor:
    raw_TV = hidden_TD @ head.weight.T
    if head.bias is not None:
        raw_TV = raw_TV + head.bias
    raw_TV = raw_TV * head.scale
    if head.softcap is not None:
        raw_TV = head.softcap * torch.tanh(raw_TV / head.softcap)
    return raw_TV / head.temperature


def plain_columns(head: Head, hidden_TD: Tensor, id_T: Tensor) -> dict[str, Tensor]:
    logits_TV = plain_logits(head, hidden_TD)
    logq_TV = torch.log_softmax(logits_TV, -1)
    return {
        "logp_T": logq_TV[torch.arange(len(id_T)), id_T],
        "entropy_T": Categorical(logits=logits_TV, validate_args=False).entropy(),
        "mean_logp_T": logq_TV.mean(-1),
        "sum_pi_squared_T": logq_TV.exp().square().sum(-1),
    }


def plain_gradients(loss: Tensor, head: Head, hidden_TD: Tensor) -> list[Tensor]:
    inputs = [hidden_TD, head.weight] + ([] if head.bias is None else [head.bias])
    return list(torch.autograd.grad(loss, inputs))


class Pushed(NamedTuple):
    loss: Tensor
    columns: dict[str, Tensor]
    grad_hidden_TD: Tensor
    grad_weight_VD: Tensor | None
    grad_bias_V: Tensor | None


def push(
    head, hidden_TD, id_T, adjoints_of, names=("logp_T",), distributions=(), others=(), kept=None
) -> Pushed:
    """What `push_loss` hands to autograd, as it was formed."""
    call = HeadCall(head, names, dict(distributions), dict(others), kept)
    needs = (True, head.weight.requires_grad, head.bias is not None and head.bias.requires_grad)
    gradients = allocate(head, hidden_TD, needs)
    return Pushed(*run(call, hidden_TD, id_T, adjoints_of, gradients), *gradients)


def sliced(adjoints: dict[str, Tensor]):
    return lambda rows, _: {name: adjoint_T[rows] for name, adjoint_T in adjoints.items()}


def close(left: Tensor | None, right: Tensor, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(left, right, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_columns_are_those_of_log_softmax_and_categorical(settings):
    head, hidden_TD, id_T, _ = make(**settings)
    found = columns(head, hidden_TD, id_T, NAMES)
    assert tuple(found) == NAMES
    for name, expected_T in plain_columns(head, hidden_TD, id_T).items():
        assert found[name].dtype == torch.float64
        assert not found[name].requires_grad
        close(found[name], expected_T.detach())


def test_each_column_alone_is_the_same_as_with_the_others():
    # logp alone works in one buffer, entropy needs a second one: both ways must agree
    head, hidden_TD, id_T, _ = make(softcap=2.0)
    together = columns(head, hidden_TD, id_T, NAMES)
    for name in NAMES:
        close(columns(head, hidden_TD, id_T, (name,))[name], together[name])


def test_worked_example():
    # W = I, h = (ln 1, ln 2, ln 5): p = (1, 2, 5) / 8 by hand
    head = Head(torch.eye(3, dtype=torch.float64))
    hidden_TD = torch.tensor([[1.0, 2.0, 5.0]], dtype=torch.float64).log()
    found = columns(head, hidden_TD, torch.tensor([1]), NAMES)
    logs = torch.tensor([8.0, 10.0, 30.0, 0.25], dtype=torch.float64).log()
    close(found["logp_T"], logs[3:])
    close(found["mean_logp_T"], ((logs[1] - 3 * logs[0]) / 3).reshape(1))
    # H = ln 8 - (1 ln 1 + 2 ln 2 + 5 ln 5) / 8 = 0.900256051...
    close(found["entropy_T"], torch.tensor([0.9002560513], dtype=torch.float64), 1e-9)
    close(found["sum_pi_squared_T"], torch.tensor([30 / 64], dtype=torch.float64))


def test_large_logits_stay_finite():
    head, hidden_TD, id_T, adjoints = make()
    hidden_TD = hidden_TD.detach() * 1e4
    pushed = push(head, hidden_TD, id_T, sliced(adjoints), NAMES)
    for tensor in (*pushed.columns.values(), pushed.grad_hidden_TD, pushed.grad_weight_VD):
        assert torch.isfinite(tensor).all()


@pytest.mark.parametrize("names", [*[(name,) for name in DIFFERENTIABLE], DIFFERENTIABLE])
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_push_gives_the_gradients_of_autograd(settings, names):
    head, hidden_TD, id_T, adjoints = make(**settings)
    adjoints = {name: adjoints[name] for name in names}
    expected = plain_columns(head, hidden_TD, id_T)
    loss = sum(adjoints[name] @ expected[name] for name in names)
    pushed = push(head, hidden_TD.detach(), id_T, sliced(adjoints), NAMES)
    close(pushed.loss, loss.detach())
    gradients = pushed[2:] if head.bias is not None else pushed[2:4]
    for found, wanted in zip(gradients, plain_gradients(loss, head, hidden_TD), strict=True):
        assert wanted.abs().max() > 0.01
        close(found, wanted)


def clipped_ratio_adjoints(logp_old_T: Tensor, advantage_T: Tensor):
    """Own-token scope: each adjoint from its own token's columns, by autograd on small vectors."""

    def adjoints_of(rows: slice, found: dict[str, Tensor]) -> dict[str, Tensor]:
        logp_T = found["logp_T"].requires_grad_()
        entropy_T = found["entropy_T"].requires_grad_()
        ratio_T = (logp_T - logp_old_T[rows]).exp()
        bounded_T = torch.minimum(
            ratio_T * advantage_T[rows], ratio_T.clamp(0.8, 1.2) * advantage_T[rows]
        )
        loss = -(bounded_T + 0.01 * entropy_T.square()).sum()
        pair = torch.autograd.grad(loss, (logp_T, entropy_T))
        return dict(zip(("logp_T", "entropy_T"), pair, strict=True))

    return adjoints_of


def test_one_fused_pass_equals_measuring_then_pushing():
    head, hidden_TD, id_T, adjoints = make(num_tokens=10)
    names = ("logp_T", "entropy_T")
    measured = columns(head, hidden_TD, id_T, names)
    logp_old_T = measured["logp_T"] + 0.3 * adjoints["logp_T"]
    adjoints_of = clipped_ratio_adjoints(logp_old_T, adjoints["mean_logp_T"])
    calls = []

    def counted(rows, found):
        calls.append(rows)
        return adjoints_of(rows, found)

    fused = push(head, hidden_TD.detach(), id_T, counted, names)
    assert calls == [slice(0, 3), slice(3, 6), slice(6, 9), slice(9, 10)]
    known = adjoints_of(slice(0, 10), measured)
    later = push(head, hidden_TD.detach(), id_T, sliced(known), names)
    assert 0 < (known["logp_T"] == 0).sum() < 10  # some tokens are clipped, some not
    for left, right in zip(fused[2:4], later[2:4], strict=True):
        close(left, right)
    for name in names:
        close(fused.columns[name], measured[name].detach())


@given(
    num_tokens=st.integers(0, 9),
    vocabulary=st.integers(1, 6),
    chunk=st.integers(1, 12),
    setting=st.sampled_from(list(SETTINGS.values())),
    seed=st.integers(0, 1000),
)
def test_chunk_size_changes_nothing(num_tokens, vocabulary, chunk, setting, seed):
    head, hidden_TD, id_T, adjoints = make(num_tokens, vocabulary, 4, seed, **setting)
    wanted = push(
        replace(head, chunk_tokens=None), hidden_TD.detach(), id_T, sliced(adjoints), NAMES
    )
    found = push(
        replace(head, chunk_tokens=chunk), hidden_TD.detach(), id_T, sliced(adjoints), NAMES
    )
    expected = plain_columns(head, hidden_TD, id_T)
    for name in NAMES:
        close(found.columns[name], wanted.columns[name])
        close(found.columns[name], expected[name].detach())
    for left, right in zip((found.loss, *found[2:]), (wanted.loss, *wanted[2:]), strict=True):
        assert (left is None) == (right is None)
        if left is not None:
            close(left, right)


def test_no_tokens_give_zero_gradients():
    head, hidden_TD, id_T, adjoints = make(num_tokens=0)
    loss, found = push_loss(head, hidden_TD, id_T, sliced(adjoints), NAMES)
    loss.backward()
    assert [found[name].shape for name in NAMES] == [(0,)] * 4
    assert hidden_TD.grad.shape == (0, 5)
    close(head.weight.grad, torch.zeros(11, 5, dtype=torch.float64))


def test_bfloat16_is_close_to_float32_and_its_logits_are_not_rounded():
    head, hidden_TD, id_T, adjoints = make(20, 300, 64)
    low = Head(head.weight.detach().bfloat16().requires_grad_(), chunk_tokens=7)
    low_TD = hidden_TD.detach().bfloat16()
    high = Head(low.weight.detach().float().requires_grad_(), chunk_tokens=7)
    pushed = push(low, low_TD, id_T, sliced(adjoints), NAMES)
    wanted = push(high, low_TD.float(), id_T, sliced(adjoints), NAMES)
    for name in NAMES:
        assert pushed.columns[name].dtype == torch.float32
        # logits reach 30 here, where bfloat16 has steps of 0.125
        close(pushed.columns[name], wanted.columns[name], 1e-5)
        full = columns(replace(head, chunk_tokens=7), hidden_TD, id_T, NAMES)[name]
        error = (pushed.columns[name] - full).abs().mean() / full.abs().mean()
        assert error < 1e-2
    assert pushed.grad_hidden_TD.dtype == torch.bfloat16
    assert pushed.grad_weight_VD.dtype == torch.float32
    close(pushed.grad_hidden_TD.float(), wanted.grad_hidden_TD, 1e-2)
    close(pushed.grad_weight_VD, wanted.grad_weight_VD, 1e-4)


def test_autocast_of_the_caller_changes_nothing():
    head, hidden_TD, id_T, adjoints = make(20, 300, 64)
    head = Head(head.weight.detach().float().requires_grad_(), chunk_tokens=7)
    states_TD = hidden_TD.detach().float()
    wanted = push(head, states_TD, id_T, sliced(adjoints), NAMES)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        pushed = push(head, states_TD, id_T, sliced(adjoints), NAMES)
    for name in NAMES:
        close(pushed.columns[name], wanted.columns[name])
    close(pushed.loss, wanted.loss)
    close(pushed.grad_hidden_TD, wanted.grad_hidden_TD)
    close(pushed.grad_weight_VD, wanted.grad_weight_VD)


def test_bfloat16_weights_are_cast_block_by_block(monkeypatch):
    # blocks of 3 of the 11 rows: 5 numbers of 4 bytes each
    monkeypatch.setattr("strop.head.chunk.CAST_BYTES", 3 * 5 * 4)
    head, hidden_TD, id_T, adjoints = make()
    low = Head(head.weight.detach().bfloat16().requires_grad_(), chunk_tokens=4)
    high = Head(low.weight.detach().float().requires_grad_())
    pushed = push(low, hidden_TD.detach().float(), id_T, sliced(adjoints), NAMES)
    wanted = push(high, hidden_TD.detach().float(), id_T, sliced(adjoints), NAMES)
    for left, right in zip(pushed[2:4], wanted[2:4], strict=True):
        close(left, right, 1e-5)
