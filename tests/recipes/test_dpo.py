import math

import pytest
import torch
from builders import assert_same_push, f64, flat_batch, run
from differences import gradient_by_differences
from torch.nn.functional import logsigmoid

from strop import functional
from strop.parts.loss.bound.prefer_by_likelihood import PreferByLikelihood
from strop.parts.loss.bound.prefer_over_reference import PreferOverReference
from strop.recipes.dpo import dpo, simpo
from strop.support.errors import UserError


def pair(chosen, rejected, **more):
    """One pair of answers of one token each, so that sums and means are the numbers themselves."""
    sides = {"logp_chosen": f64([chosen]), "logp_rejected": f64([rejected])}
    masks = {f"mask_{side}": torch.ones(1, 1) for side in ("chosen", "rejected")}
    return {**sides, **masks, **{k: f64([v]) for k, v in more.items()}}


def test_worked_example_of_dpo():
    given = pair(-40.0, -50.0, logp_ref_chosen=-42.0, logp_ref_rejected=-49.0)
    loss, metrics = functional.policy_loss("dpo", **given)
    assert float(loss) == pytest.approx(0.5544, abs=5e-5)  # Delta 3, beta 0.1
    assert metrics["preference/margin"] == pytest.approx(0.3)
    assert metrics["preference/accuracy"] == 1.0
    assert metrics["preference/reward_chosen"] == pytest.approx(0.2)
    assert metrics["preference/reward_rejected"] == pytest.approx(-0.1)
    same = pair(-4.0, -5.0, logp_ref_chosen=-4.0, logp_ref_rejected=-5.0)
    assert float(functional.policy_loss("dpo", **same)[0]) == pytest.approx(math.log(2))


def test_worked_example_of_simpo():
    given = pair(-0.5, -0.9)
    loss, metrics = functional.policy_loss(
        "simpo", params={"beta": 2.5, "gamma_beta_ratio": 0.55}, **given
    )
    assert float(loss) == pytest.approx(0.8981, abs=5e-5)  # z = -0.375
    assert metrics["preference/accuracy"] == 1.0  # in the right order, though inside the margin
    gamma, _ = functional.policy_loss("simpo", params={"beta": 2.5, "gamma": 2.5 * 0.55}, **given)
    assert float(gamma) == pytest.approx(float(loss))


def random_pairs(seed, width=6, lengths=None):
    rng = torch.Generator().manual_seed(seed)
    found = {}
    for side in ("chosen", "rejected"):
        found[f"mask_{side}"] = torch.rand(4, width, generator=rng) < 0.6
        found[f"mask_{side}"][:, 1] = True
        if lengths:
            found[f"mask_{side}"] = torch.arange(width) < lengths
            found[f"mask_{side}"] = found[f"mask_{side}"].expand(4, width)
        for name in ("logp", "logp_ref"):
            drawn = torch.rand(4, width, generator=rng, dtype=torch.float64)
            found[f"{name}_{side}"] = -2 * drawn - 0.1
    return found


def plain(given, beta, loss_type="sigmoid", smoothing=0.0, weight=1.0):
    """The published loss, written out."""

    def lead(side):
        mask = given[f"mask_{side}"]
        lead = given[f"logp_{side}"] - weight * given[f"logp_ref_{side}"]
        return torch.where(mask, lead, 0).sum(1), mask.sum(1)

    (chosen, n), (rejected, m) = lead("chosen"), lead("rejected")
    if loss_type == "ipo":
        return ((chosen / n - rejected / m - 1 / (2 * beta)) ** 2).mean()
    z = beta * (chosen - rejected)
    if loss_type == "hinge":
        return torch.relu(1 - z).mean()
    return (-(1 - smoothing) * logsigmoid(z) - smoothing * logsigmoid(-z)).mean()


@pytest.mark.parametrize(
    ("params", "arguments"),
    [
        ({"beta": 0.3}, {"beta": 0.3}),
        ({"beta": 0.3, "label_smoothing": 0.2}, {"beta": 0.3, "smoothing": 0.2}),
        ({"beta": 0.4, "loss_type": "hinge"}, {"beta": 0.4, "loss_type": "hinge"}),
        ({"beta": 0.7, "loss_type": "ipo"}, {"beta": 0.7, "loss_type": "ipo"}),
        ({"beta": 0.3, "reference_weight": 0.5}, {"beta": 0.3, "weight": 0.5}),
    ],
)
def test_loss_and_gradient_are_those_of_the_published_loss(params, arguments):
    given = random_pairs(3)
    leaves = {name: given[name].clone().requires_grad_() for name in given if name[:5] == "logp_"}
    ours, _ = functional.policy_loss("dpo", params=params, **{**given, **leaves})
    ours.backward()
    mine = {name: leaf.grad for name, leaf in leaves.items() if "ref" not in name}
    assert all(leaf.grad is None for name, leaf in leaves.items() if "ref" in name)
    fresh = {name: given[name].clone().requires_grad_() for name in mine}
    theirs = plain({**given, **fresh}, **arguments)
    theirs.backward()
    torch.testing.assert_close(ours, theirs)
    for name, grad in mine.items():
        torch.testing.assert_close(grad, fresh[name].grad)
    weights = functional.token_weights("dpo", params=params, **given)
    stacked = torch.cat([mine["logp_chosen"], mine["logp_rejected"]])
    torch.testing.assert_close(weights, -stacked)


def test_gradient_is_that_of_finite_differences():
    given = {name: value for name, value in random_pairs(5).items() if "ref" not in name}

    def loss(column):
        return functional.policy_loss("simpo", **{**given, "logp_chosen": column})[0]

    analytic, numeric = gradient_by_differences(loss, given["logp_chosen"])
    torch.testing.assert_close(analytic, numeric, rtol=1e-6, atol=1e-8)
    assert (analytic != 0).any()


def test_simpo_of_equal_lengths_without_margin_is_dpo_with_a_uniform_reference():
    given = random_pairs(7, lengths=4)
    for side in ("chosen", "rejected"):
        given[f"logp_ref_{side}"] = torch.full_like(given[f"logp_{side}"], -math.log(50))
    dpo_loss, _ = functional.policy_loss("dpo", params={"beta": 0.25}, **given)
    own = {name: value for name, value in given.items() if "ref" not in name}
    simpo_loss, _ = functional.policy_loss(
        "simpo", params={"beta": 1.0, "gamma_beta_ratio": 0.0}, **own
    )
    assert float(simpo_loss) == pytest.approx(float(dpo_loss))


def test_the_supervised_term_of_simpo_is_the_cross_entropy_of_the_chosen():
    given = {name: value for name, value in random_pairs(9).items() if "ref" not in name}
    without, _ = functional.policy_loss("simpo", **given)
    both, metrics = functional.policy_loss("simpo", params={"sft_weight": 0.5}, **given)
    nll = -given["logp_chosen"][given["mask_chosen"]].mean()
    assert metrics["loss/sft"] == pytest.approx(0.5 * float(nll))
    assert float(both) == pytest.approx(float(without) + 0.5 * float(nll))


def test_widths_may_differ_and_values_outside_the_mask_never_matter():
    given = random_pairs(11)
    wider = dict(given)
    for name in ("logp_rejected", "logp_ref_rejected"):
        column = torch.where(given["mask_rejected"], given[name], math.nan)
        wider[name] = torch.cat([column, torch.full((4, 3), math.nan).double()], dim=1)
    wider["mask_rejected"] = torch.cat([given["mask_rejected"], torch.zeros(4, 3).bool()], dim=1)
    assert float(functional.policy_loss("dpo", **wider)[0]) == pytest.approx(
        float(functional.policy_loss("dpo", **given)[0])
    )


def test_several_rejected_answers_are_averaged_within_their_prompt():
    rows = {
        "logp": f64([-1.0], [-2.0], [-5.0], [-1.0], [-3.0]),
        "logp_ref": torch.zeros(5, 1).double(),
        "mask": torch.ones(5, 1),
        "groups": torch.tensor([0, 0, 0, 1, 1]),
        "preferred": torch.tensor([1, -1, -1, 1, -1]),
    }
    loss, _ = functional.policy_loss("dpo", params={"beta": 1.0}, **rows)
    first = (-logsigmoid(f64(1.0)) - logsigmoid(f64(4.0))) / 2
    assert float(loss) == pytest.approx(float((first - logsigmoid(f64(2.0))) / 2))


@pytest.mark.parametrize("part", [PreferOverReference(), PreferByLikelihood()])
def test_a_prompt_without_both_kinds_has_no_gradient(part):
    columns = {"logp_T": [-1.0, -2.0], "logp_ref_T": [-1.0, -1.0]}
    batch = flat_batch((1, 1), groups=(0, 0), **columns)
    batch = batch.set(gradient_T=batch["mask_T"])
    for preferred in ([1, 1], [-1, -1], [0, 1], [0, 0]):
        found = run(part, batch.set(preferred_B=torch.tensor(preferred)))
        assert found.value.tolist() == [0.0, 0.0]
        assert found.metrics == {}


def test_the_same_push_through_the_kernel():
    batch = flat_batch(
        (2, 3), groups=(0, 0), logp_T=[-1.0, -0.5, -0.7, -2.0, -0.1],
        logp_ref_T=[-1.2, -0.4, -0.9, -1.0, -0.3],
    ).set(preferred_B=torch.tensor([1, -1]))  # fmt: skip
    batch = batch.set(
        gradient_T=batch["mask_T"], denominator_T=batch["mask_T"],
        advantage_T=torch.zeros(5).double(),
    )  # fmt: skip

    def loss_of(logp_T):
        lead_T = logp_T - batch["logp_ref_T"]
        return -logsigmoid(0.1 * (lead_T[:2].sum() - lead_T[2:].sum()))

    assert_same_push(dpo(), batch, loss_of, "logp_T")


def test_refuses_nonsense():
    with pytest.raises(UserError, match="loss_type must be one of sigmoid, hinge"):
        simpo(loss_type="ipo")
    with pytest.raises(UserError, match="beta must be at least"):
        dpo(beta=0.0)
    given = random_pairs(1)
    with pytest.raises(UserError, match="needs logp_ref"):
        functional.policy_loss("dpo", **{k: v for k, v in given.items() if "ref" not in k})
    lacking = {k: v for k, v in given.items() if k != "logp_ref_rejected"}
    with pytest.raises(UserError, match="pairs need logp_ref_rejected"):
        functional.policy_loss("dpo", **lacking)
    with pytest.raises(UserError, match="not both"):
        functional.policy_loss("dpo", mask=torch.ones(4, 6), **given)
    with pytest.raises(UserError, match="with the same N"):
        functional.policy_loss("dpo", **{**given, "logp_chosen": given["logp_chosen"][:3]})
    with pytest.raises(UserError, match="needs mask"):
        functional.policy_loss("grpo", logp=torch.zeros(2, 2))
