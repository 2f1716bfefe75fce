import dataclasses

import pytest
import torch
from builders import flat_batch, run

from strop.method.check import check
from strop.method.part import Use
from strop.parts.advantage.credit.credit_reference_likelihood import CreditReferenceLikelihood
from strop.recipes.grpo import grpo
from strop.support.errors import UserError

OLD = [-1.0, -2.0, -0.5, -3.0]
REF = [-0.5, -2.5, -0.5, -1.0]  # r = .5, -.5, 0, 2


def credit(part, batch=None, **columns):
    given = flat_batch((2, 2), logp_old_T=OLD, logp_ref_T=REF, **columns)
    return run(part, given if batch is None else batch).value.tolist()


def test_worked_examples():
    assert credit(CreditReferenceLikelihood()) == [0.5, -0.5, 0.0, 2.0]
    assert credit(CreditReferenceLikelihood(coef=2.0, gamma=0.5)) == [0.5, -1.0, 2.0, 4.0]
    assert credit(CreditReferenceLikelihood(gamma=1.0)) == [0.0, -0.5, 2.0, 2.0]
    kl = [0.25, 0.5, 0.125, 1.0]
    centred = credit(CreditReferenceLikelihood(centre=True), kl_ref_old_T=kl)
    assert centred == [0.75, 0.0, 0.125, 3.0]
    before = [1.0, 1.0, -1.0, -1.0]
    added = credit(CreditReferenceLikelihood(adds=True), advantage_T=before)
    assert added == [1.5, 0.5, -1.0, 1.0]
    assert credit(CreditReferenceLikelihood(), advantage_T=before) == [0.5, -0.5, 0.0, 2.0]


def test_metrics_and_what_is_missing():
    found = run(
        CreditReferenceLikelihood(centre=True),
        flat_batch((2, 2), logp_old_T=OLD, logp_ref_T=REF, kl_ref_old_T=[1.0, 2.0, 0.0, 1.0]),
    )
    assert found.metrics == {"reference/credit_mean": 0.5, "reference/kl_mean": 1.0}
    adds = Use(CreditReferenceLikelihood(adds=True))
    with pytest.raises(UserError, match="reads advantage_T, which"):
        check(dataclasses.replace(grpo(), advantage=(adds,)))


@pytest.mark.parametrize("centre", [False, True])
def test_the_expected_step_is_that_of_the_divergence(centre):
    """Over all tokens of a vocabulary: sum_v q_v A_v grad log q_v = -grad KL(q || p)."""
    logits_V = torch.tensor([0.3, -0.2, 1.0, 0.1], dtype=torch.float64, requires_grad=True)
    logp_V = torch.tensor([1.0, 0.0, -0.5, 0.2], dtype=torch.float64).log_softmax(0)
    logq_V = logits_V.log_softmax(0)
    kl = (logq_V.exp() * (logq_V - logp_V)).sum()
    (exact_V,) = torch.autograd.grad(-kl, logits_V, retain_graph=True)
    rows = torch.arange(4)
    part = CreditReferenceLikelihood(centre=centre)
    given = (logq_V.detach(), logp_V, rows >= 0, rows, None, kl.detach().expand(4))
    credit_V = part(*given).value
    (found_V,) = torch.autograd.grad((logq_V.exp().detach() * credit_V * logq_V).sum(), logits_V)
    torch.testing.assert_close(found_V, exact_V)
    expected = float((logq_V.exp() * credit_V).sum().detach())
    assert expected == pytest.approx(0.0 if centre else -float(kl.detach()))
