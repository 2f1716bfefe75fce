import pytest
import torch
from builders import flat_batch, learning, members_of, pushed, ragged_batch, run, stages
from differences import gradient_by_differences

from strop import functional
from strop.parts.loss.penalty.penalise_ratio_variance import PenaliseRatioVariance
from strop.recipes.gvpo import gvpo
from strop.recipes.rloo import rloo


def test_worked_example_through_the_padded_call():
    given = {"groups": torch.zeros(3).long(), "mask": torch.tensor([[1, 1], [1, 0], [1, 1]])}
    rewards = torch.tensor([1.0, 0.0, 0.0]).double()
    given["advantages"] = functional.advantages("gvpo", rewards=rewards, **given)
    assert given["advantages"][:, 0].tolist() == [1.0, -0.5, -0.5]  # 3/2 of (2, -1, -1) / 3
    given["logp"] = torch.tensor([[-1.0, -2.0], [-1.0, 9.0], [-3.0, -1.0]]).double()
    given["logp_old"] = torch.tensor([[-1.5, -2.5], [-0.5, 0.0], [-3.5, -0.5]]).double()
    # l = (1, -1/2, 0), its mean 1/6, apart (5, -4, -1) / 6: variance 42 / 36 / 2 = 7 / 12
    loss, metrics = functional.policy_loss("gvpo", **given, params={"beta": 0.6})
    assert metrics["loss/spring"] == pytest.approx(0.6 * 7 / 24)
    # policy: -(1 (-3) - 1/2 (-1) - 1/2 (-4)) / 3
    assert float(loss) == pytest.approx(0.5 / 3 + 0.6 * 7 / 24)
    # (centred reward - beta * apart) / 2: (2/3 - 1/2, -1/3 + 2/5, -1/3 + 1/10) / 2
    found = functional.token_weights("gvpo", **given, params={"beta": 0.6})
    assert (60 * found).flatten().tolist() == pytest.approx([5, 5, 2, 0, -7, -7])


def published(batch, beta):
    """The paper's loss: mean over prompts of sum_i (centred - centred)^2 / (2 (k - 1))."""
    tokens = dict(learning(batch))

    def loss_of(logp_T):
        total = logp_T.sum() * 0
        for members in (members_of(batch, group) for group in range(batch.size("P"))):
            if len(members) > 1:
                own = [(logp_T - batch["logp_old_T"])[tokens[i]].sum() for i in members]
                fitted, reward = beta * torch.stack(own), batch["reward_B"][members]
                error = (fitted - fitted.mean()) - (reward - reward.mean())
                total = total + error.square().sum() / (2 * (len(members) - 1))
        return total / batch.size("P")

    return loss_of


@pytest.mark.parametrize("beta", [0.1, 0.7])
def test_gradient_is_that_of_the_published_loss_divided_by_beta(beta):
    """In groups of 3, 1, 4 with one unscored, and 2."""
    batch = stages(gvpo(beta=beta), ragged_batch(1))
    logp_T = batch["logp_T"].nan_to_num(-1.0)
    expected_T, by_differences_T = gradient_by_differences(published(batch, beta), logp_T)
    found_T = beta * pushed(gvpo(beta=beta), batch)[1]["logp_T"]
    torch.testing.assert_close(found_T, expected_T, atol=1e-10, rtol=1e-10)
    torch.testing.assert_close(found_T, by_differences_T, atol=1e-8, rtol=1e-6)


def test_at_rest_it_is_rloo_so_the_published_gradient_is_beta_times_that():
    batch = stages(gvpo(), ragged_batch(2, (4, 4, 4), unscored=()))
    batch = batch.set(logp_T=batch["logp_old_T"])
    plain_T = pushed(rloo(), stages(rloo(), batch))[1]["logp_T"]
    torch.testing.assert_close(pushed(gvpo(), batch)[1]["logp_T"], plain_T)


def weights_after(shift):
    """Weights of every scored answer's tokens, its log-ratio moved by shift(reward, group)."""
    batch = stages(gvpo(beta=0.3), ragged_batch(3))
    old_T, answers = batch["logp_old_T"].clone(), learning(batch)
    for i, rows in answers:
        log_ratio = (batch["logp_T"] - old_T)[rows].sum()
        old_T[rows[-1]] -= shift(log_ratio, batch["reward_B"][i], float(batch["group_B"][i]))
    found_T = -pushed(gvpo(beta=0.3), batch.set(logp_old_T=old_T))[1]["logp_T"]
    assert all(found_T[rows].unique().numel() == 1 for _, rows in answers)
    return batch, {i: float(found_T[rows[0]]) for i, rows in answers}


def test_weights_of_a_group_add_up_to_nothing_and_vanish_at_the_optimum():
    batch, found = weights_after(lambda log_ratio, reward, group: 0.0)
    assert found[3] == 0.0  # a group of one
    for group in (0, 2, 3):
        own = [found[i] for i in members_of(batch, group)]
        assert sum(own) == pytest.approx(0.0, abs=1e-12)
        assert min(map(abs, own)) > 1e-4
    moved = weights_after(lambda log_ratio, reward, group: 5 + group)[1]
    assert moved == pytest.approx(found)  # what the answers of a prompt share, as log Z
    best = weights_after(lambda log_ratio, reward, group: reward / 0.3 + group - log_ratio)[1]
    assert list(best.values()) == pytest.approx([0.0] * len(best), abs=1e-12)


def test_edges_of_the_penalty():
    batch = flat_batch((1, 2, 1), (0, 0, 1), logp_T=[1.0, 2.0, 3.0, 9.0], logp_ref_T=[0.0] * 4)
    assert run(PenaliseRatioVariance(), batch).value.tolist() == [-4.0, -2.0, -2.0, 0.0]  # 1 and 5
    idle = batch.set(gradient_T=torch.tensor([True, False, False, True]))
    assert run(PenaliseRatioVariance(), idle).value.tolist() == [0.0] * 4


def test_the_variance_of_a_prompts_answers_is_logged():
    batch = flat_batch((2, 1, 2), logp_T=[0.5, 0.5, -0.5, 0.5, -0.5], logp_ref_T=[0.0] * 5)
    told = run(PenaliseRatioVariance(), batch).metrics["answers/variance_mean"]
    assert told.tolist() == pytest.approx([7 / 12] * 5)  # of 1, -1/2 and 0
