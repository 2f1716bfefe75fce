import math

import torch
from builders import gradient, slope

from strop.parts.loss.penalty.penalise_full_kl_to_reference import PenaliseFullKlToReference
from strop.parts.loss.penalty.penalise_kl_to_reference import PenaliseKlToReference

POLICY = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]], dtype=torch.float64)
REFERENCE = torch.tensor([[0.4, 0.4, 0.2], [0.2, 0.3, 0.5]], dtype=torch.float64)


def test_worked_example():
    # .5 ln(.5/.4) + .3 ln(.3/.4) + 0 = .025267; .1 ln .5 + .1 ln(1/3) + .8 ln 1.6 = .196827
    result = PenaliseFullKlToReference()(POLICY.log(), REFERENCE.log())
    expected = torch.tensor([0.025267, 0.196827], dtype=torch.float64)
    torch.testing.assert_close(-result.value, expected, atol=1e-6, rtol=0)
    torch.testing.assert_close(result.metrics["kl"], -result.value)


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
