import statistics

import pytest
import torch
from builders import (
    assert_same_push,
    flat_batch,
    members_of,
    pushed,
    ragged_batch,
    rows_learning,
    run,
    stages,
)
from hypothesis import given
from hypothesis import strategies as st

from strop import functional
from strop.batch import segments
from strop.method.check import check
from strop.parts.advantage.baseline.normalise_over_group_tokens import NormaliseOverGroupTokens
from strop.recipes.dapo import dapo
from strop.recipes.grpo import grpo
from strop.recipes.hapo import hapo
from strop.support.errors import UserError

ENTROPY = [0.01, 0.05, 0.1, 0.5, 2.0]


def weights(ratio, advantage=1.0, **params):
    """d objective / d logp of five tokens with the card's entropies."""
    given = {
        "logp": torch.full((1, 5), ratio).double().log(), "logp_old": torch.zeros(1, 5).double(),
        "mask": torch.ones(1, 5, dtype=torch.bool), "entropy": torch.tensor([ENTROPY]).double(),
        "advantages": torch.tensor([advantage]).double(),
    }  # fmt: skip
    params = {"aggregation": "token-sum", **params}
    return functional.token_weights("hapo_loss", **given, params=params)[0].tolist()


def test_worked_example_of_the_clip():
    # Above 1.28 only the undecided token still moves: its width is .56, its advantage twice.
    assert weights(1.5) == pytest.approx([0.0] * 4 + [2 * 1.5])
    assert weights(1.57) == [0.0] * 5
    # Below: lower ends 1 - [.4, .3177, .2823, .2, .2], negative advantages.
    assert weights(0.79, -1.0)[:3] == pytest.approx([-0.79] * 3)
    assert weights(0.70, -1.0)[:3] == pytest.approx([-0.70, -0.70, 0.0])
    assert weights(0.65, -1.0)[:3] == pytest.approx([-0.65, 0.0, 0.0])
    assert weights(0.59, -1.0) == [0.0] * 5


def test_worked_example_of_the_advantages():
    # At ratio 1 sure tokens are inside the neutral zone: A (1 + h); the undecided one is not moved.
    assert weights(1.0) == pytest.approx([0.0, 0.4114, 0.5886, 1.0, 1.0], abs=5e-5)
    # The released sign: sure tokens have h > 0, so nothing is suppressed.
    assert weights(1.0, variant="code") == [1.0] * 5
    # Outside the zone they are amplified, and their upper width grows.
    assert weights(1.5, variant="code") == pytest.approx([3.0, 0.0, 0.0, 0.0, 3.0], abs=1e-4)
    # The dual clip holds at 10 times the changed advantage, for the largest ratios.
    assert weights(20.0, -1.0) == [0.0] * 5
    assert weights(20.0, -1.0, dual_clip_c=0.0) == pytest.approx([-20.0] * 4 + [-40.0])


def test_group_average_over_tokens():
    # 2 of 8 tokens have reward 1: mean .25, deviation .4330
    mask = torch.tensor([[1, 1, 0, 0, 0, 0], [1] * 6], dtype=torch.bool)
    given = {"rewards": torch.tensor([1.0, 0]).double(), "groups": torch.zeros(2).long()}
    found = functional.advantages("hapo", **given, mask=mask)
    assert found[:, 0].tolist() == pytest.approx([1.7321, -0.5774], abs=1e-4)
    assert float(found.sum()) == pytest.approx(0, abs=1e-9)
    # 1 of 28: the rare token would have (1 - 1/28) / sqrt(27) * 28 = 5.196, so rollouts count
    long = torch.zeros(2, 27, dtype=torch.bool)
    long[0, 0] = True
    long[1] = True
    found = functional.advantages("hapo", **given, mask=long)
    assert found[:, 0].tolist() == pytest.approx([0.7071, -0.7071], abs=5e-5)
    kept = functional.advantages("hapo", **given, mask=long, params={"fallback_threshold": 6.0})
    assert kept[:, 0].tolist() == pytest.approx([5.1962, -0.19245], abs=5e-4)


def test_deviations_and_who_is_in_them():
    # 2 of 8 tokens have reward 1: squares 1.5, over 7 of them; unscored -> 0, also falling back
    batch = flat_batch((2, 6, 3), advantage_B=[1.0, 0.0, 5.0])
    batch = batch.set(scored_B=torch.tensor([True, True, False]))
    found = run(NormaliseOverGroupTokens(std="unbiased"), batch).value.tolist()
    deviation = (1.5 / 7) ** 0.5
    assert found == pytest.approx([0.75 / deviation, -0.25 / deviation, 0.0], rel=1e-5)
    # .75 / (.4330 + .5) is above .7: 1 and 0 deviate by .7071 from their mean
    falls = NormaliseOverGroupTokens(eps=0.5, fallback_threshold=0.7)
    by_rollout = 0.5 / (0.5**0.5 + 0.5)
    assert run(falls, batch).value.tolist() == pytest.approx([by_rollout, -by_rollout, 0.0])


def test_padding_moves_the_threshold_in_the_released_form_only():
    # rewards 9 and 10 over 1 token each: mean 9.5, deviation .5; padding's 0 would be -19
    batch = flat_batch((1, 1), advantage_B=[9.0, 10.0], max_length=4)
    assert run(NormaliseOverGroupTokens(), batch).value.tolist() == pytest.approx([-1.0, 1.0], 1e-5)
    code = NormaliseOverGroupTokens(source_form="code")
    assert run(code, batch).value.tolist() == pytest.approx([-0.7071, 0.7071], abs=1e-4)
    full = batch.set(max_length=torch.tensor(1))
    assert run(code, full).value.tolist() == pytest.approx([-1.0, 1.0], 1e-5)


def test_edges_of_the_group_average():
    alone = flat_batch((3, 2, 2), (0, 1, 1), advantage_B=[0.7, 0.4, 0.4])
    assert run(NormaliseOverGroupTokens(), alone).value.tolist() == [0.0] * 3
    batch = flat_batch((3, 2, 2), advantage_B=[1.0, 0.0, 5.0])
    batch = batch.set(scored_B=torch.tensor([True, True, False]))
    found = run(NormaliseOverGroupTokens(), batch).value.tolist()
    assert found == pytest.approx([0.4 / 0.4899, -0.6 / 0.4899, 0.0], abs=1e-4)
    for field, value in (("std", "none"), ("eps", -1.0), ("source_form", "both")):
        with pytest.raises(UserError, match=field):
            NormaliseOverGroupTokens(**{field: value})


def test_equal_lengths_are_grpo_with_the_biased_deviation():
    batch = ragged_batch(3, groups=(3, 2, 4), lengths=(4, 4), unscored=(), num_turns=(1, 1))
    ours = stages(hapo(), batch)["advantage_T"]
    torch.testing.assert_close(ours, stages(grpo(std="biased"), batch)["advantage_T"])


def test_without_a_signal_it_is_dapos_loss():
    batch = stages(dapo(), ragged_batch(1))
    ours = hapo(clip_alpha=0.0, adv_beta=0.0, dual_clip_c=0.0, tau=0.0)
    plain, same = dapo(num_rollouts=16), batch.set(entropy_T=torch.full_like(batch["logp_T"], 0.4))
    expected = pushed(plain, batch)[1]["logp_T"]
    torch.testing.assert_close(pushed(ours, batch)[1]["logp_T"], expected)
    # all entropies equal: h is 0 everywhere
    torch.testing.assert_close(pushed(hapo(dual_clip_c=0.0), same)[1]["logp_T"], expected)
    assert ours.rollout == plain.rollout


@pytest.mark.parametrize("variant", ["paper", "code"])
def test_gradient_is_that_of_the_published_loss(variant):
    algorithm = hapo(variant=variant, dual_clip_c=1.2, quantile=0.6, adv_beta=0.7, clip_alpha=0.9)
    batch = stages(algorithm, ragged_batch(1, groups=(4, 3, 4)))
    rows = rows_learning(batch)
    A = batch["advantage_T"][rows]
    logs = batch["entropy_T"][rows].clamp(min=1e-8).log()
    off = logs - sorted(logs.tolist())[round(0.6 * (len(rows) - 1))]
    sign = 1 if variant == "paper" else -1
    h = torch.where(off > 0, off / off.max(), sign * off / -off.min())
    low = torch.where(h <= 0, 0.2 * (1 - 0.9 * h), 0.2)
    high = torch.where(h > 0, 0.28 * (1 + 0.9 * h), 0.28)

    def loss_of(logp_T):
        rho = (logp_T[rows] - batch["logp_old_T"][rows]).exp()
        neutral = (rho > 1 - low / 2) & (rho < 1 + high / 2)
        moved = torch.where(h > 0, ~neutral, neutral)
        new = torch.where(moved, A * (1 + 0.7 * h), A)
        first = torch.maximum(-new * rho, -new * rho.clamp(1 - low, 1 + high))
        return torch.where(new < 0, torch.minimum(first, -new * 1.2), first).mean()

    assert_same_push(algorithm, batch, loss_of)
    moments = [
        [float(batch["reward_B"][i]) for i in members_of(batch, g)
         for _ in range(int(batch["length_B"][i]))] for g in range(3)
    ]  # fmt: skip
    for group, rewards in enumerate(moments):
        for i in members_of(batch, group):
            off_i = float(batch["reward_B"][i]) - statistics.mean(rewards)
            expected = off_i / (statistics.pstdev(rewards) + 1e-6)
            assert float(batch["advantage_B"][i]) == pytest.approx(expected)


@given(seed=st.integers(0, 1000), level=st.sampled_from([0.0, 0.3, 0.5, 0.8, 1.0]))
def test_nearest_rank_is_a_member(seed, level):
    rng = torch.Generator().manual_seed(seed)
    key = torch.randint(0, 4, (11,), generator=rng)
    values = torch.randn(11, generator=rng, dtype=torch.float64)
    where = torch.rand(11, generator=rng) < 0.7
    found = segments.nearest_rank(values, key, 4, level, where)
    for k in range(4):
        members = sorted(values[(key == k) & where].tolist())
        expected = members[round(level * (len(members) - 1))] if members else 0.0
        assert float(found[k]) == expected


def test_composes_with_its_sampler():
    algorithm = hapo(variant="code", tau=0.05)
    check(algorithm)
    assert algorithm.rollout.part.source_form == "code"
    assert algorithm.rollout.part.quantile == 0.8
    assert hapo(tau=0.0).rollout == dapo().rollout
