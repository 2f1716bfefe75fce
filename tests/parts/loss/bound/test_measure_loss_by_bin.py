import pytest
import torch
from builders import pushed, ragged_batch

from strop.parts.loss.bound.measure_loss_by_bin import MeasureLossByBin
from strop.recipes.prompt_gdro import prompt_gdro
from strop.recipes.rollout_gdro import rollout_gdro
from strop.support.errors import UserError
from strop.training.learner import kernel


def test_the_classes_losses_are_those_of_a_loop():
    """Per rollout the mean over its tokens, per class the mean over rollouts, weights undone."""
    algorithm = prompt_gdro(beta=0.0)
    bin_B = torch.tensor([0, 0, 0, 1, 1, 1, 1, 1, 2, 2])
    batch = ragged_batch(5, unscored=()).set(bin_B=bin_B)
    weight_B = torch.tensor([2.0, 0.5, 3.0]).double()[bin_B]
    batch = batch.set(
        bin_weight_B=weight_B, advantage_T=batch["advantage_T"] * weight_B[batch["rollout_T"]]
    )
    _, _, metrics = pushed(algorithm, batch)
    ratio_T = (batch["logp_T"] - batch["logp_old_T"]).exp()
    for b in range(3):
        means = []
        for i in (bin_B == b).nonzero().squeeze(1).tolist():
            rows = (batch["mask_T"] & (batch["rollout_T"] == i)).nonzero().squeeze(1)
            a = batch["advantage_B"][i]
            losses = [-min(r * a, min(max(r, 0.8), 1.28) * a) for r in ratio_T[rows].tolist()]
            means.append(float(sum(losses)) / len(losses))
        found = metrics[f"bins/loss_{b}"] / metrics[f"bins/share_{b}"]
        assert found == pytest.approx(sum(means) / len(means))


def test_measuring_trains_nothing():
    batch = ragged_batch(2).set(bin_B=torch.zeros(10, dtype=torch.int64))
    algorithm = rollout_gdro(beta=0.0)
    both = pushed(algorithm, batch)
    (policy,) = (term for term in algorithm.terms if term.name == "policy")
    alone = kernel.adjoints(
        [policy], kernel.View(kernel.prepare([policy], batch)), {"logp_T": batch["logp_T"]},
        kernel.Tally(),
    )  # fmt: skip
    assert both[1]["logp_T"].equal(alone[1]["logp_T"])
    assert both[0] == pytest.approx(float(alone[0]))
    with pytest.raises(UserError, match="num_bins"):
        MeasureLossByBin(num_bins=0)


def test_a_class_without_a_metric_is_refused():
    batch = ragged_batch(2).set(bin_B=torch.tensor([0] * 9 + [3]))
    with pytest.raises(UserError, match="a prompt is of class 3: raise num_bins"):
        pushed(rollout_gdro(beta=0.0), batch)
