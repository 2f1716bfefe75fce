import dataclasses

import pytest
import torch
from builders import assert_same_push, flat_batch, pushed, ragged_batch, rows_learning, stages

from strop import functional
from strop.method import reading
from strop.method.check import check
from strop.method.part import Use
from strop.parts.loss.penalty.reward_entropy import RewardEntropy
from strop.recipes.gae import gae
from strop.recipes.grpo import grpo
from strop.support.errors import UserError


def test_worked_example_with_whitening():
    batch = flat_batch([3], value_T=[0.2, 0.4, 0.6], reward_T=[0.0, 0, 1], reward_B=[1.0])
    found = stages(gae(lam=0.95), batch)
    assert found["advantage_T"].tolist() == pytest.approx([0.9913, 0.0171, -1.0084], abs=5e-5)
    assert found["return_T"].tolist() == pytest.approx([0.951, 0.98, 1.0])  # before whitening


def losses(batch, clip_value):
    """The two published losses, on the policy's and the critic's tokens."""
    rows = rows_learning(batch)
    scored = (batch["mask_T"] & batch["scored_B"][batch["rollout_T"]]).nonzero().squeeze(1)
    advantage_N, old_N = batch["advantage_T"][rows], batch["value_old_T"][scored]
    held = []

    def loss_of(logp_T, value_T):
        ratio_N = (logp_T[rows] - batch["logp_old_T"][rows]).exp()
        policy_N = torch.maximum(-advantage_N * ratio_N, -advantage_N * ratio_N.clamp(0.8, 1.2))
        error_N = value_T[scored] - batch["return_T"][scored]
        moved_N = value_T[scored].clamp(old_N - clip_value, old_N + clip_value)
        clipped_N = (moved_N - batch["return_T"][scored]).square()
        held.append(int((clipped_N > error_N.square()).sum()))
        return policy_N.mean() + 0.5 * torch.maximum(error_N.square(), clipped_N).mean()

    return loss_of, held


def test_gradients_are_those_of_the_published_losses():
    algorithm = gae(lam=0.9, clip_value=0.3)
    batch = stages(algorithm, ragged_batch(1))
    rng = torch.Generator().manual_seed(2)
    noise_T = 0.5 * torch.randn(batch.size("T"), generator=rng, dtype=torch.float64)
    # current values off those that the advantages were made with
    batch = batch.set(value_old_T=batch["value_T"], value_T=batch["value_T"] + noise_T)
    loss_of, held = losses(batch, 0.3)
    assert_same_push(algorithm, batch, loss_of, "logp_T", "value_T")
    assert held[0] > 0


def test_the_critic_learns_where_selection_left_nothing():
    algorithm = gae()
    batch = stages(algorithm, ragged_batch(3))
    nothing_T = torch.zeros_like(batch["mask_T"])
    batch = batch.set(value_old_T=batch["value_T"], value_T=batch["value_T"] + 0.1)
    _, found, _ = pushed(algorithm, batch.set(gradient_T=nothing_T, denominator_T=nothing_T))
    assert not found["logp_T"].any()
    scored_T = batch["mask_T"] & batch["scored_B"][batch["rollout_T"]]
    assert (found["value_T"] != 0).equal(scored_T)


def test_padded_loss_with_and_without_the_critic():
    shape = (3, 4)
    rng = torch.Generator().manual_seed(0)

    def rand():
        return torch.rand(shape, generator=rng, dtype=torch.float64)

    given = {"logp": -rand(), "logp_old": -rand(), "mask": rand() < 0.8, "advantages": rand()[:, 0]}
    critic = {"values": rand(), "values_old": rand(), "returns": rand()}
    plain, _ = functional.policy_loss("gae", **given)
    params = {"aggregation": "token-mean"}
    assert float(plain) == float(functional.policy_loss("grpo", **given, params=params)[0])
    both, metrics = functional.policy_loss("gae", **given, **critic)
    value = functional.value_loss_clip(**critic, mask=given["mask"])
    assert float(both - plain) == pytest.approx(float(value), rel=1e-12)
    assert metrics["loss/value"] == pytest.approx(float(value))
    with pytest.raises(UserError, match="needs returns"):
        functional.policy_loss("gae", **given, values=critic["values"])
    with pytest.raises(UserError, match="takes no returns"):
        functional.policy_loss("grpo", **given, returns=critic["returns"])


def test_composes_and_refuses_what_no_critic_can_do():
    algorithm = gae(beta=0.1, lam=0.9)
    check(algorithm)
    assert algorithm.value_columns() == ("value_T",)
    assert grpo().value_columns() == ()
    without = dataclasses.replace(algorithm, terms=algorithm.terms[:1])
    with pytest.raises(UserError, match=r"reads value_T, for which there is no critic"):
        check(without)
    *_, value = algorithm.terms

    def with_term(**changes):
        term = dataclasses.replace(value, name="more", **changes)
        return dataclasses.replace(algorithm, terms=(*algorithm.terms, term))

    with pytest.raises(UserError, match="reads entropy_T of the policy"):
        check(with_term(objective=Use(RewardEntropy())))
    with pytest.raises(UserError, match=r"no learner 'critics'; there are policy, critic"):
        check(with_term(learner="critics"))
    assert reading.override(algorithm, "terms.value.objective.clip", 0.1).paths()
