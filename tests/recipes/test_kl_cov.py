import pytest
import torch
from builders import assert_same_push, flat_batch, pushed, ragged_batch, rows_learning, stages

from strop import functional
from strop.recipes.kl_cov import kl_cov
from strop.training.learner import kernel

EXAMPLE = {
    "logp_T": [-0.1, -4.0, -0.2, -3.0],
    "logp_old_T": [-0.2, -4.0, -0.2, -2.9],
    "advantage_T": [1.0, 1.0, -1.0, -1.0],
}


def test_worked_example():
    # token 0 has the largest covariance: (-1.1052 + .1 - 1 + 1 + .9048) / 4 = -.0251
    assert pushed(kl_cov(), flat_batch((4,), **EXAMPLE))[0] == pytest.approx(-0.0251, abs=5e-5)
    rows = {name: torch.tensor([values]).double() for name, values in EXAMPLE.items()}
    loss, _ = functional.policy_loss(
        "kl_cov", logp=rows["logp_T"], logp_old=rows["logp_old_T"],
        advantages=rows["advantage_T"], mask=torch.ones(1, 4),
    )  # fmt: skip
    assert float(loss) == pytest.approx(-0.0251, abs=5e-5)


def test_composes_with_several_updates_over_the_whole_update():
    algorithm = kl_cov()
    assert algorithm.plan.part.num_updates == 8
    assert kernel.scope_of(algorithm.terms) == "update"


@pytest.mark.parametrize("coef", [0.0, 1.5])
def test_gradient_is_that_of_the_published_loss(coef):
    algorithm = kl_cov(kl_cov_ratio=0.2, ppo_kl_coef=coef)
    batch = stages(algorithm, ragged_batch(1, groups=(4, 4)))
    rows = rows_learning(batch)
    advantage_N = batch["advantage_T"][rows]

    def loss_of(logp_T):
        logp_N = logp_T[rows]
        x_N = logp_N - batch["logp_old_T"][rows]
        cov_N = (advantage_N - advantage_N.mean()) * (logp_N - logp_N.mean()).detach()
        held = cov_N.sort().indices[-int(0.2 * len(rows)) :]
        loss_N = -advantage_N * x_N.exp()
        return (loss_N.sum() + coef * x_N[held].abs().sum()) / len(rows)

    assert_same_push(algorithm, batch, loss_of)
