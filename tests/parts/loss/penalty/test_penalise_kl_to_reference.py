import math

import pytest
import torch
from builders import NAN, flat_batch, gradient, run, slope

from strop.parts.loss.penalty.penalise_kl_to_reference import PenaliseKlToReference
from strop.support.errors import UserError

ESTIMATORS = ("k1", "abs", "k2", "k3", "k1+", "abs+", "k3+")


def _batch(differences):
    logp_ref_T = [-1.0 - d for d in differences]
    return flat_batch((len(differences),), logp_T=[-1.0] * len(differences), logp_ref_T=logp_ref_T)


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        ("k1", [0.5, -0.5]),
        ("abs", [0.5, 0.5]),
        ("k2", [0.125, 0.125]),
        ("k3", [0.106531, 0.148721]),  # exp(-.5) + .5 - 1, exp(.5) - .5 - 1
        ("k1+", [0.5, -0.5]),
        ("abs+", [0.5, 0.5]),
        ("k3+", [0.106531, 0.148721]),
    ],
)
def test_worked_example(estimator, expected):
    result = run(PenaliseKlToReference(estimator), _batch([0.5, -0.5]))
    assert (-result.value).tolist() == pytest.approx(expected, abs=1e-6)
    assert result.metrics["kl"].tolist() == pytest.approx(expected, abs=1e-6)


def test_small_divergences_are_not_rounded_away():
    moved_T = torch.tensor([-3e-4, -1e-5, 1e-6, 3e-4])  # nats; exp(-d) is 1 within a few roundings
    found_T = -PenaliseKlToReference("k3")(moved_T, torch.zeros(4)).value
    torch.testing.assert_close(found_T, moved_T.square() / 2, rtol=0.2, atol=0.0)


def test_expectation_over_a_policy():
    # policy (.5, .3, .2), reference (.4, .4, .2): KL = E[k1] = E[k3] = .025267, E[k2] = .024862
    policy = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    reference = torch.tensor([0.4, 0.4, 0.2], dtype=torch.float64)
    for estimator, expected in (("k1", 0.025267), ("k3", 0.025267), ("k2", 0.024862)):
        kl_V = -PenaliseKlToReference(estimator)(policy.log(), reference.log()).value
        assert float((policy * kl_V).sum()) == pytest.approx(expected, abs=1e-6)


AT_T = torch.tensor([-1.0, -0.3, -2.0], dtype=torch.float64)
REF_T = torch.tensor([-1.4, -0.9, -1.5], dtype=torch.float64)
OLD_T = torch.tensor([-1.1, -0.2, -2.2], dtype=torch.float64)


@pytest.mark.parametrize("estimator", ["k1", "abs", "k2", "k3"])
@pytest.mark.parametrize("bias_corrected", [False, True])
def test_gradient(estimator, bias_corrected):
    part = PenaliseKlToReference(estimator, bias_corrected)
    weight_T = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)

    def function(logp_T):
        return (part(logp_T, REF_T, OLD_T).value * weight_T).sum()

    found = gradient(function, AT_T)
    torch.testing.assert_close(found, slope(function, AT_T), atol=1e-8, rtol=1e-6)
    assert (found != 0).all()


@pytest.mark.parametrize("estimator", ["k1+", "abs+", "k3+"])
def test_straight_through_takes_the_gradient_of_k2(estimator):
    found = gradient(lambda x: PenaliseKlToReference(estimator)(x, REF_T).value.sum(), AT_T)
    torch.testing.assert_close(found, -(AT_T - REF_T))


def test_bias_corrected_k3_has_the_expected_gradient_of_the_true_divergence():
    # on policy (rho = 1), the mean over the policy's own samples of d(k3 rho)/d logp, pushed
    # through a softmax, is the gradient of KL(policy || reference) by the logits
    logits = torch.tensor([0.3, -0.2, 0.1], dtype=torch.float64)
    reference_V = torch.tensor([0.4, 0.4, 0.2], dtype=torch.float64).log()
    part = PenaliseKlToReference("k3", bias_corrected=True)

    def true_kl(logits):
        logq_V = logits.log_softmax(0)
        return (logq_V.exp() * (logq_V - reference_V)).sum()

    def sampled(logits):
        logq_V = logits.log_softmax(0)
        kl_V = -part(logq_V, reference_V, logq_V.detach()).value
        return (logq_V.detach().exp() * kl_V).sum()

    torch.testing.assert_close(gradient(sampled, logits), gradient(true_kl, logits))


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("bias_corrected", [False, True])
def test_only_the_current_policy_gets_a_gradient(estimator, bias_corrected):
    leaf_T = AT_T.clone().requires_grad_()
    ref_T, old_T = REF_T.clone().requires_grad_(), OLD_T.clone().requires_grad_()
    result = PenaliseKlToReference(estimator, bias_corrected)(leaf_T, ref_T, old_T)
    result.value.sum().backward()
    assert leaf_T.grad is not None
    assert ref_T.grad is None
    assert old_T.grad is None
    assert not result.metrics["kl"].requires_grad


def test_bias_corrected_value_and_metric():
    result = PenaliseKlToReference("k2", bias_corrected=True)(AT_T, REF_T, OLD_T)
    kl_T = (AT_T - REF_T).square() / 2
    torch.testing.assert_close(result.value, -kl_T * (AT_T - OLD_T).exp())
    torch.testing.assert_close(result.metrics["kl"], kl_T)


def test_edges():
    result = run(PenaliseKlToReference(), _batch([0.0, 100.0, -100.0]))
    assert float(result.value[0]) == 0.0
    assert (-result.value[1:]).tolist() == pytest.approx(
        [math.exp(-20) + 19, math.exp(20) - 21], rel=1e-12
    )
    with pytest.raises(UserError, match="logp_old_T"):
        run(PenaliseKlToReference(bias_corrected=True), _batch([0.0]))
    far_T = torch.tensor([-60.0, 0.0], dtype=torch.float64)
    ratio = PenaliseKlToReference("k1", True)(far_T * 0 - 1, far_T * 0, far_T).value
    assert ratio.tolist() == pytest.approx([math.exp(20), math.exp(-1)], rel=1e-12)
    with pytest.raises(UserError, match="estimator"):
        PenaliseKlToReference("k4")
    leaf_T = torch.tensor([NAN, -1.0], dtype=torch.float64).requires_grad_()
    masked_T = torch.where(torch.tensor([False, True]), leaf_T, 0)  # as the loss kernel does
    PenaliseKlToReference()(masked_T, torch.zeros(2).double()).value.sum().backward()
    assert torch.isfinite(leaf_T.grad).all()
