"""The head's columns over a part of the vocabulary, against autograd of the plain formulas."""

import math

import pytest
import torch
from test_head import SETTINGS, close, make, plain_gradients, plain_logits, push, sliced

from strop.head import chunk as head_chunk
from strop.head.head import Head, columns
from strop.support.errors import UserError

WITH_GRADIENT = ("nucleus_entropy_0.8_T", "nucleus_below_entropy_0.8_T", "min_p_kl_0.2_T")
NAMES = (*WITH_GRADIENT, "min_p_logp_0.2_T", "nucleus_entropy_1_T", "nucleus_entropy_0.3_T")


def entropy(p):
    p = p / p.sum()
    return -(p * p.log()).sum()


def plain(name, logits_TV, id_T):
    """One column, token by token, with gradient through the logits."""
    kind, number = head_chunk.kind_of(name)
    found = []
    for z_V, token in zip(logits_TV, id_T.tolist(), strict=True):
        p_V = torch.softmax(z_V, 0)
        sorted_V = p_V.sort(descending=True).values
        if kind.startswith("nucleus"):
            until_V = sorted_V.detach().cumsum(0)
            size = int((until_V <= number).sum())
            if kind == "nucleus_entropy":
                size = min(int((until_V < number).sum()) + 1, len(z_V))
            found.append(entropy(sorted_V[:size]) if size else p_V.sum() * 0)
            continue
        q_V = p_V.detach() * (p_V.detach() > number * p_V.detach().max())
        q_V = q_V / q_V.sum()
        if kind == "min_p_logp":
            found.append(q_V[token].log() if q_V[token] > 0 else p_V.new_tensor(-1e4))
        else:
            inside_V = q_V > 0
            found.append((q_V[inside_V] * (q_V[inside_V] / p_V[inside_V]).log()).sum())
    return torch.stack(found)


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_columns_and_gradients_are_those_of_autograd(settings):
    head, hidden_TD, id_T, _ = make(**settings)
    logits_TV = plain_logits(head, hidden_TD)
    generator = torch.Generator().manual_seed(1)
    weights = {n: torch.randn(7, generator=generator).double() for n in (*WITH_GRADIENT, "logp_T")}
    expected = {name: plain(name, logits_TV, id_T) for name in NAMES}
    expected["logp_T"] = torch.log_softmax(logits_TV, -1)[torch.arange(7), id_T]
    found = columns(head, hidden_TD, id_T, (*NAMES, "logp_T"))
    for name, column_T in expected.items():
        close(found[name], column_T.detach())
    loss = sum(weight @ expected[name] for name, weight in weights.items())
    pushed = push(head, hidden_TD.detach(), id_T, sliced(weights), (*NAMES, "logp_T"))
    wanted = plain_gradients(loss, head, hidden_TD)
    gradients = pushed[2:] if head.bias is not None else pushed[2:4]
    for ours, theirs in zip(gradients, wanted, strict=True):
        assert theirs.abs().max() > 0.01
        close(ours, theirs)


def head_of(*p):
    """A head whose one token has these probabilities."""
    logits = torch.tensor([p], dtype=torch.float64).log()
    return Head(torch.eye(len(p), dtype=torch.float64)), logits


def test_worked_example_of_siren():
    head, hidden_TD = head_of(0.5, 0.25, 0.15, 0.06, 0.04)
    names = ("nucleus_below_entropy_0.8_T", "nucleus_entropy_0.8_T", "nucleus_entropy_1_T")
    found = columns(head, hidden_TD, torch.tensor([0]), names)
    values = [float(found[name]) for name in names]
    assert values == pytest.approx([0.6365, 0.9810, 1.2753], abs=6e-5)
    peaked, hidden_TD = head_of(0.9, 0.1)  # one token alone is more than .8: nothing is below it
    found = columns(peaked, hidden_TD, torch.tensor([0]), names)
    assert float(found[names[0]]) == float(found[names[1]]) == 0.0


def test_worked_example_of_lp_reg():
    head, hidden_TD = head_of(0.70, 0.20, 0.05, 0.04, 0.008, 0.002)
    name = "min_p_logp_0.02_T"
    proxy = [
        float(columns(head, hidden_TD, torch.tensor([v]), (name,))[name].exp()) for v in range(6)
    ]
    assert proxy == pytest.approx([0.7071, 0.2020, 0.0505, 0.0404, 0, 0], abs=6e-5)
    kl = columns(head, hidden_TD, torch.tensor([0]), ("min_p_kl_0.02_T",))["min_p_kl_0.02_T"]
    assert float(kl) == pytest.approx(0.01005, abs=1e-5)  # -log 0.99


def test_the_likeliest_tokens_and_the_tail():
    head, hidden_TD = head_of(0.5, 0.05, 0.25, 0.2)
    names = ("top_entropy_2_T", "tail_entropy_2_T", "top_token_1_T", "top_token_3_T",
             "top_entropy_9_T", "tail_entropy_9_T")  # fmt: skip
    found = columns(head, hidden_TD, torch.tensor([1]), names)
    wanted = (
        -0.5 * math.log(0.5) - 0.25 * math.log(0.25), -0.25 * math.log(0.25), 0, 3,
        -sum(p * math.log(p) for p in (0.5, 0.05, 0.25, 0.2)), 0.0,
    )  # fmt: skip
    for name, value in zip(names, wanted, strict=True):
        assert float(found[name]) == pytest.approx(value, abs=1e-6), name


def test_a_nucleus_of_at_most_so_many_tokens(monkeypatch):
    monkeypatch.setattr(head_chunk, "MOST", 2)
    head, hidden_TD = head_of(0.4, 0.3, 0.2, 0.1)
    found = columns(head, hidden_TD, torch.tensor([0]), ("nucleus_entropy_0.95_T",))
    assert float(found["nucleus_entropy_0.95_T"]) == pytest.approx(
        float(entropy(torch.tensor([4.0, 3.0])))
    )


def test_numbers_that_cannot_be_stay_finite_and_names_are_checked():
    head, hidden_TD, id_T, _ = make()
    for scale in (1e4, 0.0):
        found = columns(head, hidden_TD.detach() * scale, id_T, NAMES)
        assert all(column.isfinite().all() for column in found.values())
    with pytest.raises(UserError, match=r"no column 'nucleus_entropy_T'.*nucleus_entropy_0.5_T"):
        columns(head, hidden_TD, id_T, ("nucleus_entropy_T",))
    adjoint = {"min_p_logp_0.2_T": torch.ones(7).double()}
    with pytest.raises(UserError, match="has no gradient"):
        push(head, hidden_TD.detach(), id_T, sliced(adjoint), ("min_p_logp_0.2_T",))
