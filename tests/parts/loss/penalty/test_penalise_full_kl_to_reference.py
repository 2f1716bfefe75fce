import math

import pytest
import torch
from builders import gradient, slope
from torch.nn.functional import pad

from strop.parts.loss.penalty.penalise_full_kl_to_reference import PenaliseFullKlToReference
from strop.parts.loss.penalty.penalise_kl_to_reference import PenaliseKlToReference
from strop.support.errors import UserError

POLICY = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]], dtype=torch.float64)
REFERENCE = torch.tensor([[0.4, 0.4, 0.2], [0.2, 0.3, 0.5]], dtype=torch.float64)


def test_worked_example():
    # .5 ln(.5/.4) + .3 ln(.3/.4) + 0 = .025267; .1 ln .5 + .1 ln(1/3) + .8 ln 1.6 = .196827
    result = PenaliseFullKlToReference()(POLICY.log(), REFERENCE.log())
    expected = torch.tensor([0.025267, 0.196827], dtype=torch.float64)
    torch.testing.assert_close(-result.value, expected, atol=1e-6, rtol=0)
    torch.testing.assert_close(result.metrics["kl"], -result.value)


def test_other_divergences():
    # forward, row 0: .4 ln(.4/.5) + .4 ln(.4/.3) = .025815; the mixture of both is their mean
    forward = PenaliseFullKlToReference("forward")(POLICY.log(), REFERENCE.log()).value
    assert float(forward[0]) == pytest.approx(-0.025815, abs=1e-6)
    swapped = PenaliseFullKlToReference()(REFERENCE.log(), POLICY.log()).value
    torch.testing.assert_close(forward, swapped)
    mixed = (POLICY + REFERENCE) / 2
    halves = [
        PenaliseFullKlToReference()(each.log(), mixed.log()).value for each in (POLICY, REFERENCE)
    ]
    found = PenaliseFullKlToReference("jensen_shannon")(POLICY.log(), REFERENCE.log()).value
    torch.testing.assert_close(found, sum(halves) / 2)
    for beta, other in ((0, "forward"), (1, "reverse")):  # the mixture is one of the two
        with pytest.raises(UserError, match=f"nothing would be learnt: take divergence={other}"):
            PenaliseFullKlToReference("jensen_shannon", beta=beta)


def test_over_the_likeliest_tokens():
    """Row 0 over the reference's first two: what is left of both is .2, which adds nothing."""
    for divergence in ("reverse", "forward", "jensen_shannon"):
        whole = PenaliseFullKlToReference(divergence)(POLICY.log(), REFERENCE.log()).value
        for top_of in ("reference", "current"):
            tail = PenaliseFullKlToReference(divergence, top_k=2, top_of=top_of)
            found = tail(POLICY.log(), REFERENCE.log()).value
            torch.testing.assert_close(found, whole)  # one token is left: it is its own tail
            coarse = PenaliseFullKlToReference(divergence, top_k=1, top_of=top_of)
            assert bool((coarse(POLICY.log(), REFERENCE.log()).value >= whole - 1e-12).all())
        all_of = PenaliseFullKlToReference(divergence, top_k=3, others="renormalise")
        assert all_of(POLICY.log(), REFERENCE.log()).value.equal(whole)
    # the policy's likeliest of row 1 alone: .8 and .2 against .5 and .5
    one = PenaliseFullKlToReference(top_k=1, top_of="current")(POLICY.log(), REFERENCE.log()).value
    assert float(one[1]) == pytest.approx(-(0.8 * math.log(1.6) + 0.2 * math.log(0.4)))
    # without what is left: (5/8, 3/8) against (1/2, 1/2)
    part = PenaliseFullKlToReference(top_k=2, others="renormalise")
    expected = 0.625 * math.log(1.25) + 0.375 * math.log(0.75)
    assert float(part(POLICY.log(), REFERENCE.log()).value[0]) == pytest.approx(-expected)


@pytest.mark.parametrize("divergence", ["reverse", "forward", "jensen_shannon"])
@pytest.mark.parametrize("fields", [{}, {"top_k": 1}, {"top_k": 2, "others": "renormalise"}])
def test_gradients_of_all_forms(divergence, fields):
    part = PenaliseFullKlToReference(divergence, beta=0.3, **fields)

    def function(logits):
        return part(logits.view(2, 3).log_softmax(-1), REFERENCE.log()).value.sum()

    logits = torch.tensor([0.3, -0.2, 0.1, 1.0, 0.0, -1.0], dtype=torch.float64)
    torch.testing.assert_close(
        gradient(function, logits), slope(function, logits), atol=1e-8, rtol=1e-6
    )


def test_gradient():
    logits_TV = torch.tensor([[0.3, -0.2, 0.1], [1.0, 0.0, -1.0]], dtype=torch.float64)

    def function(logits):
        logq_TV = logits.view(2, 3).log_softmax(-1)
        value_T = PenaliseFullKlToReference()(logq_TV, REFERENCE.log()).value
        return (value_T * torch.tensor([1.0, 3.0])).sum()

    found = gradient(function, logits_TV.flatten())
    torch.testing.assert_close(found, slope(function, logits_TV.flatten()), atol=1e-8, rtol=1e-6)
    reference_TV = REFERENCE.log().requires_grad_()
    current_TV = POLICY.log().requires_grad_()
    PenaliseFullKlToReference()(current_TV, reference_TV).value.sum().backward()
    assert reference_TV.grad is None
    assert current_TV.grad is not None
    metrics = PenaliseFullKlToReference()(current_TV, reference_TV).metrics
    assert not metrics["kl"].requires_grad


def test_expected_gradient_of_k2_is_this_ones():
    logits = torch.tensor([0.3, -0.2, 0.1], dtype=torch.float64)

    def full(logits):
        return PenaliseFullKlToReference()(
            logits.log_softmax(0)[None], REFERENCE[0].log()[None]
        ).value.sum()

    def sampled(logits):
        logq_V = logits.log_softmax(0)
        value_V = PenaliseKlToReference("k2")(logq_V, REFERENCE[0].log()).value
        return (logq_V.detach().exp() * value_V).sum()

    torch.testing.assert_close(gradient(full, logits), gradient(sampled, logits))


def test_edges():
    # impossible under the policy: adds 0, whatever the reference says; no NaN in the gradient
    logq_TV = torch.tensor([[0.0, -math.inf]], dtype=torch.float64).requires_grad_()
    for other in (-math.inf, -1.0):
        reference_TV = torch.tensor([[-0.5, other]], dtype=torch.float64)
        value_T = PenaliseFullKlToReference()(logq_TV, reference_TV).value
        assert value_T.tolist() == [-0.5]
        assert torch.isfinite(torch.autograd.grad(value_T.sum(), logq_TV)[0]).all()
    impossible_TV = torch.tensor([[-math.inf, 0.0]], dtype=torch.float64)
    assert PenaliseFullKlToReference()(logq_TV, impossible_TV).value.tolist() == [-math.inf]


@pytest.mark.parametrize("divergence", ["reverse", "forward", "jensen_shannon"])
@pytest.mark.parametrize("top_k", [0, 2, 3])
def test_a_token_that_both_find_impossible_brings_no_nan_to_the_gradient(divergence, top_k):
    """As if it was not there; with top_k 3 it is all that is left for the tail."""
    logits_TV = torch.tensor([[1.0, 0.5, 0.0]], dtype=torch.float64)

    def without(logits_TV):
        part = PenaliseFullKlToReference(divergence, top_k=top_k)
        return part(logits_TV.log_softmax(-1), REFERENCE[:1].log()).value.sum()

    def beside_it(logits_TV):
        part = PenaliseFullKlToReference(divergence, top_k=top_k)
        wide = [pad(each, (0, 1), value=-math.inf) for each in (logits_TV, REFERENCE[:1].log())]
        return part(wide[0].log_softmax(-1), wide[1]).value.sum()

    torch.testing.assert_close(beside_it(logits_TV), without(logits_TV))
    torch.testing.assert_close(gradient(beside_it, logits_TV), gradient(without, logits_TV))
